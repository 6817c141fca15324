"""What opening a connection has in common for both clients: the proxy's tunnel, socket options, the failure's words."""

from __future__ import annotations

import socket
from typing import Optional

from ._config import Origin, Proxy
from ._wire import HEAD_LIMIT, OpenError


def tune(sock: socket.socket) -> None:
    """Small writes go out at once, and a peer that is gone is noticed in time."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def request(origin: Origin, proxy: Proxy) -> bytes:
    """What asks a proxy for a tunnel."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    lines = [f"CONNECT {host}:{origin.port} HTTP/1.1", f"Host: {host}:{origin.port}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Answer:
    """The proxy's answer, byte by byte, so that nothing of what follows is taken."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._head = bytearray()

    def feed(self, data: bytes) -> bool:
        """Whether the tunnel stands. Raises OSError if it will not."""
        self._head += data
        if not data or len(self._head) > HEAD_LIMIT:
            raise OSError("the proxy's answer is no HTTP")
        if not self._head.endswith(b"\r\n\r\n"):
            return False
        status = bytes(self._head).split(b" ", 2)[1:2]
        if not status or not status[0].startswith(b"2"):
            first = bytes(self._head).split(b"\r\n", 1)[0].decode("latin-1", "replace")
            raise OSError(f"the proxy refused: {first[:200]}")
        return True


def opening_failed(origin: Origin, proxy: Optional[Proxy], error: BaseException) -> OpenError:
    """Where to, and why not."""
    way = f" through the proxy {proxy}" if proxy else ""
    return OpenError(f"{origin.text} could not be reached{way}: {error or type(error).__name__}")
