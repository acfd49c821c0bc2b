"""Takes a session back to a checkpoint, and tries something else in a fork.

ASH_SERVER_URL=http://localhost:4100 ASH_API_KEY=ash_… python rewind_and_fork.py
"""

from ash_client import AshClient

with AshClient() as client:
    session = client.create_session("default")["id"]
    for text in ("write notes.txt: milk", "write notes.txt: milk and bread"):
        client.send_message(session, text)

    fork = client.fork_session(session, checkpoint=1)["id"]
    print("fork:", client.send_message(fork, "read notes.txt")["text"])

    rewound = client.rewind_session(session, 1)["rewound"]
    print("rewound:", client.send_message(session, "read notes.txt")["text"])
    client.rewind_session(session, rewound["from"] or 2)
    print("redone:", client.send_message(session, "read notes.txt")["text"])
