# Written by scripts/derive_sync.py from _async/forward.py: do not edit.
"""A port of a sandbox as a port of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional

from .. import _io_sync as io
from .._errors import RuntimeError
from ._tunnel import Tunnel

if TYPE_CHECKING:
    from typing_extensions import Self


#: Tunnels of one forward. In each, connections share what may be on the way, and one that nobody reads holds up the
#: others; so each connection has a tunnel of its own as long as there are not more.
_TUNNELS = 8


class PortForward:
    """Connections to ``host:local_port`` here reach ``port`` of the sandbox. ``with`` ends it.

    It outlives a lost connection to the server: the next one to the port opens another.

    Attributes:
        port: The sandbox's port.
        host: Where it listens here.
        local_port: The port it listens at here.
    """

    def __init__(self, tunnel: Tunnel, port: int, open_tunnel: Callable[[], Tunnel]) -> None:
        self._tunnels = [tunnel]
        self._open_tunnel = open_tunnel
        self._choosing = io.Lock()
        self._listener: Optional[io.Listener] = None
        self.port = port
        self.host = ""
        self.local_port = 0

    def _start(self, local_port: int, host: str) -> Self:
        try:
            self._listener = io.listen(host, local_port, self._serve)
        except BaseException:
            self._end()
            raise
        self.host, self.local_port = host, self._listener.port
        return self

    def _serve(self, local: io.Duplex) -> None:
        try:
            tunnel = self._choose()
        except RuntimeError:
            # Whoever connected sees the connection end, as where nothing listens.
            return
        tunnel.carry(local, self.port)

    def _choose(self) -> Tunnel:
        """The tunnel for one more connection, which is counted in it already."""
        with self._choosing:
            self._tunnels = [one for one in self._tunnels if not one.ended]
            best = min(self._tunnels, key=lambda one: one.load, default=None)
            if best is None or (best.load and len(self._tunnels) < _TUNNELS):
                try:
                    best = self._open_tunnel()
                    self._tunnels.append(best)
                except RuntimeError:
                    # No more of them: the connection shares one.
                    if best is None:
                        raise
            best.load += 1
            return best

    def close(self) -> None:
        """Stops listening, and ends what is connected."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._end()

    def _end(self) -> None:
        with self._choosing:
            tunnels, self._tunnels = self._tunnels, []
        for tunnel in tunnels:
            tunnel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.host}:{self.local_port} -> {self.port})"
