"""When a failed request is sent again, and after how long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .errors import AshError, UnavailableError


@dataclass(frozen=True)
class RetryPolicy:
    """Requests are repeated after a lost connection, and after a 503 with `Retry-After`, if a repetition cannot take
    effect twice: reading requests, and those with an `Idempotency-Key`. A request that did not reach the server at all
    is always repeated.

    The pause before a repetition is a random part, at least half, of a delay that doubles each time.
    """

    max_attempts: int = 7
    """How often one request is sent in all. 1: no repetition."""
    initial_delay: float = 0.2
    max_delay: float = 4.0
    max_retry_after: float = 30.0
    """A server that asks for a longer pause than this gets no repetition."""
    max_outage: float = 60.0
    """Seconds for which a stream, or a message whose answer the client waits for, tries to reach the server again."""
    random: Callable[[], float] = random.random

    def delay(self, attempt: int, failure: AshError) -> float | None:
        """Seconds to wait after the failure of this attempt, the first being 1; None: do not repeat."""
        return None if attempt >= self.max_attempts else self.pause(attempt, failure)

    def pause(self, attempt: int, failure: AshError) -> float | None:
        """As `delay`, without a limit for the number of attempts."""
        least = failure.retry_after or 0.0
        if least > self.max_retry_after:
            return None
        longest = min(self.max_delay, self.initial_delay * 2.0 ** min(attempt - 1, 30))
        return max(least, longest * (0.5 + 0.5 * self.random()))


class Outage:
    """Counts the failed attempts of a stream, or of a request that waits for a turn, since the last progress."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._attempts = 0
        self._began: float | None = None
        self._was_connected = False

    def connected(self) -> None:
        self._was_connected = True

    def over(self) -> None:
        """The server did what it was asked for, at least in part."""
        self._attempts, self._began, self._was_connected = 0, None, True

    def pause(self, failure: AshError, now: float) -> float | None:
        """Seconds to wait before the next attempt; None: give up. A server that never answered gets no more attempts
        than for any other request."""
        self._attempts += 1
        self._began = now if self._began is None else self._began
        if not self._was_connected:
            return self._policy.delay(self._attempts, failure)
        if now - self._began >= self._policy.max_outage:
            return None
        return self._policy.pause(self._attempts, failure)


def is_temporary(failure: AshError) -> bool:
    """Whether the server asks to repeat the same request later."""
    return isinstance(failure, UnavailableError) and failure.retry_after is not None
