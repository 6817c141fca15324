"""How many connections a client may use at once, and who is next: the accounts, without the waiting.

Streams may take all but a few places, so that calls still get through beside them. Who finds none free waits in
order of arrival; a call is not held up by streams before it that wait for a place of theirs.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque, Optional, Protocol


class Waker(Protocol):
    """Someone who waits; told at most once that a place is theirs."""

    def wake(self) -> None: ...


class Slots:
    """Places for connections. Safe to use from several threads."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError("max_connections must be at least 1")
        self._free = total
        self._streams_free = max(1, total - 8)
        self._queue: Deque[tuple[Waker, bool]] = deque()
        self._lock = threading.Lock()

    def take(self, stream: bool, waker: Waker) -> int:
        """Takes a place (answer 0), or joins the queue (answer: the length it has now)."""
        with self._lock:
            # Whoever waits does not fit now, so nobody of the same kind is overtaken.
            if self._fits(stream):
                self._occupy(stream)
                return 0
            self._queue.append((waker, stream))
            return len(self._queue)

    def give_up(self, waker: Waker, stream: bool) -> None:
        """Leaves the queue. A place that was given meanwhile goes to the next one."""
        with self._lock:
            for entry in self._queue:
                if entry[0] is waker:
                    self._queue.remove(entry)
                    return
        self.give_back(stream)

    def give_back(self, stream: bool) -> None:
        """Frees a place and wakes those it serves."""
        woken: list[Waker] = []
        with self._lock:
            self._free += 1
            self._streams_free += stream
            while True:
                chosen = self._next()
                if chosen is None:
                    break
                self._queue.remove(chosen)
                self._occupy(chosen[1])
                woken.append(chosen[0])
        for waker in woken:
            waker.wake()

    def _next(self) -> Optional[tuple[Waker, bool]]:
        return next((entry for entry in self._queue if self._fits(entry[1])), None)

    def _fits(self, stream: bool) -> bool:
        return self._free > 0 and (not stream or self._streams_free > 0)

    def _occupy(self, stream: bool) -> None:
        self._free -= 1
        self._streams_free -= stream
