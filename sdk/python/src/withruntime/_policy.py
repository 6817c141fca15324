"""When a call is sent again, and after how long: the whole rule, with no clock and no socket in it.

One :class:`Retries` lives as long as one call. It is told of each failure and answers with a wait, or with None for
"raise it". The same idempotency key goes with every attempt, so that a second one never does the work twice.
"""

from __future__ import annotations

import random as _random
from dataclasses import dataclass
from typing import Callable, Optional

from ._errors import OFF_CODES, RETRYABLE_STATUSES, RuntimeError

#: Seconds an attempt may take until its answer begins; then the request is sent again.
ATTEMPT_SECONDS = 125.0
#: Waits in the answer above this are not slept but raised.
LONGEST_NAMED_WAIT = 60.0
#: Bound of what refusals of a busy server may cost a call that has no deadline of its own.
BUSY_SECONDS = 300.0

#: The server did nothing yet.
BUSY_CODES = frozenset({"guest_busy", "busy", "rate_limited"})
#: No room for one more sandbox; create, wake and restart wait for it.
ROOM_CODES = frozenset(
    {
        "no_credit_running_limit",
        "no_credit_total_limit",
        "no_credit_domain_limit",
        "no_credit_capacity_full",
        "quota_exceeded",
        "account_share_full",
        "no_capacity",
        "volume_releasing",
    }
)


@dataclass(frozen=True)
class Wait:
    """Send it again after so many seconds. ``for_room`` waits lengthen the call's deadline by themselves."""

    seconds: float
    for_room: bool = False


class Deadline:
    """When a call is over, on the clock its times are given in. None or 0 seconds is never."""

    def __init__(self, seconds: Optional[float], now: float) -> None:
        self.at: Optional[float] = now + seconds if seconds else None

    def left(self, now: float) -> Optional[float]:
        """Seconds left, never negative; None without a deadline."""
        return None if self.at is None else max(0.0, self.at - now)

    def lengthen(self, seconds: float) -> None:
        if self.at is not None:
            self.at += seconds


class Retries:
    """The retry rule of one call."""

    def __init__(
        self,
        *,
        max_retries: int,
        deadline: Deadline,
        began: float,
        room_seconds: float = 0.0,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self._max_retries = max_retries
        self._deadline = deadline
        self._busy_until = began + BUSY_SECONDS if deadline.at is None else None
        self._room_left = room_seconds
        self._random = random
        self._failed = 0
        self._busy = 0
        self._room = 0
        self._resent_at_once = False

    def after(self, error: RuntimeError, now: float, *, late: bool = False, unopened: bool = False) -> Optional[Wait]:
        """What to do after a failed attempt.

        Args:
            error: What the attempt ended with; status 0 is a transport failure.
            now: The time, on the deadline's clock.
            late: The refusal came as a late answer, when work may have begun.
            unopened: No byte of the request was taken: the connection did not open, or had been closed meanwhile.
        """
        word = error.server_says_retryable
        if word is False:
            return None
        named = None if error.retry_after_ms is None else error.retry_after_ms / 1000
        if named is not None and named > LONGEST_NAMED_WAIT:
            return None
        counted = (error.details or {}).get("field") == "count"
        if error.code in ROOM_CODES and self._room_left > 0 and not counted:
            return self._wait_for_room(named)
        if word is None and error.code in OFF_CODES:
            return None
        if error.code in BUSY_CODES and error.status in (429, 503) and (not late or error.code == "guest_busy"):
            return self._wait_for_turn(named, now)
        if word is None and (error.status not in RETRYABLE_STATUSES or error.code in ROOM_CODES):
            return None
        if unopened and not self._resent_at_once:
            self._resent_at_once = True
            return Wait(0.0)
        if self._failed >= self._max_retries:
            return None
        delay = min(30.0, named) if named is not None else min(8.0, 0.25 * 2**self._failed) * (0.5 + self._random())
        self._failed += 1
        return self._within_deadline(delay, now)

    def _wait_for_room(self, named: Optional[float]) -> Wait:
        if named is not None:
            delay = named
        else:
            delay = min(8.0, 0.5 * 2**self._room) * (0.75 + 0.5 * self._random())
        self._room += 1
        delay = min(delay, self._room_left)
        self._room_left -= delay
        if self._room_left < 0.001:
            self._room_left = 0.0
        return Wait(delay, for_room=True)

    def _wait_for_turn(self, named: Optional[float], now: float) -> Optional[Wait]:
        base = 0.25 if named is None else named
        delay = min(30.0, base * 2 ** min(self._busy, 3)) * (0.9 + 0.2 * self._random())
        self._busy += 1
        if self._busy_until is not None and now + delay >= self._busy_until:
            return None
        return self._within_deadline(delay, now)

    def _within_deadline(self, delay: float, now: float) -> Optional[Wait]:
        left = self._deadline.left(now)
        return None if left is not None and delay >= left else Wait(delay)
