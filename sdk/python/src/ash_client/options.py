"""Keyword arguments of methods, and answers that a method changes on their way to its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _generated as generated
from .request import json_body
from .tools import Tool, declarations


class CreateSessionOptions(generated.CreateSessionFields, total=False):
    """What `create_session` takes beside the agent's name."""

    tools: Sequence[Tool[..., Any] | generated.ClientTool]
    """Functions with `@tool`, or their declarations."""


class SessionOptions(generated.SessionFields, total=False):
    """What `resume_session` and `update_session_config` take."""

    tools: Sequence[Tool[..., Any] | generated.ClientTool]
    """Functions with `@tool`, or their declarations."""


class ResumedSession(generated.Session):
    """A session, with the receipt that says what came back; None if it was active already."""

    resume: generated.Receipt | None


class EndedSession(generated.Session):
    """A session that has ended."""

    purged: bool
    """Whether it was also moved to the trash."""


@dataclass(frozen=True)
class DownloadedFile:
    content: bytes
    mime_type: str
    source: str | None
    """`sandbox` or `snapshot`: where the file comes from."""


def session_body(options: Mapping[str, Any]) -> dict[str, Any]:
    body = json_body(options)
    if body.get("tools") is not None:
        body["tools"] = declarations(body["tools"])
    return body
