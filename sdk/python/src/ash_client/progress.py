"""What a stream knows: where it stands, what it asks for after a lost connection, and which frames are new. Nothing is
sent or received here."""

from __future__ import annotations

from typing import Any, Protocol

from .errors import AshError, TurnInterrupted
from .request import Request, get
from .sse import Frame, Position


class Progress(Protocol):
    """The state of a stream across its connections."""

    is_over: bool
    failure: AshError | None
    needs_new_connection: bool

    def request(self) -> Request:
        """Opens the next connection."""
        ...

    def accept(self, frame: Frame) -> bool:
        """Takes note of a frame; True: the caller of the stream gets it."""
        ...


class SessionProgress:
    """Follows everything that happens to a session."""

    def __init__(self, session: str, last_event_id: str | None, partial: bool | None) -> None:
        self.is_over = False
        self.failure: AshError | None = None
        self.needs_new_connection = False
        self._session = session
        self._last_id = last_event_id
        self._partial = partial

    def request(self) -> Request:
        return stream_request(self._session, self._last_id, self._partial)

    def accept(self, frame: Frame) -> bool:
        if frame.id is not None:
            if not _is_after(frame.id, self._last_id):
                return False
            self._last_id = frame.id
        self.is_over = frame.event == "ended"
        return True


class MessageProgress:
    """Sends one message and follows its turn until `done`.

    Until the turn has begun, a lost connection is replaced by sending the message again with its `Idempotency-Key`: the
    server then takes it up again, or shows the turn from its beginning. Afterwards it is replaced by the stream of the
    session after the last event. That stream also has events of other turns and of the session, which are left out.
    """

    def __init__(self, session: str, message: Request, partial: bool) -> None:
        self.is_over = False
        self.failure: AshError | None = None
        self.needs_new_connection = False
        self._session = session
        self._message = message
        self._partial = partial
        self._turn: str | None = None
        self._last_id: str | None = None
        self._has_begun = False
        self._is_steered = False
        self._is_cut = False
        self._answer_is_complete = False
        self._follows_session = False

    def request(self) -> Request:
        self.needs_new_connection = False
        self._follows_session = self._has_begun and not self._is_steered and not self._is_cut
        if self._follows_session:
            return stream_request(self._session, self._last_id, self._partial)
        return self._message

    def accept(self, frame: Frame) -> bool:
        if frame.id is None:
            return not self._is_farewell(frame)
        if not _is_after(frame.id, self._last_id):
            return False
        self._last_id = frame.id
        self._is_cut = False
        return self._accept_of_session(frame) if self._follows_session else self._accept_of_turn(frame)

    def _accept_of_turn(self, frame: Frame) -> bool:
        """A frame of the message's own stream, which the server limits to the turn."""
        if frame.event == "session_start":
            self._turn = frame.data["turn"]
            return True
        if frame.event == "error" and "queued" in frame.data:
            if self._is_farewell(frame):
                return False
            self._interrupt(frame.data)
            return True
        self._has_begun = True
        self._is_steered |= frame.event == "steered" and frame.data["turn"] == self._turn
        self.is_over = self._is_done(frame)
        return True

    def _accept_of_session(self, frame: Frame) -> bool:
        """A frame of the stream of the whole session."""
        self._answer_is_complete |= frame.event == "usage" and frame.data["turn"] == self._turn
        if frame.event == "ended":
            error = {"error": "The session was ended before the turn was over", "code": "session_ended"}
            self._interrupt({**error, "queued": False})
            return False
        if frame.event in _EVENTS_OF_SESSIONS or self._is_of_another_turn(frame):
            return False
        if self._is_cut_by(frame):
            # While there was no connection, the turn was cut: the message, sent again, continues it.
            self._is_cut = self.needs_new_connection = True
            return False
        self.is_over = self._is_done(frame)
        return True

    def _is_done(self, frame: Frame) -> bool:
        return frame.event == "done" and bool(frame.data["turn"] == self._turn)

    def _is_of_another_turn(self, frame: Frame) -> bool:
        return frame.event in _EVENTS_WITH_TURN and frame.data.get("turn") not in (None, self._turn)

    def _is_cut_by(self, frame: Frame) -> bool:
        """Whether nothing more comes of the turn for now. The error of a turn that failed comes together with its
        `done`, as the first of two frames; an answer that is complete always gets its `done`."""
        if frame.event != "error" or frame.data.get("code") == "checkpoint_failed" or self._answer_is_complete:
            return False
        position = Position.parse(frame.id or "")
        return position is not None and position.frame == float("inf")

    def _is_farewell(self, frame: Frame) -> bool:
        """The server stops, and continues the turn when it is back."""
        return frame.event == "error" and frame.data.get("code") == "server_stopped"

    def _interrupt(self, problem: Any) -> None:
        self.is_over = True
        self.failure = TurnInterrupted(
            problem["error"],
            code=problem["code"],
            turn=self._turn,
            queued=problem.get("queued"),
            idempotency_key=self._message.headers["Idempotency-Key"],
        )


def stream_request(session: str, last_event_id: str | None, partial: bool | None) -> Request:
    request = get("api", "sessions", session, "stream", include_partial_messages=partial)
    headers = {"Accept": "text/event-stream"}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    return Request(request.method, request.path, request.query, headers, repeatable=True)


def _is_after(frame_id: str, last_id: str | None) -> bool:
    new, last = Position.parse(frame_id), Position.parse(last_id or "")
    return new is None or last is None or new > last


# Events of the turn's own stream that name their turn.
_EVENTS_WITH_TURN = frozenset(
    (
        "session_start",
        "turn_continued",
        "permission_request",
        "permission_answered",
        "tool_requested",
        "tool_answered",
        "steered",
        "budget_reached",
        "done",
    )
)

# Events that only the stream of a session has, and the stream of one message leaves out.
_EVENTS_OF_SESSIONS = frozenset(
    (
        "adopted",
        "checkpoint",
        "config",
        "created",
        "ended",
        "forked",
        "interrupting",
        "locked",
        "metadata",
        "missing",
        "paused",
        "queue",
        "resume_failed",
        "resumed",
        "rewound",
        "session_idle",
        "setting",
        "stopped",
        "timeout_warning",
        "turn_started",
        "unlocked",
        "usage",
        "workspace_rewound",
    )
)
