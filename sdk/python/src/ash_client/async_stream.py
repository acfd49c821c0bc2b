"""Asynchronous iterators over events. A lost connection is replaced, and no event comes twice or is left out."""

from __future__ import annotations

import asyncio
import time as clock
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any

from ._generated import ToolCall, ToolListAnswer, ToolRequestedEvent, WaitingToolCall
from .async_transport import AsyncConnection, AsyncTransport
from .errors import AshConnectionError, AshError, ConflictError, NotFoundError
from .events import StreamEvent, event_from_frame
from .progress import Progress
from .request import get, post
from .retry import Outage, is_temporary
from .sse import Frame, FrameParser
from .tools import Tool, run_tool_async


class AsyncEventStream:
    """The events of a session or of one turn. Leaving it early, by `aclose`, `async with` or a cancelled task, closes
    the connection; the turn goes on."""

    def __init__(self, events: AsyncGenerator[StreamEvent, None]) -> None:
        self._events = events

    def __aiter__(self) -> AsyncEventStream:
        return self

    async def __anext__(self) -> StreamEvent:
        return await self._events.__anext__()

    async def __aenter__(self) -> AsyncEventStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._events.aclose()


class AsyncToolAnswerer:
    """Answers the calls of the client tools that it has, and runs the function once for each call. Other clients may
    answer them as well: the first answer counts."""

    def __init__(
        self, transport: AsyncTransport, session: str, tools: Mapping[str, Tool[..., Any]], lock: str | None
    ) -> None:
        self._transport = transport
        self._lock = lock
        self._path = ("api", "sessions", session, "tools")
        self._tools = tools
        self._seen: set[str] = set()

    async def answer_open_calls(self) -> None:
        for call in await self._open_calls():
            await self._answer(call)

    async def answer_if_open(self, requested: ToolCall) -> None:
        """A stream that is read again shows calls that were answered long ago. Their functions must not run again."""
        if requested["tool"] not in self._tools or requested["id"] in self._seen:
            return
        for call in await self._open_calls():
            if call["id"] == requested["id"]:
                await self._answer(call)

    async def _open_calls(self) -> list[WaitingToolCall]:
        answer = await self._transport.send(get(*self._path, patient=True), was_connected=True)
        listed: ToolListAnswer = answer.json()
        return [call for call in listed["calls"] if call["tool"] in self._tools]

    async def _answer(self, call: WaitingToolCall) -> None:
        if call["id"] in self._seen:
            return
        self._seen.add(call["id"])
        outcome = await run_tool_async(self._tools[call["tool"]], call["input"])
        # The same answer twice counts once.
        answer = post(*self._path, call["id"], body=outcome, lock=self._lock, repeatable=True, patient=True)
        try:
            await self._transport.send(answer, was_connected=True)
        except ConflictError as refusal:
            if refusal.code not in ("tool_answered", "tool_withdrawn"):
                raise
        except NotFoundError as refusal:
            if refusal.code != "tool_call_not_found":
                raise


async def follow(
    transport: AsyncTransport, progress: Progress, answerer: AsyncToolAnswerer | None
) -> AsyncGenerator[StreamEvent, None]:
    """The events of a stream until it is over."""
    reader = AsyncFrameReader(transport, progress)
    try:
        while not progress.is_over:
            frames = await reader.read()
            if frames is None:
                break
            for frame in frames:
                if progress.accept(frame):
                    reader.note_progress()
                    if progress.is_over:
                        # A caller that leaves at the last event leaves no connection behind.
                        await reader.aclose()
                    event = event_from_frame(frame)
                    yield event
                    if answerer is not None and isinstance(event, ToolRequestedEvent):
                        await answerer.answer_if_open(event.data)
                if progress.is_over or progress.needs_new_connection:
                    break
    finally:
        await reader.aclose()
    if progress.failure is not None:
        raise progress.failure


async def follow_session(
    transport: AsyncTransport, progress: Progress, answerer: AsyncToolAnswerer | None
) -> AsyncGenerator[StreamEvent, None]:
    """As `follow`, for a client that may have been away while tools were called."""
    if answerer is not None:
        await answerer.answer_open_calls()
    events = follow(transport, progress, answerer)
    try:
        async for event in events:
            yield event
    finally:
        await events.aclose()


class AsyncFrameReader:
    """Reads frames from one connection after the other."""

    def __init__(self, transport: AsyncTransport, progress: Progress) -> None:
        self._transport = transport
        self._progress = progress
        self._outage = Outage(transport.retry)
        self._connection: AsyncConnection | None = None
        self._connected_at = 0.0
        self._parser = FrameParser()

    def note_progress(self) -> None:
        """A connection is a good one if it brings a new event, or heartbeats for a while. Otherwise a server that shows
        the same beginning again and again would be asked for ever."""
        self._outage.over()

    async def read(self) -> list[Frame] | None:
        """The next frames; None: there are no more, ever."""
        while True:
            try:
                connection = await self._connect()
                if connection.has_nothing_more:
                    return None
                data = await connection.read()
                if data is not None:
                    if clock.monotonic() - self._connected_at > self._transport.retry.max_delay:
                        self._outage.over()
                    return list(self._parser.feed(data))
                failure: AshError = AshConnectionError("The server closed the stream", code="connection_lost")
            except AshError as error:
                failure = error
            await self.aclose()
            await self._pause(failure)

    async def _connect(self) -> AsyncConnection:
        if self._progress.needs_new_connection:
            await self.aclose()
        if self._connection is None:
            self._parser = FrameParser()
            self._connection = await self._transport.open_stream(self._progress.request())
            self._connected_at = clock.monotonic()
            self._outage.connected()
        return self._connection

    async def _pause(self, failure: AshError) -> None:
        lost = isinstance(failure, AshConnectionError) and failure.code != "invalid_url"
        delay = self._outage.pause(failure, clock.monotonic()) if lost or is_temporary(failure) else None
        if delay is None:
            raise failure
        await asyncio.sleep(delay)

    async def aclose(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.aclose()
