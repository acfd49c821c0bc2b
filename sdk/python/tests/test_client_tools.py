"""Client tools against the real server: its own agent calls them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import answering_client
import httpx
import pytest
from both import Kind, connect
from examples_of_users import start_example, start_program
from reading import rest, until
from server import Server, kill_agent

from ash_client import AsyncAshClient, ConflictError, Tool, tool
from ash_client.types import StreamEvent

pytestmark = pytest.mark.anyio

ADD = 'call add: {"a": 2, "b": 3}'
# The turn does not end before the test lets it.
HELD = f"{ADD}\nhold go: one two"
CALLS: list[tuple[int, int]] = []


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    CALLS.append((a, b))
    return a + b


@tool
def fail(why: str) -> str:
    """Raises an exception."""
    raise ValueError(why)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


async def session_with(client: AsyncAshClient, *tools: Tool[..., Any]) -> str:
    return (await client.create_session("default", tools=tools, tool_timeout=300, on_tool_timeout="fail"))["id"]


async def restart(server: Server) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


def end_of(events: list[StreamEvent]) -> tuple[str, list[str | None]]:
    """How the turn ended, and its text."""
    last = events[-1]
    assert last.event == "done"
    return last.data["status"], [event.data["result"] for event in events if event.event == "turn_complete"]


async def test_a_call_is_answered_by_its_function(client: AsyncAshClient) -> None:
    session = await session_with(client, add)
    events = await rest(client.send_message_stream(session, ADD, tools=[add], idempotency_key="once"))
    requested = [event for event in events if event.event == "tool_requested"]
    answered = [event for event in events if event.event == "tool_answered"]
    assert [event.data["input"] for event in requested] == [{"a": 2, "b": 3}]
    assert [(event.data["id"], event.data.get("result"), event.data["by"]) for event in answered] == [
        (requested[0].data["id"], 5, "client")
    ]
    assert (end_of(events), CALLS) == (("done", ["5"]), [(2, 3)])
    assert await rest(client.send_message_stream(session, ADD, tools=[add], idempotency_key="once")) == events
    assert CALLS == [(2, 3)], "a call that has its answer is not made again"


async def test_two_calls_of_one_answer_are_answered(client: AsyncAshClient) -> None:
    session = await session_with(client, add, fail)
    message = 'call add: {"a": 1, "b": 1} and call fail: {"why": "no"}'
    events = await rest(client.send_message_stream(session, message, tools=[add, fail]))
    answered = [event.data for event in events if event.event == "tool_answered"]
    assert [answer.get("result", answer.get("error")) for answer in answered] == [2, "ValueError: no"]
    assert (end_of(events)[0], CALLS) == ("done", [(1, 1)])


async def test_a_call_with_an_input_that_does_not_fit_is_answered(client: AsyncAshClient) -> None:
    session = await session_with(client, add)
    events = await rest(client.send_message_stream(session, 'call add: {"c": 1}', tools=[add]))
    errors = [event.data.get("error", "") for event in events if event.event == "tool_answered"]
    assert len(errors) == 1 and errors[0].startswith("TypeError")
    assert (end_of(events)[0], CALLS) == ("done", [])


async def test_a_call_can_be_answered_by_hand_and_only_once(client: AsyncAshClient) -> None:
    session = await session_with(client, add)
    stream = client.send_message_stream(session, ADD)
    requested = (await until(stream, "tool_requested")).data
    listed = await client.list_tool_calls(session)
    assert listed["tools"] == [add.declaration]
    assert [call["id"] for call in listed["calls"]] == [requested["id"]]
    assert [call["id"] for call in (await client.get_session(session))["pendingTools"]] == [requested["id"]]
    for _ in range(2):
        receipt = await client.answer_tool_call(session, requested["id"], result=5)
        assert receipt == {"id": requested["id"], "answered": True}
    with pytest.raises(ConflictError) as refused:
        await client.answer_tool_call(session, requested["id"], error="no")
    assert refused.value.code == "tool_answered"
    assert (await rest(stream))[-1].event == "done"
    assert (await client.list_tool_calls(session))["calls"] == []


async def test_calls_of_a_locked_session_are_answered(client: AsyncAshClient) -> None:
    session = await session_with(client, add)
    lock = (await client.acquire_lock(session))["token"]
    events = await rest(client.send_message_stream(session, ADD, tools=[add], lock=lock))
    assert (end_of(events), CALLS) == (("done", ["5"]), [(2, 3)])
    stream = client.send_message_stream(session, ADD, lock=lock)
    await until(stream, "tool_requested")
    follower = client.stream_session(session, tools=[add], lock=lock)
    await until(follower, "tool_answered")
    await follower.aclose()
    assert (end_of(await rest(stream)), len(CALLS)) == (("done", ["5"]), 2)
    stream = client.send_message_stream(session, ADD, lock=lock)
    call = (await until(stream, "tool_requested")).data["id"]
    assert (await client.answer_tool_call(session, call, result=7, lock=lock))["answered"]
    assert end_of(await rest(stream)) == ("done", ["7"])


async def test_an_answer_that_comes_too_late_is_no_failure(client: AsyncAshClient) -> None:
    session = await session_with(client, add)
    other = client.stream_session(session)

    async def interrupted() -> None:
        await until(other, "tool_requested")
        await client.interrupt_session(session)
        await until(other, "tool_answered")
        release.set()

    release = threading.Event()

    @tool(name="add")
    def slow(a: int, b: int) -> int:
        """Waits until its call was withdrawn."""
        CALLS.append((a, b))
        assert release.wait(60)
        return a + b

    interrupting = asyncio.create_task(interrupted())
    events = await rest(client.send_message_stream(session, ADD, tools=[slow]))
    await interrupting
    await other.aclose()
    assert [event.data["by"] for event in events if event.event == "tool_answered"] == ["cancelled"]
    assert (end_of(events)[0], CALLS) == ("interrupted", [(2, 3)])


async def test_a_client_that_comes_back_answers(client: AsyncAshClient) -> None:
    session = await session_with(client, add)
    stream = client.send_message_stream(session, ADD)
    requested = await until(stream, "tool_requested")
    await stream.aclose()
    follower = client.stream_session(session, last_event_id=requested.id, tools=[add])
    assert (await until(follower, "done")).data["status"] == "done"
    await follower.aclose()
    assert CALLS == [(2, 3)]


async def whole_turn(client: AsyncAshClient, session: str, events: list[StreamEvent], message: str = ADD) -> None:
    """The turn went well, and every client sees the same of it."""
    assert end_of(events) == ("done", ["5" if message == ADD else "5\none two"])
    for name in ("tool_requested", "tool_answered"):
        assert [event.event for event in events].count(name) == 1
    assert events == await rest(client.send_message_stream(session, message, tools=[add], idempotency_key="once"))
    assert CALLS == [(2, 3)]
    items = (await client.get_conversation(session))["items"]
    calls = [block for item in items for block in item["blocks"] if block["type"] == "tool_call"]
    assert [call["result"] for call in calls] == [{"content": "5", "isError": False}]


@pytest.mark.parametrize("phases", [["tool_requested"], ["tool_answered"], ["tool_requested", "tool_answered"]])
async def test_a_call_survives_the_server(own_client: AsyncAshClient, own_server: Server, phases: list[str]) -> None:
    """The server is killed before the function runs, and between its answer and the end of the turn."""
    session = await session_with(own_client, add)
    events: list[StreamEvent] = []
    async for event in own_client.send_message_stream(session, HELD, tools=[add], idempotency_key="once"):
        events.append(event)
        if event.event in phases:
            await restart(own_server)
        if event.event == "tool_answered":
            await own_client.write_session_files(session, {"go": ""})
    await whole_turn(own_client, session, events, HELD)


async def test_a_call_survives_a_server_that_is_killed_while_its_function_runs(
    own_client: AsyncAshClient, own_server: Server
) -> None:
    @tool(name="add")
    def killing(a: int, b: int) -> int:
        """Adds two numbers."""
        own_server.kill()
        own_server.start()
        return add(a, b)

    session = await session_with(own_client, add)
    events = await rest(own_client.send_message_stream(session, ADD, tools=[killing], idempotency_key="once"))
    await whole_turn(own_client, session, events)


async def test_a_call_survives_a_server_that_is_away_when_its_function_returns(
    own_client: AsyncAshClient, own_server: Server
) -> None:
    """The server comes back when the client has tried in vain to give its answer."""
    session = await session_with(own_client, add)
    returned = threading.Event()

    @tool(name="add")
    def killing(a: int, b: int) -> int:
        """Adds two numbers."""
        own_server.kill()
        returned.set()
        return add(a, b)

    async def come_back() -> None:
        await asyncio.to_thread(returned.wait, 60)
        await asyncio.sleep(1)
        await asyncio.to_thread(own_server.start)

    coming = asyncio.create_task(come_back())
    events = await rest(own_client.send_message_stream(session, ADD, tools=[killing], idempotency_key="once"))
    await coming
    await whole_turn(own_client, session, events)


async def test_an_answer_whose_receipt_is_lost_is_given_again(own_server: Server, kind: Kind) -> None:
    """The server has stored the answer, and dies before the client learns it."""
    client = connect(kind, own_server.url, own_server.key)
    statuses = lose_the_first_receipt(client, own_server)
    session = await session_with(client, add)
    events = await rest(client.send_message_stream(session, ADD, tools=[add], idempotency_key="once"))
    assert statuses == [200, 200]
    await whole_turn(client, session, events)
    await client.aclose()


def lose_the_first_receipt(client: AsyncAshClient, server: Server) -> list[int]:
    """Kills the server when it has sent its first receipt of an answer, which never arrives."""
    statuses: list[int] = []

    def is_lost(response: httpx.Response) -> bool:
        if response.request.method != "POST" or "/tools/" not in response.request.url.path:
            return False
        statuses.append(response.status_code)
        return len(statuses) == 1

    def kill_server(response: httpx.Response) -> None:
        server.kill()
        server.start()
        raise httpx.ReadError("the receipt is lost", request=response.request)

    async def hook_async(response: httpx.Response) -> None:
        if is_lost(response):
            await asyncio.to_thread(kill_server, response)

    def hook(response: httpx.Response) -> None:
        if is_lost(response):
            kill_server(response)

    recorder: Any = client
    http = recorder._http
    hooks: dict[str, list[Callable[..., Any]]] = http.event_hooks
    http.event_hooks = {"response": [*hooks["response"], hook_async if isinstance(http, httpx.AsyncClient) else hook]}
    return statuses


@pytest.mark.parametrize("phase", ["tool_requested", "tool_answered"])
async def test_a_call_survives_the_agent_and_the_server(
    own_client: AsyncAshClient, own_server: Server, phase: str
) -> None:
    """The next agent repeats the call under its id, or has its answer already."""
    session = await session_with(own_client, add)
    events: list[StreamEvent] = []
    agents: list[str] = []
    killed = False
    async for event in own_client.send_message_stream(session, HELD, tools=[add], idempotency_key="once"):
        events.append(event)
        if event.event == "message" and "session_id" in event.data:
            agents.append(event.data["session_id"])
        if event.event == phase and not killed:
            killed = True
            await asyncio.to_thread(own_server.kill)
            kill_agent(agents[0])
            await asyncio.to_thread(own_server.start)
        if event.event == "tool_answered":
            await own_client.write_session_files(session, {"go": ""})
    assert "turn_continued" in [event.event for event in events]
    assert end_of(events) == ("done", ["5\none two"])
    assert len({event.data["id"] for event in events if event.event == "tool_requested"}) == 1
    assert CALLS == [(2, 3)]


@pytest.mark.parametrize("halt", ["before", "after"])
@pytest.mark.parametrize("server_dies", [False, True])
async def test_another_client_takes_over(
    own_client: AsyncAshClient, own_server: Server, tmp_path: Path, halt: str, server_dies: bool
) -> None:
    """The client dies before its function runs, or after its answer."""
    journal = tmp_path / "journal"
    session = await session_with(own_client, add)
    first = start_client(own_server, "send", session, str(journal), halt)
    assert first.stdout is not None
    assert await asyncio.to_thread(first.stdout.readline) == f"{halt}\n"
    if server_dies:
        await asyncio.to_thread(own_server.kill)
    first.kill()
    first.communicate()
    if server_dies:
        await asyncio.to_thread(own_server.start)
    second = start_client(own_server, "follow", session, str(journal))
    output, _ = await asyncio.to_thread(second.communicate, timeout=60)
    assert (output, second.returncode) == ("done\n", 0)
    assert [line.split(": ")[1] for line in journal.read_text().splitlines()] == ["2 + 3"]


async def test_a_client_that_dies_in_its_function_has_not_answered(
    own_client: AsyncAshClient, own_server: Server, tmp_path: Path
) -> None:
    """Whether the function took effect, only the function can know."""
    journal = tmp_path / "journal"
    session = await session_with(own_client, add)
    first = start_client(own_server, "send", session, str(journal), "during")
    assert first.stdout is not None
    assert await asyncio.to_thread(first.stdout.readline) == "during\n"
    first.kill()
    first.communicate()
    second = start_client(own_server, "send", session, str(journal))
    output, _ = await asyncio.to_thread(second.communicate, timeout=60)
    assert (output, second.returncode) == ("done\n", 0)
    processes = [line.split(": ")[0] for line in journal.read_text().splitlines()]
    assert processes == [str(first.pid), str(second.pid)]


def start_client(server: Server, *arguments: str) -> Any:
    return start_program(Path(answering_client.__file__), server, *arguments)


async def test_the_example_of_a_client_tool_survives_the_server(own_server: Server) -> None:
    with start_example("client_tool.py", own_server) as example:
        assert example.stdout is not None
        output = example.stdout.readline()
        await restart(own_server)
        # Not `communicate`, which would lose what is buffered.
        output += await asyncio.to_thread(example.stdout.read)
    assert example.returncode == 0
    lines = output.splitlines()
    assert lines[0] == "call: stock {'article': 'nut'}"
    assert sorted(line for line in lines if line.startswith("looking for")) == ["looking for bolt", "looking for nut"]
    assert sorted(line for line in lines if line.startswith("answer:")) == ["answer: 1150", "answer: 1200"]
    assert lines[-2:] == ["1150", "1200"]
