"""A session read back: its conversation, its log, and its stream in a browser."""

from __future__ import annotations

import urllib.request

import pytest
from server import Server

from ash_client import AsyncAshClient
from ash_client.types import KnownBlockToolCall

pytestmark = pytest.mark.anyio


async def test_a_stream_token_opens_a_stream_without_a_key(client: AsyncAshClient, server: Server) -> None:
    session = (await client.create_session("default"))["id"]
    token = await client.create_stream_token(session)
    await client.end_session(session)
    with urllib.request.urlopen(f"{server.url}/api/sessions/{session}/stream?token={token['token']}") as stream:
        assert b"event: ended" in stream.read()


async def test_a_conversation_has_calls_with_their_results(client: AsyncAshClient) -> None:
    session = (await client.create_session("default"))["id"]
    await client.send_message(session, "run: echo hi")
    conversation = await client.get_conversation(session)
    assert [item["role"] for item in conversation["items"]][0] == "user"
    blocks = [block for item in conversation["items"] for block in item["blocks"]]
    calls: list[KnownBlockToolCall] = [block for block in blocks if block["type"] == "tool_call"]
    result = calls[0]["result"]
    assert result is not None and (result["content"].strip(), result["isError"]) == ("hi", False)
    first = await client.get_conversation(session, limit=1, checkpoint=1)
    assert first["nextAfter"] is not None
    rest = await client.get_conversation(session, after=first["nextAfter"])
    assert first["items"] + rest["items"] == conversation["items"]


async def test_the_log_has_the_events_of_the_stream(client: AsyncAshClient) -> None:
    session = (await client.create_session("default"))["id"]
    await client.send_message(session, "run: echo hi")
    await client.end_session(session)
    followed = {event.id: event async for event in client.stream_session(session, include_partial_messages=False)}
    log = await client.get_session_log(session)
    assert {"tool_use", "tool_result", "done", "ended"} <= {event["event"] for event in log["events"]}
    assert [event["id"] for event in log["events"]] == list(followed)
    for event in log["events"]:
        streamed = followed[event["id"]]
        assert (streamed.event, streamed.data) == (event["event"], event["data"])
    page = await client.get_session_log(session, after=0, limit=1)
    assert page["events"] == log["events"][:1]
