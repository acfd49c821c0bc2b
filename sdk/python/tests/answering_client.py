"""A client as a process of its own, which a test can kill. It sends or follows, and writes down what its tool does.

python answering_client.py send|follow SESSION JOURNAL [before|during|after]

The last argument says where it waits for ever: before the tool runs, in the tool, or after its answer was accepted.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ash_client import AshClient, tool

MESSAGE = 'call add: {"a": 2, "b": 3}'


def run(how: str, session: str, journal: Path, halt: str) -> None:
    def note(text: str) -> None:
        with journal.open("a") as file:
            file.write(f"{text}\n")

    def halt_at(place: str) -> None:
        if place == halt:
            print(place, flush=True)
            signal.pause()

    @tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        note(f"{os.getpid()}: {a} + {b}")
        halt_at("during")
        return a + b

    with AshClient() as client:
        if how == "send":
            events = client.send_message_stream(session, MESSAGE, tools=[add], idempotency_key="once")
        else:
            events = client.stream_session(session, tools=[add])
        for event in events:
            if event.event == "tool_requested":
                halt_at("before")
            elif event.event == "tool_answered":
                halt_at("after")
            elif event.event == "done":
                print(event.data["status"], flush=True)
                return


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), (sys.argv + [""])[4])
