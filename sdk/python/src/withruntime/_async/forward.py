"""A port of a sandbox as a port of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Awaitable, Callable, Optional

from .. import _io_async as io
from .._errors import RuntimeError
from ._tunnel import AsyncTunnel

if TYPE_CHECKING:
    from typing_extensions import Self


#: Tunnels of one forward. In each, connections share what may be on the way, and one that nobody reads holds up the
#: others; so each connection has a tunnel of its own as long as there are not more.
_TUNNELS = 8


class AsyncPortForward:
    """Connections to ``host:local_port`` here reach ``port`` of the sandbox. ``async with`` ends it.

    It outlives a lost connection to the server: the next one to the port opens another.

    Attributes:
        port: The sandbox's port.
        host: Where it listens here.
        local_port: The port it listens at here.
    """

    def __init__(self, tunnel: AsyncTunnel, port: int, open_tunnel: Callable[[], Awaitable[AsyncTunnel]]) -> None:
        self._tunnels = [tunnel]
        self._open_tunnel = open_tunnel
        self._choosing = io.Lock()
        self._listener: Optional[io.Listener] = None
        self.port = port
        self.host = ""
        self.local_port = 0

    async def _start(self, local_port: int, host: str) -> Self:
        try:
            self._listener = await io.listen(host, local_port, self._serve)
        except BaseException:
            await self._end()
            raise
        self.host, self.local_port = host, self._listener.port
        return self

    async def _serve(self, local: io.Duplex) -> None:
        try:
            tunnel = await self._choose()
        except RuntimeError:
            # Whoever connected sees the connection end, as where nothing listens.
            return
        await tunnel.carry(local, self.port)

    async def _choose(self) -> AsyncTunnel:
        """The tunnel for one more connection, which is counted in it already."""
        async with self._choosing:
            self._tunnels = [one for one in self._tunnels if not one.ended]
            best = min(self._tunnels, key=lambda one: one.load, default=None)
            if best is None or (best.load and len(self._tunnels) < _TUNNELS):
                try:
                    best = await self._open_tunnel()
                    self._tunnels.append(best)
                except RuntimeError:
                    # No more of them: the connection shares one.
                    if best is None:
                        raise
            best.load += 1
            return best

    async def close(self) -> None:
        """Stops listening, and ends what is connected."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()
        await self._end()

    async def _end(self) -> None:
        async with self._choosing:
            tunnels, self._tunnels = self._tunnels, []
        for tunnel in tunnels:
            await tunnel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.host}:{self.local_port} -> {self.port})"
