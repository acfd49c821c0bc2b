"""Lets one test run with both clients: the synchronous one is dressed as the asynchronous one. Notes which methods
were called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, cast

import httpx

from ash_client import AshClient, AsyncAshClient, EventStream, RetryPolicy

Kind = Literal["async", "sync"]
CALLED: set[tuple[Kind, str]] = set()


def public_methods(client: type[object]) -> set[str]:
    return {name for name, value in vars(client).items() if callable(value) and not name.startswith("_")}


def connect(
    kind: Kind,
    url: str,
    token: str | None,
    retry: RetryPolicy | None = None,
    statuses: list[int] | None = None,
    timeout: float = 60.0,
) -> AsyncAshClient:
    """A client; `statuses` gets the status of every answer."""
    seen = statuses if statuses is not None else []

    async def note_async(response: httpx.Response) -> None:
        seen.append(response.status_code)

    def note(response: httpx.Response) -> None:
        seen.append(response.status_code)

    real: AsyncAshClient | AshClient
    http: httpx.AsyncClient | httpx.Client
    if kind == "async":
        http = httpx.AsyncClient(event_hooks={"response": [note_async]})
        real = AsyncAshClient(url, token, retry=retry, http=http, timeout=timeout)
    else:
        http = httpx.Client(event_hooks={"response": [note]})
        real = AshClient(url, token, retry=retry, http=http, timeout=timeout)
    return cast(AsyncAshClient, Recorder(kind, real, http))


class Recorder:
    def __init__(self, kind: Kind, real: object, http: httpx.AsyncClient | httpx.Client) -> None:
        self._kind: Kind = kind
        self._real = real
        self._http = http

    async def aclose(self) -> None:
        """Closes also the connections, which belong to the caller of the client who made them."""
        await self.__getattr__("aclose")()
        if isinstance(self._http, httpx.AsyncClient):
            await self._http.aclose()
        else:
            self._http.close()

    def __getattr__(self, name: str) -> Any:
        own = "close" if (self._kind, name) == ("sync", "aclose") else name
        CALLED.add((self._kind, own))
        method = getattr(self._real, own)
        if self._kind == "async":
            return method
        return streaming(method) if "stream" in name and "token" not in name else in_thread(method)


def in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, *args, **options)

    return call


def streaming(method: Callable[..., EventStream]) -> Callable[..., Any]:
    return lambda *args, **options: SyncStream(method(*args, **options))


class SyncStream:
    """An `EventStream` as an asynchronous iterator. Each event is read in a thread."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    def __aiter__(self) -> SyncStream:
        return self

    async def __anext__(self) -> Any:
        event = await asyncio.to_thread(next, self._stream, None)
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> SyncStream:
        self._stream.__enter__()
        return self

    async def __aexit__(self, *reason: Any) -> None:
        await asyncio.to_thread(self._stream.__exit__, *reason)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._stream.close)
