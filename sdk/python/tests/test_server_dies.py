"""The server is killed in the middle of a turn and started again: iterators lose nothing and repeat nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import pytest
from both import Kind, connect
from reading import rest, text_of, until
from server import Server, kill_agent

from ash_client import AshConnectionError, AsyncAshClient, RetryPolicy, TurnInterrupted
from ash_client.types import StreamEvent

pytestmark = pytest.mark.anyio

How = Literal["kill", "stop"]

# A call of a tool that waits for the test, then text whose first word comes before the test lets the others follow.
MESSAGE = "run: mkfifo gate && cat gate\nhold go: one two three"


@pytest.fixture
async def session(own_client: AsyncAshClient) -> str:
    return (await own_client.create_session("default"))["id"]


async def kill_and_restart(server: Server) -> None:
    await end_and_restart(server, "kill")


async def end_and_restart(server: Server, how: How) -> None:
    await asyncio.to_thread(server.kill if how == "kill" else server.stop)
    await asyncio.to_thread(server.start)


both_ways = pytest.mark.parametrize("how", ["kill", "stop"])


async def open_gate(client: AsyncAshClient, session: str) -> None:
    await client.exec(session, "until [ -p gate ]; do :; done; echo through > gate")


async def open_hold(client: AsyncAshClient, session: str) -> None:
    try:
        await client.write_session_files(session, {"go": ""})
    except AshConnectionError:
        # On a connection of the server that stopped. The client does not repeat a write by itself.
        await client.write_session_files(session, {"go": ""})


async def seen_by_a_new_client(client: AsyncAshClient, session: str, message: str, key: str) -> list[StreamEvent]:
    """The turn as the server shows it to a client that was never cut off."""
    stream = client.send_message_stream(session, message, idempotency_key=key, include_partial_messages=True)
    return await rest(stream)


async def read_to(stream: AsyncIterator[StreamEvent], phase: str | None, events: list[StreamEvent]) -> None:
    """Collects events up to the first of this name, or to the end."""
    async for event in stream:
        events.append(event)
        if event.event == phase:
            return


@pytest.mark.parametrize(
    "phases", [["session_start"], ["tool_use"], ["tool_result"], ["text_delta"], ["turn_complete"]]
)
async def test_a_killed_server_is_invisible_to_the_reader_of_a_turn(
    own_client: AsyncAshClient, own_server: Server, session: str, phases: list[str]
) -> None:
    await check_phases(own_client, own_server, session, phases)


async def test_a_server_that_is_killed_again_and_again_is_invisible(
    own_client: AsyncAshClient, own_server: Server, session: str
) -> None:
    phases = ["session_start", "tool_use", "tool_result", "text_delta", "turn_complete"]
    await check_phases(own_client, own_server, session, phases)


async def check_phases(client: AsyncAshClient, server: Server, session: str, phases: list[str]) -> None:
    """Kills the server when the reader has seen the first event of each of these names."""
    stream = client.send_message_stream(session, MESSAGE, idempotency_key="once", include_partial_messages=True)
    events: list[StreamEvent] = []
    for phase in ["session_start", "tool_use", "tool_result", "text_delta", "turn_complete"]:
        if phase == "tool_result":
            await open_gate(client, session)
        if phase == "turn_complete":
            await open_hold(client, session)
        await read_to(stream, phase, events)
        if phase in phases:
            await kill_and_restart(server)
    await read_to(stream, None, events)
    assert events[-1].event == "done" and events[-1].data["status"] == "done"
    assert text_of(events) == "through\none two three"
    assert events == await seen_by_a_new_client(client, session, MESSAGE, "once")
    assert [message["role"] for message in await client.list_messages(session)].count("user") == 1


@both_ways
async def test_a_message_that_waits_survives_the_server(
    own_client: AsyncAshClient, own_server: Server, session: str, how: How
) -> None:
    first = own_client.send_message_stream(session, "hold go: one two three", include_partial_messages=True)
    await until(first, "text_delta")
    second = own_client.send_message_stream(
        session, "run: echo second", idempotency_key="second", include_partial_messages=True
    )
    events: list[StreamEvent] = []
    await read_to(second, "session_start", events)
    await end_and_restart(own_server, how)
    reading = asyncio.create_task(read_to(second, None, events))
    await open_hold(own_client, session)
    assert (await until(first, "done")).data["status"] == "done"
    await reading
    assert text_of(events) == "second"
    assert events == await seen_by_a_new_client(own_client, session, "run: echo second", "second")


async def test_a_message_to_a_dead_server_waits_for_it(
    own_client: AsyncAshClient, own_server: Server, session: str
) -> None:
    await asyncio.to_thread(own_server.kill)
    reading = asyncio.create_task(rest(own_client.send_message_stream(session, "run: echo hi")))
    answering = asyncio.create_task(own_client.send_message(session, "run: echo ho"))
    await asyncio.to_thread(own_server.start)
    assert [event.event for event in await reading][-1] == "done"
    assert (await answering)["text"] == "ho"
    texts = [message["content"] for message in await own_client.list_messages(session) if message["role"] == "user"]
    assert sorted(text.split("echo ")[1][:2] for text in texts) == ["hi", "ho"]


@both_ways
async def test_an_answer_that_is_waited_for_comes_from_the_next_server(
    own_client: AsyncAshClient, own_server: Server, session: str, how: How
) -> None:
    follower = own_client.stream_session(session)
    answering = asyncio.create_task(own_client.send_message(session, "hold go: one two three"))
    await until(follower, "text_delta")
    await end_and_restart(own_server, how)
    await open_hold(own_client, session)
    assert (await answering)["text"] == "one two three"
    await follower.aclose()


async def test_a_server_that_stops_in_good_order_is_invisible(
    own_client: AsyncAshClient, own_server: Server, session: str
) -> None:
    stream = own_client.send_message_stream(
        session, "hold go: one two three", idempotency_key="once", include_partial_messages=True
    )
    events: list[StreamEvent] = []
    await read_to(stream, "text_delta", events)
    await asyncio.to_thread(own_server.stop)
    await asyncio.to_thread(own_server.start)
    await open_hold(own_client, session)
    await read_to(stream, None, events)
    assert events[-1].event == "done" and events[-1].data["status"] == "done"
    seen = await seen_by_a_new_client(own_client, session, "hold go: one two three", "once")
    assert events == seen


async def test_a_follower_of_a_session_sees_every_event_once(
    own_client: AsyncAshClient, own_server: Server, session: str
) -> None:
    follower = own_client.stream_session(session)
    seen: list[StreamEvent] = []
    stream = own_client.send_message_stream(session, MESSAGE)
    await read_to(stream, "tool_use", [])
    await read_to(follower, "tool_use", seen)
    await kill_and_restart(own_server)
    await open_gate(own_client, session)
    await read_to(follower, "text_delta", seen)
    await kill_and_restart(own_server)
    await open_hold(own_client, session)
    await rest(stream)
    await own_client.end_session(session)
    seen += await rest(follower)
    assert seen[-1].event == "ended"
    assert seen == await rest(own_client.stream_session(session))
    for place, event in enumerate(seen):
        assert await rest(own_client.stream_session(session, last_event_id=event.id)) == seen[place + 1 :]


async def test_a_server_that_stays_away_is_an_error(own_server: Server, kind: Kind) -> None:
    patience = RetryPolicy(max_attempts=2, initial_delay=0.01, max_outage=0.3)
    client = connect(kind, own_server.url, own_server.key, patience)
    session = (await client.create_session("default"))["id"]
    stream = client.send_message_stream(session, "hold go: one two three", include_partial_messages=True)
    await until(stream, "text_delta")
    await asyncio.to_thread(own_server.kill)
    with pytest.raises(AshConnectionError) as lost:
        await rest(stream)
    assert lost.value.code == "not_connected"
    with pytest.raises(AshConnectionError):
        await client.get_session(session)
    await client.aclose()


async def test_a_turn_that_is_cut_says_so_and_continues_when_it_is_sent_again(
    own_client: AsyncAshClient, session: str
) -> None:
    """The agent dies, not the server."""
    key, message = "once", "run: [ -e again ] || { touch again; kill -9 $PPID; }; echo survived"
    with pytest.raises(TurnInterrupted) as cut:
        await rest(own_client.send_message_stream(session, message, idempotency_key=key))
    assert cut.value.queued is True and cut.value.idempotency_key == key
    events = await rest(own_client.send_message_stream(session, message, idempotency_key=key))
    assert events[-1].event == "done" and events[-1].data["status"] == "done"


async def test_a_turn_continues_when_the_agent_dies_together_with_the_server(
    own_client: AsyncAshClient, own_server: Server, session: str
) -> None:
    message = "run: echo first\nhold go: one two three"
    stream = own_client.send_message_stream(session, message, idempotency_key="once", include_partial_messages=True)
    events: list[StreamEvent] = []
    await read_to(stream, "text_delta", events)
    agents = [event.data["session_id"] for event in events if event.event == "message" and "session_id" in event.data]
    await asyncio.to_thread(own_server.kill)
    kill_agent(agents[0])
    await asyncio.to_thread(own_server.start)
    reading = asyncio.create_task(read_to(stream, None, events))
    await open_hold(own_client, session)
    await reading
    assert "turn_continued" in [event.event for event in events]
    assert events[-1].event == "done" and events[-1].data["status"] == "done"
    assert events == await seen_by_a_new_client(own_client, session, message, "once")
