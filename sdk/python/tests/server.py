"""The server under test: the real binary with an empty data directory, which tests can kill and start again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep

DEADLINE = 60.0
# The servers are on this machine, whatever proxy it uses.
os.environ["NO_PROXY"] = "127.0.0.1"
INTERNAL_SECRET = "internal-secret-of-the-tests"


def binary() -> str:
    found = os.environ.get("ASH_BIN") or shutil.which("ash")
    if found is None:
        raise FileNotFoundError("set ASH_BIN to the ash binary, or add it to the PATH")
    return found


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = monotonic() + DEADLINE
    while not condition():
        if monotonic() > end:
            raise TimeoutError(f"waited in vain for {what}")
        sleep(0.02)


class Server:
    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.data = folder / "data"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ASH_DATA_DIR": str(self.data),
            "ASH_PORT": str(self.port),
            "ASH_STOP_GRACE": "0",
            "ASH_INTERNAL_SECRET": INTERNAL_SECRET,
            "ASH_RETENTION": "ended:365d=purge",
            **(environment or {}),
        }

    @property
    def key(self) -> str:
        return (self.data / "initial-api-key").read_text().strip()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [binary(), "serve"], env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for(self._is_ready, "the server")

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the server ended: {self._log.read_text()}")
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(json.load(answer)["status"] == "ok")
        except OSError:
            return False

    def kill(self) -> None:
        """Without a chance to save anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In good order: all sessions are saved, all sandboxes end."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(DEADLINE)
        self._process = None

    def ensure_running(self) -> None:
        if self._process is None:
            self.start()

    def remove(self) -> None:
        """Ends also the sandboxes that a killed server left."""
        self.ensure_running()
        self.stop()


def kill_agent(conversation: str) -> None:
    """Kills the agent that has this conversation, which its first message names. Its sandbox has pids of its own."""
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue  # It has ended.
        if arguments[1:4] == ["builtin-agent", "--session-id", conversation]:
            os.kill(int(process.name), signal.SIGKILL)
            killed += 1
    assert killed == 1, f"{killed} agents have the conversation {conversation}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
