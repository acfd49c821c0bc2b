"""What programs written for another SDK do with sessions, with the client from PyPI. URL, key, what to do, and an id."""

import json
import sys
import time
import uuid

import httpx
from ash_sdk import AshClient
from ash_sdk import streaming as s

url, key, what, *args = sys.argv[1:]
client = AshClient(url, token=key)


def send_and_wait(session_id, prompt):
    events = list(client.send_message_stream(session_id, prompt))
    return next(e for e in events if isinstance(e, s.TurnCompleteEvent)).result


def create(session_id):
    """This client has no argument for an id of one's own, and takes ids for UUIDs."""
    body = {"agent": "tester", "sessionId": session_id}
    made = httpx.post(f"{url}/api/sessions", json=body, headers={"Authorization": f"Bearer {key}"})
    made.raise_for_status()
    send_and_wait(session_id, "the tower is high")
    return made.json()["session"]["id"]


def resume(session_id):
    session = client.resume_session(session_id)
    return {"id": str(session.id), "status": session.status, "text": send_and_wait(session.id, "what was it?")}


def say(session_id):
    """To any id: a message wakes a session that rests."""
    return send_and_wait(session_id, "what was it?")


def ids():
    def create_session_id(user_id: str, task_type: str) -> str:
        return f"{user_id}-{task_type}-{int(time.time())}"

    return create(create_session_id("alice", "code-review"))


def cleanup(kept):
    """All but one."""
    gone = [session.id for session in client.list_sessions() if str(session.id) != kept]
    for session_id in gone:
        client.end_session(session_id)
    return sorted((str(session.id), session.status) for session in client.list_sessions())


def destroy():
    session = client.create_session("tester")
    try:
        send_and_wait(session.id, "write done.txt: the task is complete")
        raise RuntimeError("something else went wrong")
    except RuntimeError:
        pass
    finally:
        client.end_session(session.id)
    return client.get_session(session.id).status


def foreign(session_id):
    try:
        client.resume_session(session_id)
    except httpx.HTTPStatusError as error:
        return [error.response.status_code, error.response.json()["code"]]
    raise AssertionError("not refused")


def name(text):
    return str(uuid.uuid5(uuid.NAMESPACE_URL, text))


programs = [create, resume, say, ids, cleanup, destroy, foreign, name]
print(json.dumps(next(program for program in programs if program.__name__ == what)(*args)))
