"""Streams: cancellation, and the rules that decide without a server."""

from __future__ import annotations

import asyncio

import pytest
from reading import rest, text_of, until

from ash_client import AsyncAshClient, RetryPolicy, UnavailableError
from ash_client.errors import AshConnectionError, error_from_answer
from ash_client.progress import MessageProgress
from ash_client.request import post
from ash_client.retry import Outage
from ash_client.sse import Frame, FrameParser, Position

pytestmark = pytest.mark.anyio


async def test_a_turn_is_streamed_to_its_end(client: AsyncAshClient) -> None:
    session = (await client.create_session("default"))["id"]
    events = await rest(client.send_message_stream(session, "run: echo hi", include_partial_messages=True))
    names = [event.event for event in events]
    assert (names[0], names[-1], text_of(events)) == ("session_start", "done", "hi")
    assert {"tool_use", "tool_result", "turn_complete", "message"} <= set(names)
    whole = await rest(client.send_message_stream(session, "run: echo hi"))
    assert "text_delta" not in [event.event for event in whole]


async def test_a_text_keeps_every_character(client: AsyncAshClient) -> None:
    session = (await client.create_session("default"))["id"]
    odd = "a\u2028b\u2029c\u0085d\U0001f600"
    events = await rest(client.send_message_stream(session, f"run: printf %s '{odd}'", include_partial_messages=True))
    assert text_of(events) == odd


async def test_a_stream_that_is_left_early_ends_nothing_but_itself(client: AsyncAshClient) -> None:
    session = (await client.create_session("default"))["id"]
    async with client.send_message_stream(session, "hold go: one two", include_partial_messages=True) as stream:
        await until(stream, "text_delta")
    assert await rest(stream) == []
    follower = client.stream_session(session)
    await client.write_session_files(session, {"go": ""})
    assert (await until(follower, "done")).data["status"] == "done"
    await follower.aclose()


# Threads cannot be cancelled.
@pytest.mark.parametrize("kind", ["async"], indirect=True)
async def test_a_cancelled_task_closes_its_stream(client: AsyncAshClient) -> None:
    session = (await client.create_session("default"))["id"]
    stream = client.send_message_stream(session, "hold go: one two", include_partial_messages=True)
    await until(stream, "text_delta")
    reading = asyncio.create_task(rest(stream))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await rest(stream) == []
    assert (await client.interrupt_session(session))["turn"] is not None


async def test_another_clients_pause_of_a_waiting_message_is_told(client: AsyncAshClient) -> None:
    session = (await client.create_session("default"))["id"]
    first = client.send_message_stream(session, "hold go: one two", include_partial_messages=True)
    await until(first, "text_delta")
    second = client.send_message_stream(session, "run: echo second", idempotency_key="second")
    await until(second, "session_start")
    await client.pause_session(session)
    with pytest.raises(Exception, match="stays queued") as paused:
        await rest(second)
    assert getattr(paused.value, "queued", None) is True
    again = asyncio.create_task(rest(client.send_message_stream(session, "run: echo second", idempotency_key="second")))
    await client.write_session_files(session, {"go": ""})
    assert (await rest(first))[-1].event == "done"
    assert (await again)[-1].event == "done"


def test_positions_are_ordered_as_the_log() -> None:
    ids = ["3", "7-1", "7", "8-1", "8", "8.1-1", "8.1", "8.2", "8.10", "10"]
    positions = [Position.parse(one) for one in ids]
    assert positions == sorted(positions, key=lambda position: position or Position(0))
    assert [Position.parse(text) for text in ("", "x", "-1", "1.", "1--1")] == [None] * 5


def test_bytes_become_frames_wherever_they_are_cut() -> None:
    frames = 'id: 1\nevent: a\ndata: {"x": "ä\u2028"}\n\n: still here\n\nevent: b\r\ndata: 2\r\n\r\n'
    text = (frames + "id: 3\nevent: cut").encode()
    expected = [Frame("a", {"x": "ä\u2028"}, "1"), Frame("b", 2, None)]
    for size in range(1, len(text)):
        parser = FrameParser()
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert [frame for piece in pieces for frame in parser.feed(piece)] == expected


def progress_after(*frames: Frame) -> MessageProgress:
    message = post("api", "sessions", "s", "messages", body={"content": "x"}, idempotency_key="k")
    progress = MessageProgress("s", message, True)
    assert progress.request() is message
    for frame in frames:
        progress.accept(frame)
    return progress


START = Frame("session_start", {"turn": "t"}, "3")
MESSAGE = Frame("message", {}, "5")


def test_a_turn_that_has_not_begun_is_asked_for_by_its_message() -> None:
    assert progress_after(START).request().method == "POST"
    steered = progress_after(START, Frame("steered", {"turn": "t", "into": "other"}, "6"))
    assert steered.request().method == "POST"


def test_a_turn_that_has_begun_continues_after_the_last_event() -> None:
    request = progress_after(START, MESSAGE, Frame("message", {}, "8.1-1")).request()
    assert (request.method, request.path) == ("GET", "/api/sessions/s/stream")
    assert request.headers["Last-Event-ID"] == "8.1-1"


def test_events_of_others_are_left_out_and_the_end_is_found() -> None:
    progress = progress_after(START, MESSAGE)
    progress.request()
    frames = [
        (MESSAGE, False),
        (Frame("turn_started", {"turn": "t"}, "6"), False),
        (Frame("session_start", {"turn": "other"}, "7"), False),
        (Frame("text_delta", {"delta": "x"}, "7.1"), True),
        (Frame("restore_progress", {}, None), True),
        (Frame("error", {"code": "checkpoint_failed", "error": "x"}, "8"), True),
        (Frame("done", {"turn": "other"}, "9"), False),
    ]
    assert [progress.accept(frame) for frame, _ in frames] == [wanted for _, wanted in frames]
    assert not progress.is_over and progress.failure is None
    assert progress.accept(Frame("done", {"turn": "t"}, "10")) and progress.is_over


def test_a_turn_that_was_cut_while_there_was_no_connection_is_continued_by_its_message() -> None:
    progress = progress_after(START, MESSAGE)
    progress.request()
    assert not progress.accept(Frame("error", {"code": "sandbox_died", "error": "x"}, "6"))
    assert progress.needs_new_connection and progress.request().method == "POST"
    assert progress.accept(Frame("turn_continued", {"turn": "t"}, "9"))
    assert progress.request().headers["Last-Event-ID"] == "9"


def test_the_error_of_a_turn_that_failed_comes_with_its_end() -> None:
    progress = progress_after(START, MESSAGE)
    progress.request()
    assert progress.accept(Frame("error", {"code": "model_error", "error": "x"}, "6-1"))
    assert progress.accept(Frame("done", {"turn": "t", "status": "failed"}, "6")) and progress.is_over


def test_pauses_grow_are_bounded_and_honour_the_server() -> None:
    policy = RetryPolicy(max_attempts=4, initial_delay=1.0, max_delay=3.0, random=lambda: 1.0)
    lost = AshConnectionError("x", code="connection_lost")
    assert [policy.delay(attempt, lost) for attempt in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, None]
    busy = UnavailableError("x", code="try_again", retry_after=7.0)
    assert policy.delay(1, busy) == 7.0
    assert policy.delay(1, UnavailableError("x", code="try_again", retry_after=99.0)) is None
    outage = Outage(policy)
    assert [outage.pause(lost, 0.0) for _ in range(4)] == [1.0, 2.0, 3.0, None]
    outage = Outage(policy)
    outage.connected()
    assert [outage.pause(lost, now) for now in (0.0, 30.0, 40.0, 50.0, 60.0)] == [1.0, 2.0, 3.0, 3.0, None]
    outage.over()
    assert outage.pause(lost, 60.0) == 1.0


def test_answers_of_proxies_are_errors_too() -> None:
    error = error_from_answer(502, {"retry-after": "soon"}, b"<html>Bad Gateway</html>")
    assert (error.code, error.status_code, error.retry_after) == ("http_502", 502, None)
