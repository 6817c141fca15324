"""The other end of WebSockets: a server that speaks the real protocol and does what a test wants on each connection."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import ssl
import threading
from typing import Any, Callable, Optional, Union

from .player import read_request

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Line:
    """One connection, after its upgrade."""

    def __init__(self, connection: socket.socket, reader: Any, target: str) -> None:
        self.connection = connection
        self.target = target
        self._reader = reader

    def send(self, message: Union[str, bytes, dict[str, Any]]) -> None:
        """A text, bytes, or an object as text."""
        if isinstance(message, dict):
            message = json.dumps(message)
        kind, data = (1, message.encode()) if isinstance(message, str) else (2, message)
        self.frame(kind, data)

    def frame(self, kind: int, data: bytes) -> None:
        size = len(data)
        length = bytes([size]) if size < 126 else b"\x7f" + size.to_bytes(8, "big")
        self.connection.sendall(bytes([0x80 | kind]) + length + data)

    def recv(self) -> tuple[int, bytes]:
        """The kind and data of the next frame; kind 8 also where the connection is gone."""
        head = self._reader.read(2)
        if len(head) < 2:
            return 8, b""
        assert head[0] & 0x80 and head[1] & 0x80, "a client sends whole frames, masked"
        size = head[1] & 0x7F
        if size > 125:
            size = int.from_bytes(self._reader.read(2 if size == 126 else 8), "big")
        mask = self._reader.read(4)
        data = self._reader.read(size)
        key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        return head[0] & 0x0F, (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")


class Peer:
    """Upgrades every connection and does `work` on it, in a thread each."""

    def __init__(
        self, work: Callable[[Line], None], accept: Optional[str] = None, tls: Optional[ssl.SSLContext] = None
    ) -> None:
        self._work = work
        self._tls = tls
        self._accept_as = accept
        self.lines: list[Line] = []

    def __enter__(self) -> Peer:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self.lines:
            line.connection.close()

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        if self._tls:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection, connection.makefile("rb") as reader:
            request = read_request(reader)
            if request is None:
                return
            digest = hashlib.sha1(request.headers["sec-websocket-key"].encode() + _MAGIC).digest()
            accept = self._accept_as or base64.b64encode(digest).decode()
            connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
                b"sec-websocket-accept: " + accept.encode() + b"\r\n\r\n"
            )
            line = Line(connection, reader, request.target)
            self.lines.append(line)
            try:
                self._work(line)
            except OSError:
                return
