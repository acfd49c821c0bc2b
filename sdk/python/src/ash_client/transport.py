"""Sends requests over HTTP, and sends them again where that is safe.

Generated from async_transport.py by scripts/generate.py; change that file instead.
"""

from __future__ import annotations

import time
import json
import time as clock
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from .errors import AshConnectionError, AshError, error_from_answer
from .request import Request
from .retry import Outage, RetryPolicy, is_temporary

# The server sends a heartbeat every 15 seconds: a connection that is silent for longer than this is dead.
STREAM_SILENCE = 50.0
CONNECT_TIMEOUT = 10.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body) if self.body else {}


class Transport:
    """A pool of connections to one server."""

    def __init__(
        self,
        base_url: str,
        token: str | None,
        timeout: float,
        retry: RetryPolicy,
        http: httpx.Client | None,
    ) -> None:
        self.retry = retry
        self._base_url = base_url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout = timeout
        self._owns_http = http is None
        self._http = http or httpx.Client(
            timeout=timeout, limits=httpx.Limits(max_connections=None, max_keepalive_connections=20)
        )

    def close(self) -> None:
        if self._owns_http:
            self._http.close()

    def send(self, request: Request, *, was_connected: bool = False) -> Answer:
        """The answer, if it is not an error. `was_connected`: a patient request belongs to something that the server
        has begun already, and waits for it as a stream does."""
        outage = Outage(self.retry)
        if was_connected:
            outage.connected()
        attempt = 0
        while True:
            attempt += 1
            began = clock.monotonic()
            try:
                return self._send_once(request)
            except AshError as failure:
                now = clock.monotonic()
                # A request that waited for longer than a pause had reached the server.
                if request.patient and now - began > self.retry.max_delay:
                    outage.over()
                delay = self._delay(request, attempt, failure, outage)
                if delay is None:
                    raise
                time.sleep(delay)

    def _delay(self, request: Request, attempt: int, failure: AshError, outage: Outage) -> float | None:
        if not may_repeat(request, failure):
            return None
        if request.patient:
            return outage.pause(failure, clock.monotonic())
        return self.retry.delay(attempt, failure)

    def _send_once(self, request: Request) -> Answer:
        # A longer wait than this is cut into several: the request is repeated, and the server takes it up again. So a
        # server that is gone without a trace is noticed.
        read = max(self._timeout, STREAM_SILENCE) if request.patient else self._timeout
        connection = self._open(request, read + request.extra_seconds)
        try:
            body = connection.read()
        except httpx.TransportError as cause:
            raise _lost(cause) from cause
        finally:
            connection.close()
        return Answer(connection.status_code, connection.headers, body)

    def open_stream(self, request: Request) -> Connection:
        """The connection, once the server has accepted the request. It is tried once: a stream has its own rules for a
        repetition."""
        return Connection(self._open(request, STREAM_SILENCE + request.extra_seconds))

    def _open(self, request: Request, read_timeout: float) -> httpx.Response:
        """The answer without its body, if it is not an error."""
        headers = {**self._headers, **request.headers}
        content = None
        if request.body is not None:
            content = json.dumps(request.body, ensure_ascii=False).encode()
            headers["Content-Type"] = "application/json"
        built = self._http.build_request(
            request.method,
            self._base_url + request.path,
            params=dict(request.query) or None,
            headers=headers,
            content=content,
            timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, CONNECT_TIMEOUT), read=read_timeout),
        )
        try:
            response = self._http.send(built, stream=True)
        except httpx.TransportError as cause:
            raise _lost(cause) from cause
        if response.status_code < 400:
            return response
        try:
            body = response.read()
        except httpx.TransportError as cause:
            raise _lost(cause) from cause
        finally:
            response.close()
        raise error_from_answer(response.status_code, response.headers, body)


class Connection:
    """One connection of a stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks: Iterator[bytes] = response.iter_bytes()

    @property
    def has_nothing_more(self) -> bool:
        """The session has ended, and the client has everything."""
        return self._response.status_code == 204

    def read(self) -> bytes | None:
        """The next bytes; None: the server closed the connection."""
        try:
            return next(self._chunks, None)
        except httpx.TransportError as cause:
            raise _lost(cause) from cause

    def close(self) -> None:
        self._response.close()


def may_repeat(request: Request, failure: AshError) -> bool:
    """Whether sending the request again is useful, and cannot take effect twice."""
    if failure.code == "not_connected":
        return True
    lost = failure.code == "connection_lost" or (failure.code == "timeout" and request.patient)
    return request.repeatable and (lost or is_temporary(failure))


def _lost(cause: httpx.TransportError) -> AshConnectionError:
    text = str(cause) or type(cause).__name__
    return AshConnectionError(f"The connection to the server failed: {text}", code=_code(cause))


def _code(cause: httpx.TransportError) -> str:
    match cause:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            # Nothing was sent.
            return "not_connected"
        case httpx.TimeoutException():
            return "timeout"
        case httpx.UnsupportedProtocol():
            return "invalid_url"
        case _:
            return "connection_lost"
