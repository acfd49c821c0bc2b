"""Runs programs that use the client, as their users would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from server import Server

EXAMPLES = Path(__file__).parent.parent / "examples"


def start_example(name: str, server: Server) -> subprocess.Popen[str]:
    return start_program(EXAMPLES / name, server)


def start_program(program: Path, server: Server, *arguments: str) -> subprocess.Popen[str]:
    """The running program, with its errors among its output."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONUNBUFFERED": "1",
        "ASH_SERVER_URL": server.url,
        "ASH_API_KEY": server.key,
    }
    return subprocess.Popen(
        [sys.executable, program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
