"""A port of a sandbox as a port of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Awaitable, Callable, Optional

from .. import _io_async as io
from .._errors import RuntimeError
from ._tunnel import AsyncTunnel

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncPortForward:
    """Connections to ``host:local_port`` here reach ``port`` of the sandbox. ``async with`` ends it.

    All go through one connection to the server, which is opened again with the next one where it was lost.

    Attributes:
        port: The sandbox's port.
        host: Where it listens here.
        local_port: The port it listens at here.
    """

    def __init__(self, tunnel: AsyncTunnel, port: int, open_tunnel: Callable[[], Awaitable[AsyncTunnel]]) -> None:
        self._tunnel = tunnel
        self._open_tunnel = open_tunnel
        self._opening = io.Lock()
        self._listener: Optional[io.Listener] = None
        self.port = port
        self.host = ""
        self.local_port = 0

    async def _start(self, local_port: int, host: str) -> Self:
        try:
            self._listener = await io.listen(host, local_port, self._serve)
        except BaseException:
            await self._tunnel.close()
            raise
        self.host, self.local_port = host, self._listener.port
        return self

    async def _serve(self, local: io.Duplex) -> None:
        async with self._opening:
            if self._tunnel.ended and self._listener is not None:
                try:
                    self._tunnel = await self._open_tunnel()
                except RuntimeError:
                    # Whoever connected sees the connection end, as where nothing listens.
                    return
            tunnel = self._tunnel
        await tunnel.carry(local, self.port)

    async def close(self) -> None:
        """Stops listening, and ends what is connected."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()
        await self._tunnel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.host}:{self.local_port} -> {self.port})"
