"""Waiting for a condition that others bring about."""

from __future__ import annotations

import threading
from typing import Callable, Optional, TypeVar

from .. import _io_async as io

T = TypeVar("T")


class AsyncGate:
    """Steps that change shared state one at a time, and wait until they can.

    A step answers None where it cannot be done yet; it is tried again after each step that could. A step that is added
    to the waiting ones and one that is done exclude each other by the lock, so that none is forgotten.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[io.Waiter] = []

    async def until(self, step: Callable[[], Optional[T]]) -> T:
        """Does the step once it can be done."""
        while True:
            done, waiter = self._try(step)
            if done is not None:
                return done
            if waiter is not None:
                await waiter.wait(None)

    def now(self, step: Callable[[], T]) -> T:
        """Does a step that can always be done."""
        with self._lock:
            done = step()
            woken, self._waiting = self._waiting, []
        for one in woken:
            one.wake()
        return done

    def _try(self, step: Callable[[], Optional[T]]) -> tuple[Optional[T], Optional[io.Waiter]]:
        with self._lock:
            done = step()
            if done is None:
                waiter = io.Waiter()
                self._waiting.append(waiter)
                return None, waiter
            woken, self._waiting = self._waiting, []
        for one in woken:
            one.wake()
        return done, None
