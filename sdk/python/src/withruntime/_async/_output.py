"""The output of a process as events, followed through cut connections until the process ends."""

from __future__ import annotations

from typing import Callable, Optional

from .. import _io_async as io
from .._call import EVENTS, Call
from .._errors import ConnectionError, RuntimeError
from .._events import Lines, Place, may_follow_on, next_cursor, stream_error, with_aliases
from .._wire import segment
from ._transport import STREAM_SILENCE, AsyncAnswer, AsyncTransport, Cut

#: Seconds that failing to follow is put up with before it is told.
_TOLERATED = 300.0
#: So many bodies in a row with nothing in them, each ended cleanly, are no accident.
_EMPTY_CLOSES = 4


def process_path(sandbox_id: str, process_id: str) -> str:
    return f"/v1/sandboxes/{segment(sandbox_id)}/processes/{segment(process_id)}"


async def events(answer: AsyncAnswer, silence: Callable[[], float]) -> io.Events:
    """The events of one body. Ends where the body ends; raises `Cut` where it broke off or fell silent."""
    lines = Lines()
    try:
        while True:
            data = await answer.part(silence())
            if not data:
                return
            for event in lines.feed(data):
                yield event
    finally:
        answer.close()


class AsyncFollower:
    """Reads a process's output from a place to its end, over as many connections as it takes.

    Args:
        seconds: How long to follow at most; None for as long as the process lives.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        sandbox_id: str,
        process_id: str,
        cursor: int = 0,
        seconds: Optional[float] = None,
    ) -> None:
        self._transport = transport
        self._path = process_path(sandbox_id, process_id) + "/output"
        self._place = Place(cursor)
        self._until = None if seconds is None else io.now() + seconds
        self._empty = 0
        self._failing_since: Optional[float] = None
        self._failures = 0

    def silence(self) -> float:
        """Seconds to wait for the next bytes."""
        return STREAM_SILENCE if self._until is None else max(0.001, min(STREAM_SILENCE, self._until - io.now()))

    async def read(self, first: Optional[io.Events] = None) -> io.Events:
        """Events up to and with `exit`.

        Args:
            first: A body that is being read already, as the one of a streamed exec.

        Raises:
            ConnectionError: The output cannot be followed any more; the process may still run.
            RuntimeError: `request_timeout`: the time to follow is up. The server's refusal, where it refused.
        """
        body = first
        while True:
            # A body that was begun elsewhere had its beginning in it.
            seen = body is not None
            told = False
            failure: Optional[RuntimeError] = None
            began = io.now()
            try:
                if body is None:
                    body = await self._body()
                async for event in body:
                    kind = event.get("type")
                    if kind in ("continue", "error"):
                        self._place.cursor = next_cursor(event, self._place)
                        told = True
                        failure = stream_error(event) if kind == "error" else None
                        break
                    seen = True
                    for handed in self._place.accept(event):
                        yield with_aliases(handed)
                    if kind == "exit":
                        return
            except Cut as cut:
                failure = ConnectionError(f"The output broke off: {cut}")
            except RuntimeError as error:
                failure = error
            finally:
                if body is not None:
                    await body.aclose()
                    body = None
            if self._until is not None and io.now() >= self._until:
                raise RuntimeError(
                    "The time to follow the output is up; the process goes on.",
                    code="request_timeout",
                    details={"cursor": self._place.cursor},
                )
            if failure is not None:
                await self._failed(failure, seen)
            else:
                await self._ended(seen, told, io.now() - began)

    async def _body(self) -> io.Events:
        query = (("cursor", self._place.cursor), ("follow", True))
        call = Call("GET", self._path, query=query, accept=EVENTS, patient=False)
        return events(await self._transport.open(call), self.silence)

    async def _ended(self, seen: bool, told: bool, lasted: float) -> None:
        """After a body that ended cleanly before the process did."""
        if seen or (told and lasted > 1.0):
            self._worked()
            return
        self._empty += 1
        if not told and self._empty >= _EMPTY_CLOSES:
            raise ConnectionError("The output ends again and again with nothing in it; the process may still run.")
        # Who says "go on" at once, and nothing else, is not asked in a tight loop.
        await io.sleep(min(5.0, 0.05 * 2 ** min(self._empty, 7)))

    async def _failed(self, error: RuntimeError, seen: bool) -> None:
        """After a body that broke off or was refused: waits, or gives up."""
        if not may_follow_on(error):
            raise error
        if seen:
            self._worked()
        now = io.now()
        if self._failing_since is None:
            self._failing_since = now
        delay = min(5.0, 0.05 * 2 ** min(self._failures, 7))
        self._failures += 1
        if now + delay - self._failing_since > _TOLERATED:
            raise error
        await io.sleep(delay)

    def _worked(self) -> None:
        self._empty = 0
        self._failures = 0
        self._failing_since = None
