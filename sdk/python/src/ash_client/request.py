"""Requests as values: what a method sends is decided here, without sending it."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import quote

from ._generated import AgentFileUpload
from .errors import InvalidRequestError

FileContents = Mapping[str, str | bytes] | Sequence[AgentFileUpload]
"""Files by path, as text or bytes; or as the API takes them, with `content` in base64."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Any = None
    repeatable: bool = False
    """Sending it twice has the effect of sending it once."""
    extra_seconds: float = 0.0
    """How much longer than usual the server may take, because the caller wants it to wait."""
    patient: bool = False
    """The answer may take as long as a turn, and an outage of the server in between is waited for."""


def get(*path: str, patient: bool = False, **query: Any) -> Request:
    return Request("GET", url_path(*path), query_text(query), repeatable=True, patient=patient)


def post(*path: str, body: Any = None, **options: Any) -> Request:
    return _write("POST", path, body, **options)


def patch(*path: str, body: Any = None, **options: Any) -> Request:
    return _write("PATCH", path, body, **options)


def delete(*path: str, body: Any = None, **options: Any) -> Request:
    return _write("DELETE", path, body, **options)


def _write(
    method: str,
    path: Sequence[str],
    body: Any,
    *,
    query: Mapping[str, Any] | None = None,
    lock: str | None = None,
    wait: int | None = None,
    idempotency_key: str | None = None,
    repeatable: bool = False,
    extra_seconds: float = 0.0,
    patient: bool = False,
    accept: str | None = None,
) -> Request:
    given = {
        "X-Ash-Lock": lock,
        "Prefer": None if wait is None else f"wait={wait}",
        "Idempotency-Key": idempotency_key,
        "Accept": accept,
    }
    return Request(
        method,
        url_path(*path),
        query_text(query or {}),
        {name: value for name, value in given.items() if value is not None},
        body,
        repeatable=repeatable or idempotency_key is not None,
        extra_seconds=extra_seconds + (wait or 0),
        patient=patient,
    )


def new_key(given: str | None) -> str:
    return str(uuid.uuid4()) if given is None else given


def url_path(*segments: str) -> str:
    return "/" + "/".join(_segment(str(segment)) for segment in segments)


def file_segments(path: str) -> tuple[str, ...]:
    """A file's path as segments of a URL."""
    return tuple(path.split("/"))


def _segment(text: str) -> str:
    # An HTTP library resolves these before it sends them, and the request would reach another route.
    if text in ("", ".", ".."):
        raise InvalidRequestError(f"{text!r} cannot be part of a path or an id", code="invalid_path")
    return quote(text, safe="")


def query_text(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Parameters by their names in Python; those that are None are left out. `metadata` becomes one for each name."""
    text: dict[str, str] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            entries = cast(Mapping[str, str], value)
            text.update({f"{name}.{key}": entry for key, entry in entries.items()})
        elif value is not None:
            text[camel_case(name)] = _text(value)
    return text


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def json_body(options: Mapping[str, Any]) -> dict[str, Any]:
    """A body from keyword arguments. None is sent as null."""
    return {camel_case(name): value for name, value in options.items()}


def given(**options: Any) -> dict[str, Any]:
    """A body from arguments whose default None means "not given"."""
    return json_body({name: value for name, value in options.items() if value is not None})


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)


def encoded_files(files: FileContents) -> list[Any]:
    if not isinstance(files, Mapping):
        return list(files)
    return [{"path": path, "content": base64_text(content)} for path, content in files.items()]


def base64_text(content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    return base64.b64encode(data).decode("ascii")
