"""What is sent again, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from both import Kind, connect
from conftest import make_server
from reading import becomes, rest, text_of, until
from server import Server

from ash_client import AshConnectionError, AsyncAshClient, RetryPolicy, UnavailableError, async_transport, transport

pytestmark = pytest.mark.anyio


@pytest.fixture
def small_server() -> Iterator[Server]:
    """It has room for one session at work."""
    yield from make_server({"ASH_MAX_SANDBOXES": "1"})


async def test_a_full_server_is_asked_again_as_it_wishes(small_server: Server, kind: Kind) -> None:
    statuses: list[int] = []
    client = connect(kind, small_server.url, small_server.key, RetryPolicy(max_attempts=60), statuses)
    impatient = connect(kind, small_server.url, small_server.key, RetryPolicy(max_attempts=1))
    first = (await client.create_session("default"))["id"]
    stream = client.send_message_stream(first, "hold go: one two", include_partial_messages=True)
    await until(stream, "text_delta")
    with pytest.raises(UnavailableError) as full:
        await impatient.create_session("default")
    assert (full.value.code, full.value.status_code, full.value.retry_after) == ("capacity_reached", 503, 1.0)
    creating = asyncio.create_task(client.create_session("default"))
    waiting = asyncio.create_task(impatient.create_session("default", wait=60))
    await becomes(lambda: 503 in statuses, "a refusal")
    await client.write_session_files(first, {"go": ""})
    await until(stream, "done")
    assert {(await creating)["status"], (await waiting)["status"]} == {"active"}
    assert (await client.list_sessions_with_total())["total"] == 3
    for one in (client, impatient):
        await one.aclose()


async def test_a_connection_that_has_gone_silent_is_replaced(
    server: Server, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (async_transport, transport):
        monkeypatch.setattr(module, "STREAM_SILENCE", 0.2)
    statuses: list[int] = []
    client = connect(kind, server.url, server.key, RetryPolicy(initial_delay=0.01, max_delay=0.1), statuses)
    session = (await client.create_session("default"))["id"]
    stream = client.send_message_stream(session, "hold go: one two", include_partial_messages=True)
    events = [await until(stream, "text_delta")]
    statuses.clear()
    reading = asyncio.create_task(rest(stream))
    await becomes(lambda: len(statuses) >= 3, "the third connection")
    await client.write_session_files(session, {"go": ""})
    assert text_of(events + await reading) == "one two"
    await client.aclose()


async def test_an_answer_that_takes_long_is_waited_for_in_several_requests(
    server: Server, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (async_transport, transport):
        monkeypatch.setattr(module, "STREAM_SILENCE", 0.2)
    client = connect(kind, server.url, server.key, RetryPolicy(initial_delay=0.01, max_delay=0.1), timeout=0.2)
    patient = connect(kind, server.url, server.key)
    session = (await patient.create_session("default"))["id"]
    answering = asyncio.create_task(client.send_message(session, "hold go: one two"))
    follower = patient.stream_session(session)
    await until(follower, "text_delta")
    with pytest.raises(AshConnectionError) as slow:
        await client.exec(session, "until [ -e go ]; do sleep 0.1; done")
    assert slow.value.code == "timeout"
    await patient.write_session_files(session, {"go": ""})
    assert (await answering)["text"] == "one two"
    assert [message["role"] for message in await patient.list_messages(session)].count("user") == 1
    for one in (client, patient):
        await one.aclose()


async def test_a_command_is_not_run_twice(own_client: AsyncAshClient, own_server: Server) -> None:
    session = (await own_client.create_session("default"))["id"]
    running = asyncio.create_task(own_client.exec(session, "mkfifo gate; echo once >> runs; cat gate"))
    while "runs" not in [file["path"] for file in (await own_client.get_session_files(session))["files"]]:
        assert not running.done()
    await asyncio.to_thread(own_server.kill)
    with pytest.raises(AshConnectionError) as lost:
        await running
    assert lost.value.code == "connection_lost"
    await asyncio.to_thread(own_server.start)
    assert (await own_client.get_session_file(session, "runs"))["content"] == "once\n"
    await own_client.end_session(session)
