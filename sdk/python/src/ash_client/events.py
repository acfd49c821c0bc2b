"""Events of a stream, and what they say as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ._generated import EVENT_CLASSES, DocumentedEvent
from .sse import Frame


@dataclass(frozen=True)
class OtherEvent:
    """A block or a delta of the agent, or an event of a newer server; `name` is what the server calls it."""

    name: str
    data: Any
    id: str | None = None
    event: Literal["other"] = "other"


StreamEvent: TypeAlias = DocumentedEvent | OtherEvent


def event_from_frame(frame: Frame) -> StreamEvent:
    kind = EVENT_CLASSES.get(frame.event)
    if kind is None:
        return OtherEvent(name=frame.event, data=frame.data, id=frame.id)
    event: StreamEvent = kind(data=frame.data, id=frame.id)
    return event


def extract_text_from_event(message: Mapping[str, Any]) -> str | None:
    """The text of an assistant's message, which is the data of a `message` event; None for other messages."""
    if message.get("type") != "assistant":
        return None
    blocks = message.get("message", {}).get("content", [])
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    return "".join(texts) if texts else None


def extract_stream_delta(message: Mapping[str, Any]) -> str | None:
    """The piece of text in a message of type `stream_event`; None for other messages."""
    if message.get("type") != "stream_event":
        return None
    delta = message.get("event", {}).get("delta", {})
    return str(delta["text"]) if delta.get("type") == "text_delta" else None
