"""Server-sent events: bytes become frames, and ids become positions that can be compared. No input or output happens
here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_ID = re.compile(r"(\d{1,18})(?:\.(\d{1,18}))?(?:-(\d{1,18}))?")


@dataclass(frozen=True)
class Frame:
    """One event as the server sent it."""

    event: str
    data: Any
    id: str | None


@dataclass(frozen=True, order=True)
class Position:
    """A position in the log of a session. `41` is after event 41, `41.7` after the seventh delta that follows it, and
    `42-1` after the first frame of event 42."""

    event: int
    delta: int = 0
    frame: float = float("inf")

    @staticmethod
    def parse(text: str) -> Position | None:
        found = _ID.fullmatch(text)
        if found is None:
            return None
        event, delta, frame = found.groups()
        return Position(int(event), int(delta or 0), float("inf") if frame is None else int(frame))


class FrameParser:
    """Collects the bytes of one connection. A frame that the connection cut off is never returned."""

    def __init__(self) -> None:
        self._buffer = b""
        self._event = ""
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        # Not `splitlines`: it also splits at characters that JSON texts may contain.
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            frame = self._line(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if frame is not None:
                yield frame

    def _line(self, line: str) -> Frame | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value
        return None

    def _dispatch(self) -> Frame | None:
        event, data, frame_id = self._event, "\n".join(self._data), self._id
        self._event, self._data, self._id = "", [], None
        if not event or not data:
            return None
        return Frame(event, json.loads(data), frame_id)
