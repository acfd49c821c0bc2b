"""How tests read streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

from server import DEADLINE

from ash_client.types import StreamEvent


async def until(stream: AsyncIterator[StreamEvent], name: str) -> Any:
    """The next event of this name."""
    async for event in stream:
        if event.event == name:
            return event
    raise AssertionError(f"the stream ended without {name}")


async def rest(stream: AsyncIterator[StreamEvent]) -> list[StreamEvent]:
    return [event async for event in stream]


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.data["delta"] for event in events if event.event == "text_delta")


async def becomes(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition."""
    end = monotonic() + DEADLINE
    while not condition():
        assert monotonic() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.01)
