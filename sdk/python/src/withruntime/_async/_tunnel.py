"""Connections to ports of a sandbox over one WebSocket.

A frame is a kind (one byte), the number of a connection (four bytes) and a payload: `o` opens one, `d` is data, `e`
says that no more comes from this side, `c` ends it, and `a` tells how many bytes of data the sandbox has taken in all.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Deque, Optional

from .. import _io_async as io
from .._errors import ConnectionError, RuntimeError
from .._wire import ReadTimeout
from ._gate import AsyncGate
from ._websocket import AsyncWebSocket

_HEAD = 5
#: Data that may be on the way to the sandbox, over all connections; who sends more is cut off.
_WINDOW = 1024 * 1024
#: Bytes that wait for one local program to read them. Behind it the whole tunnel waits.
_UNREAD = 4 * 1024 * 1024


def frame(kind: bytes, number: int, payload: bytes = b"") -> bytes:
    return kind + number.to_bytes(4, "big") + payload


class _Link:
    """One connection: what has come for the local program."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.opened: Optional[bool] = None
        self.gate = AsyncGate()
        self._come: Deque[bytes] = deque()
        self._unread = 0
        self._finished = False
        self._over = False
        self._dropped = False

    def open(self) -> Optional[bool]:
        """Whether the sandbox took it; None while it has not said."""
        return False if self._over and self.opened is None else self.opened

    def opened_by(self, kind: bytes) -> bool:
        self.opened = kind == b"o"
        return True

    def put(self, data: bytes) -> Optional[bool]:
        """A step: keeps a piece, if there is room."""
        if self._dropped or self._over:
            return True
        if self._unread >= _UNREAD:
            return None
        self._come.append(data)
        self._unread += len(data)
        return True

    def take(self) -> Optional[bytes]:
        """A step: the next piece; empty at the end of what comes."""
        if self._come:
            data = self._come.popleft()
            self._unread -= len(data)
            return data
        return b"" if self._finished or self._over or self._dropped else None

    def finish(self) -> bool:
        """Nothing more comes."""
        self._finished = True
        return True

    def end(self) -> bool:
        """It is over; what has come is still to be read."""
        self._over = True
        return True

    def drop(self) -> bool:
        """The local program is gone: what comes is nobody's."""
        self._dropped = True
        self._come.clear()
        self._unread = 0
        return True

    def over(self) -> Optional[bool]:
        """A step: waits for the end."""
        return True if self._over else None


class AsyncTunnel:
    """A tunnel that is open."""

    def __init__(self, socket: AsyncWebSocket) -> None:
        self._socket = socket
        self._gate = AsyncGate()
        self._links: dict[int, _Link] = {}
        self._last = 0
        self._sent = 0
        self._taken = 0
        self.ended = False
        #: Connections that were given to it; counted up by who gives them.
        self.load = 0
        self._reading = io.start(self._read)

    async def carry(self, local: io.Duplex, port: int) -> None:
        """Joins a local connection with one to a port of the sandbox until both are over."""
        link = self._gate.now(self._new_link)
        outward: Optional[io.Started] = None
        try:
            await self._send(b"o", link.number, b"tcp %d" % port)
            if not await link.gate.until(link.open):
                return
            outward = io.start(partial(self._outward, link, local))
            await self._inward(link, local)
            await link.gate.until(link.over)
            await outward.wait()
        except (ConnectionError, OSError):
            # The tunnel is gone: so is the connection.
            pass
        finally:
            # Before anything that could be cancelled.
            self.load -= 1
            self._gate.now(partial(self._forget, link))
            local.close()
            if outward is not None:
                outward.cancel()

    async def close(self) -> None:
        """Closes it with all its connections."""
        self._end()
        await self._socket.close()
        await self._reading.wait()

    def _new_link(self) -> _Link:
        self._last += 1
        link = self._links[self._last] = _Link(self._last)
        if self.ended:
            link.end()
        return link

    def _forget(self, link: _Link) -> bool:
        self._links.pop(link.number, None)
        link.gate.now(link.drop)
        return True

    async def _inward(self, link: _Link, local: io.Duplex) -> None:
        """From the local program into the sandbox."""
        while True:
            try:
                data = await local.read(None)
            except (OSError, ReadTimeout):
                if not link.over():
                    await self._abort(link)
                return
            if link.over():
                return
            if not data:
                await self._send(b"e", link.number)
                return
            await self._gate.until(partial(self._spend, len(data)))
            await self._send(b"d", link.number, data)

    async def _outward(self, link: _Link, local: io.Duplex) -> None:
        """From the sandbox to the local program."""
        try:
            while True:
                data = await link.gate.until(link.take)
                if not data:
                    break
                await local.write(data, None)
            await local.end()
            await link.gate.until(link.over)
        except (OSError, ReadTimeout):
            if not link.over():
                await self._abort(link)
        # It ends a reader of the local connection that waits still.
        local.close()

    async def _abort(self, link: _Link) -> None:
        link.gate.now(link.drop)
        try:
            await self._send(b"c", link.number)
        except (ConnectionError, OSError):
            pass
        link.gate.now(link.end)

    def _spend(self, size: int) -> Optional[bool]:
        """A step: takes room in the window for so many bytes."""
        if self.ended:
            return True
        if self._sent - self._taken + size > _WINDOW:
            return None
        self._sent += size
        return True

    async def _send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        await self._socket.send(frame(kind, number, payload))

    async def _read(self) -> None:
        """Hands out what comes, until the tunnel is closed."""
        try:
            while True:
                message = await self._socket.recv()
                if not isinstance(message, bytes):
                    break
                if len(message) >= _HEAD:
                    await self._take(message[:1], int.from_bytes(message[1:_HEAD], "big"), message[_HEAD:])
        except RuntimeError:
            # Its connections end, and the next one opens another tunnel.
            pass
        finally:
            self._end()
        await self._socket.close()

    async def _take(self, kind: bytes, number: int, payload: bytes) -> None:
        if kind == b"a" and len(payload) == 8:
            self._gate.now(partial(self._credit, int.from_bytes(payload, "big")))
            return
        link = self._links.get(number)
        if link is None:
            return
        if link.opened is None:
            # Whatever is no "opened" is a refusal.
            link.gate.now(partial(link.opened_by, kind))
            if kind == b"c":
                link.gate.now(link.end)
        elif kind == b"d" and payload:
            await link.gate.until(partial(link.put, payload))
        elif kind == b"e":
            link.gate.now(link.finish)
        elif kind == b"c":
            link.gate.now(link.end)

    def _credit(self, taken: int) -> bool:
        self._taken = max(self._taken, min(taken, self._sent))
        return True

    def _end(self) -> None:
        def all_over() -> list[_Link]:
            self.ended = True
            return list(self._links.values())

        for link in self._gate.now(all_over):
            link.gate.now(link.end)
