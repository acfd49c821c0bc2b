"""A client for ash, the server that keeps AI-agent sessions alive."""

from . import types
from .async_client import AsyncAshClient
from .async_stream import AsyncEventStream
from .client import AshClient
from .errors import (
    AshConnectionError,
    AshError,
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    QuotaError,
    ServerError,
    TurnInterrupted,
    UnavailableError,
)
from .events import extract_stream_delta, extract_text_from_event
from .retry import RetryPolicy
from .stream import EventStream
from .tools import Tool, tool

__all__ = [
    "AshClient",
    "AshConnectionError",
    "AshError",
    "AsyncAshClient",
    "AsyncEventStream",
    "AuthenticationError",
    "ConflictError",
    "EventStream",
    "InvalidRequestError",
    "NotFoundError",
    "QuotaError",
    "RetryPolicy",
    "ServerError",
    "Tool",
    "TurnInterrupted",
    "UnavailableError",
    "extract_stream_delta",
    "extract_text_from_event",
    "tool",
    "types",
]
