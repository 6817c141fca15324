# Written by scripts/derive_sync.py from _async/forward.py: do not edit.
"""A port of a sandbox as a port of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional

from .. import _io_sync as io
from .._errors import RuntimeError
from ._tunnel import Tunnel

if TYPE_CHECKING:
    from typing_extensions import Self


class PortForward:
    """Connections to ``host:local_port`` here reach ``port`` of the sandbox. ``with`` ends it.

    All go through one connection to the server, which is opened again with the next one where it was lost.

    Attributes:
        port: The sandbox's port.
        host: Where it listens here.
        local_port: The port it listens at here.
    """

    def __init__(self, tunnel: Tunnel, port: int, open_tunnel: Callable[[], Tunnel]) -> None:
        self._tunnel = tunnel
        self._open_tunnel = open_tunnel
        self._opening = io.Lock()
        self._listener: Optional[io.Listener] = None
        self.port = port
        self.host = ""
        self.local_port = 0

    def _start(self, local_port: int, host: str) -> Self:
        try:
            self._listener = io.listen(host, local_port, self._serve)
        except BaseException:
            self._tunnel.close()
            raise
        self.host, self.local_port = host, self._listener.port
        return self

    def _serve(self, local: io.Duplex) -> None:
        with self._opening:
            if self._tunnel.ended and self._listener is not None:
                try:
                    self._tunnel = self._open_tunnel()
                except RuntimeError:
                    # Whoever connected sees the connection end, as where nothing listens.
                    return
            tunnel = self._tunnel
        tunnel.carry(local, self.port)

    def close(self) -> None:
        """Stops listening, and ends what is connected."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._tunnel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.host}:{self.local_port} -> {self.port})"
