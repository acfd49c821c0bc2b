"""Creates a session, sends a message, and reads a file that the agent wrote.

ASH_SERVER_URL=http://localhost:4100 ASH_API_KEY=ash_… python hello.py
"""

from ash_client import AshClient

with AshClient() as client:
    session = client.create_session("default")
    result = client.send_message(session["id"], "write hello.txt: hello, world")
    print(result["status"], result["text"])
    print(client.get_session_file(session["id"], "hello.txt")["content"])

    # The session rests, and comes back with everything.
    client.pause_session(session["id"])
    receipt = client.resume_session(session["id"])["resume"]
    print("verified:", receipt and receipt["verified"])
