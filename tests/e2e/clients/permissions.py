"""A client that was written before agents could ask for leave: it hands the new events on. URL and key as arguments."""

import sys

import httpx
from ash_sdk import AshClient
from ash_sdk import streaming as s

url, key = sys.argv[1:]
client = AshClient(url, token=key)
api = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, trust_env=False)

session = client.create_session("coder", permission_mode="default")
events, asked = [], None
for event in client.send_message_stream(session.id, "run: echo made > file"):
    events.append(event)
    if isinstance(event, s.StreamEvent) and event.event == "permission_request":
        asked = event.data
        answer = api.post(f"/api/sessions/{session.id}/permissions/{asked['id']}", json={"behavior": "allow"})
        assert answer.status_code == 200, answer.text

kinds = [event.event if isinstance(event, s.StreamEvent) else type(event).__name__ for event in events]
assert asked["tool"] == "Bash" and asked["input"]["command"] == "echo made > file", asked
assert kinds.index("permission_request") < kinds.index("permission_answered"), kinds
assert kinds[-1] == "DoneEvent" and "ErrorEvent" not in kinds, kinds
assert client.get_session(session.id).status == "active"
assert len(client.list_sessions()) == 2
print("all good")
