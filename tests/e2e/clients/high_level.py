"""The client that others use, as its own documentation uses it. URL, key and an agent's folder as arguments."""

import asyncio
import sys
import uuid

import httpx
from ash_sdk import AshClient
from ash_sdk import streaming as s

url, key, folder = sys.argv[1:]
client = AshClient(url, token=key)


def refused(status, call, *args):
    try:
        call(*args)
    except httpx.HTTPStatusError as error:
        assert error.response.status_code == status, error
        return error.response.json()
    raise AssertionError(f"not refused: {call.__name__}{args}")


def kinds(events):
    return [type(event).__name__ for event in events]


def say(session, text, **options):
    return list(client.send_message_stream(session.id, text, **options))


health = client.health()
assert health["status"] == "ok" and health["pool"]["maxCapacity"] > 0, health

# Agents
agent = client.deploy_agent("helper", folder)
assert (agent.name, agent.version) == ("helper", 1) and agent.path == folder, agent
assert client.deploy_agent("helper", folder).id == agent.id
assert [a.name for a in client.list_agents()] == ["helper"]
assert client.get_agent("helper").version == 2
assert refused(404, client.get_agent, "nobody")["error"] == "Agent not found"
assert refused(404, client.create_session, "nobody")["error"] == 'Agent "nobody" not found'
assert refused(401, AshClient(url).list_agents)["error"] == "Missing Authorization header"
assert refused(401, AshClient(url, token="wrong").list_agents)["error"] == "Invalid API key"

# A session and its stream
session = client.create_session(
    "helper",
    extra_env={"COLOUR": "blue"},
    model="some-model",
    system_prompt="You are a test.",
    permission_mode="bypassPermissions",
    allowed_tools=["run"],
    disallowed_tools=["fly"],
    mcp_servers={"x": {"url": "http://localhost:1/sse"}},
    betas=["b"],
    subagents={"a": {"description": "d", "prompt": "p"}},
    initial_agent="a",
)
# The agent accepts options that only other agents use, and the session lists them.
assert sorted(session["ignoredOptions"]) == ["betas", "initialAgent", "mcpServers", "subagents"], session
assert isinstance(session.id, uuid.UUID) and session.status == "active" and session.agent_name == "helper"
assert session["model"] == "some-model", session

events = say(session, "run: echo $COLOUR; echo lines >&2", include_partial_messages=True)
seen = kinds(events)
assert seen[0] == "SessionStartEvent" and seen[-1] == "DoneEvent", seen
for kind in ["MessageEvent", "TextDeltaEvent", "ToolUseEvent", "ToolResultEvent", "TurnCompleteEvent"]:
    assert kind in seen, (kind, seen)
assert "StreamEvent" not in seen and "ErrorEvent" not in seen, events
assert events[0].session_id == str(session.id) and events[-1].session_id == str(session.id)
tool = next(e for e in events if isinstance(e, s.ToolUseEvent))
result = next(e for e in events if isinstance(e, s.ToolResultEvent))
assert tool.id == result.tool_use_id and tool.name == "run" and "echo $COLOUR" in tool.input["command"]
assert result.content.strip() == "blue" and not result.is_error, result
complete = next(e for e in events if isinstance(e, s.TurnCompleteEvent))
text = "".join(e.delta for e in events if isinstance(e, s.TextDeltaEvent))
assert complete.result in text and "blue" in complete.result, (complete, text)

plain = kinds(say(session, "hello", model="other", max_turns=5, max_budget_usd=1.5, effort="low",
                  thinking={"type": "enabled", "budgetTokens": 1000}, output_format={"type": "json_schema", "schema": {}}))
assert "TextDeltaEvent" not in plain and plain[-1] == "DoneEvent", plain

# Separators that Python treats as line ends must not break a frame.
odd = "a\u2028b\u2029c\u0085d"
events = say(session, f"run: printf '%s' '{odd}'", include_partial_messages=True)
complete = next(e for e in events if isinstance(e, s.TurnCompleteEvent))
assert complete.result == odd, complete
assert "".join(e.delta for e in events if isinstance(e, s.TextDeltaEvent)).endswith(odd)


async def in_async():
    return [event async for event in client.asend_message_stream(session.id, "write kept.txt: kept")]


assert kinds(asyncio.run(in_async()))[-1] == "DoneEvent"

# Its life
assert client.pause_session(session.id).status == "paused"
assert refused(400, client.pause_session, session.id)["error"] == 'Cannot pause session with status "paused"'
assert [x.id for x in client.list_sessions(agent="helper", status="paused")] == [session.id]
assert client.resume_session(session.id).status == "active"
assert client.stop_session(session.id).status == "stopped"
assert client.resume_session(session.id).status == "active"
complete = [e for e in say(session, "read kept.txt") if isinstance(e, s.TurnCompleteEvent)]
assert complete[0].result == "kept", complete
fork = client.fork_session(session.id)
assert fork.status == "paused" and fork.parent_session_id == session.id, fork
complete = [e for e in say(fork, "what do you remember?") if isinstance(e, s.TurnCompleteEvent)]
assert "This is turn 6" in complete[0].result, complete
assert {x.id for x in client.list_sessions()} == {session.id, fork.id}
assert client.list_sessions(agent="other") == []
assert client.get_session(fork.id).status == "active"
assert client.end_session(fork.id).status == "ended"
assert client.end_session(fork.id).status == "ended"
assert refused(410, client.resume_session, fork.id)["error"].startswith("Session has ended")
assert refused(404, client.get_session, uuid.uuid4())["error"] == "Session not found"
assert client.end_session(session.id).status == "ended"
client.delete_agent("helper")
assert client.list_agents() == []
print("all good")
