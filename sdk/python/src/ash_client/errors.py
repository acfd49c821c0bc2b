"""Errors of the client. Each refusal of the server becomes an `AshError` with the server's stable code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast


class AshError(Exception):
    """A request failed. `code` never changes between versions of the server; `message` is for people.
    `status_code` is the HTTP status, or 0 if there was no answer. `details` is the whole body of the answer."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status_code: int = 0,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status_code = status_code
        self.details: Mapping[str, Any] = details or {}
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class AshConnectionError(AshError):
    """There is no connection to the server, or it broke."""


class AuthenticationError(AshError):
    """401 or 403: the key is missing, wrong, or may not do this."""


class InvalidRequestError(AshError):
    """400, 413 or 422: the request itself is the problem."""


class NotFoundError(AshError):
    """404: it does not exist, or belongs to another owner."""


class ConflictError(AshError):
    """409 or 410: the state of the session does not allow this."""


class QuotaError(AshError):
    """429: a quota is reached; `details` has `quota`, `limit` and `used`."""


class ServerError(AshError):
    """500 or another failure of the server."""


class UnavailableError(ServerError):
    """503: the server cannot do this now; `retry_after` says in how many seconds to try again."""


class TurnInterrupted(AshError):
    """The stream of a message ended before its turn was over, for example because the sandbox died or another client
    paused the session.

    `queued` is True if the message is still in the session's queue. The session then continues with it at its next
    resume or message, or when the message is sent again with the same `idempotency_key`. False: it does not run unless
    it is sent again with a new key. None: the server does not know.
    """

    def __init__(
        self, message: str, *, code: str, turn: str | None, idempotency_key: str, queued: bool | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.turn = turn
        self.queued = queued
        self.idempotency_key = idempotency_key


_BY_STATUS: Mapping[int, type[AshError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    409: ConflictError,
    410: ConflictError,
    413: InvalidRequestError,
    422: InvalidRequestError,
    429: QuotaError,
    503: UnavailableError,
}


def error_from_answer(status: int, headers: Mapping[str, str], body: bytes) -> AshError:
    """The error that an answer with a status of 400 or more stands for. A proxy may have sent it."""
    details = _object(body)
    message = details.get("message") or details.get("error") or f"The server answered with status {status}"
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else InvalidRequestError)
    return kind(
        str(message),
        code=str(details.get("code") or f"http_{status}"),
        status_code=status,
        details=details,
        retry_after=_seconds(headers.get("retry-after")),
    )


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return cast(Mapping[str, Any], parsed) if isinstance(parsed, dict) else {}


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        return None
