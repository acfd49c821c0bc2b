"""The generated functions of the Python client, which take every answer apart by its schema."""

import base64
import sys
import uuid

from ash_sdk import AuthenticatedClient
from ash_sdk import models as m
from ash_sdk.api.agents import delete_api_agents_name, get_api_agents, get_api_agents_name, post_api_agents
from ash_sdk.api.health import get_health
from ash_sdk.api.sessions import (
    delete_api_sessions_id,
    get_api_sessions,
    get_api_sessions_id,
    get_api_sessions_id_events,
    get_api_sessions_id_files,
    get_api_sessions_id_logs,
    get_api_sessions_id_messages,
    get_api_sessions_id_workspace,
    patch_api_sessions_id_config,
    post_api_sessions,
    post_api_sessions_id_exec,
    post_api_sessions_id_files,
    post_api_sessions_id_fork,
    post_api_sessions_id_messages,
    post_api_sessions_id_pause,
    post_api_sessions_id_resume,
    post_api_sessions_id_stop,
    post_api_sessions_id_workspace,
)
from ash_sdk.ash_client import AshClient

url, key, _ = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)


def call(function, *args, status=200, **options):
    answer = function.sync_detailed(*args, client=client, **options)
    assert answer.status_code == status, (function.__name__, answer.status_code, answer.content)
    return answer.parsed


health = call(get_health)
assert health.status == "ok" and health.pool.max_capacity > 0 and health.active_sessions == 0, health

# Agents
content = base64.b64encode(b"# helper\n").decode()
body = m.PostApiAgentsBody.from_dict({"name": "helper", "files": [{"path": "CLAUDE.md", "content": content}], "env": {"A": "b"}})
agent = call(post_api_agents, body=body, status=201).agent
assert agent.name == "helper" and agent["env"] == {"A": "***"}, agent
assert [a.id for a in call(get_api_agents).agents] == [agent.id]
assert call(get_api_agents_name, "helper").agent.version == 1
assert call(get_api_agents_name, "nobody", status=404).error == "Agent not found"

# Sessions
body = m.PostApiSessionsBody.from_dict({"agent": "helper", "extraEnv": {"C": "d"}})
session = call(post_api_sessions, body=body, status=201).session
assert session.status == "active", session
missing = call(post_api_sessions, body=m.PostApiSessionsBody(agent="nobody"), status=404)
assert (missing.error, missing.status_code) == ('Agent "nobody" not found', 404), missing
assert [x.id for x in call(get_api_sessions).sessions] == [session.id]
assert call(get_api_sessions_id, session.id).session.id == session.id
assert call(get_api_sessions_id, uuid.uuid4(), status=404).error == "Session not found"
body = m.PatchApiSessionsIdConfigBody.from_dict({"model": "m", "allowedTools": ["run"]})
assert call(patch_api_sessions_id_config, session.id, body=body).session["model"] == "m"
body = m.PostApiSessionsIdMessagesBody.from_dict({"content": ""})
assert call(post_api_sessions_id_messages, session.id, body=body, status=400).status_code == 400

# The conversation, with every kind of event
high = AshClient(url, token=key)
list(high.send_message_stream(session.id, "run: echo out; echo err >&2; exit 3"))
messages = call(get_api_sessions_id_messages, session.id).messages
assert [x.role for x in messages][0] == "user" and messages[-1].role == "assistant", messages
assert [x.sequence for x in messages] == sorted(x.sequence for x in messages)
rest = call(get_api_sessions_id_messages, session.id, after=messages[0].sequence, limit=1).messages
assert [x.id for x in rest] == [messages[1].id]
assert call(post_api_sessions_id_pause, session.id).session.status == "paused"
assert call(post_api_sessions_id_pause, session.id, status=400).error == 'Cannot pause session with status "paused"'
assert call(post_api_sessions_id_resume, session.id).session.status == "active"
assert call(post_api_sessions_id_stop, session.id).session.status == "stopped"
assert call(post_api_sessions_id_resume, session.id).session.status == "active"
events = call(get_api_sessions_id_events, session.id).events
types = {x.type_ for x in events}
assert {"text", "tool_start", "tool_result", "turn_complete", "lifecycle"} <= types, types
assert [x.type_ for x in call(get_api_sessions_id_events, session.id, type_="tool_start").events] == ["tool_start"]
assert len({x.id for x in events}) == len(events)
logs = call(get_api_sessions_id_logs, session.id)
assert logs.source == "sandbox", logs

# Exec and files
body = m.PostApiSessionsIdExecBody.from_dict({"command": "echo out; exit 3", "timeout": 5000})
done = call(post_api_sessions_id_exec, session.id, body=body)
assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", ""), done
file = {"path": "a/b.txt", "content": base64.b64encode(b"hello").decode()}
call(post_api_sessions_id_files, session.id, body=m.PostApiSessionsIdFilesBody.from_dict({"files": [file]}))
files = call(get_api_sessions_id_files, session.id)
assert {x.path: x.size for x in files.files} == {"CLAUDE.md": 9, "a/b.txt": 5}, files
assert call(get_api_sessions_id_files, session.id, include_hidden="false").files == files.files
bundle = get_api_sessions_id_workspace.sync_detailed(
    session.id, client=AuthenticatedClient(base_url=url, token=key)
).content
assert bundle[:2] == b"\x1f\x8b", bundle[:100]
body = m.PostApiSessionsIdWorkspaceBody(bundle=base64.b64encode(bundle).decode())
assert call(post_api_sessions_id_workspace, session.id, body=body).message == "Workspace restored to live sandbox"

# The end
fork = call(post_api_sessions_id_fork, session.id, status=201).session
assert fork.parent_session_id == session.id, fork
for one in [session, fork]:
    assert call(delete_api_sessions_id, one.id).session.status == "ended"
assert call(post_api_sessions_id_resume, session.id, status=410).error.startswith("Session has ended")
events = call(get_api_sessions_id_events, fork.id).events
assert "forked" in " ".join(str(x.data) for x in events)
assert call(delete_api_agents_name, "helper").ok
print("all good")
