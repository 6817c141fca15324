"""WebSockets (RFC 6455) as far as this client speaks them: bytes in, messages out. No sockets.

A message has a limit that is checked before it is kept. Compression and protocols are never asked for.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from typing import Optional

from ._wire import Head, WireError

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
_CONTINUATION = 0x0
#: Largest message that is kept; the server's are far smaller.
MESSAGE_LIMIT = 16 * 1024 * 1024
_CONTROL_LIMIT = 125
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(frozen=True)
class Message:
    """A whole message, or a control frame."""

    kind: int
    data: bytes


def new_key() -> str:
    """The `Sec-WebSocket-Key` of one upgrade."""
    return base64.b64encode(os.urandom(16)).decode()


def upgrade_headers(key: str) -> list[tuple[str, str]]:
    return [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key),
    ]


def check_upgrade(head: Head, key: str) -> None:
    """Whether a 101 answers this upgrade. Raises `WireError`."""
    wanted = base64.b64encode(hashlib.sha1(key.encode() + _MAGIC, usedforsecurity=False).digest()).decode()
    if head.headers.get("sec-websocket-accept") != wanted or head.headers.get("upgrade", "").lower() != "websocket":
        raise WireError("the answer to the upgrade is not for this WebSocket")


def frame(kind: int, data: bytes, mask: Optional[bytes] = None) -> bytes:
    """One message in one frame, masked as a client must."""
    size = len(data)
    head = bytearray([0x80 | kind])
    if size < 126:
        head.append(0x80 | size)
    elif size < 65536:
        head.append(0x80 | 126)
        head += size.to_bytes(2, "big")
    else:
        head.append(0x80 | 127)
        head += size.to_bytes(8, "big")
    key = mask or os.urandom(4)
    # One number instead of a loop: as quick as Python does it.
    stretched = (key * (size // 4 + 1))[:size]
    masked = int.from_bytes(data, "little") ^ int.from_bytes(stretched, "little")
    return bytes(head) + key + masked.to_bytes(size, "little")


class Messages:
    """Takes messages out of the bytes of a connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._kind: Optional[int] = None
        self._parts = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. Raises `WireError` for what no server may send."""
        self._buffer += data
        messages: list[Message] = []
        while True:
            whole = self._frame()
            if whole is None:
                return messages
            final, kind, payload = whole
            if kind >= CLOSE:
                if kind not in (CLOSE, PING, PONG) or not final:
                    raise WireError("a control frame of the WebSocket is malformed")
                messages.append(Message(kind, payload))
                continue
            if (kind == _CONTINUATION) != (self._kind is not None) or kind not in (_CONTINUATION, TEXT, BINARY):
                raise WireError("the frames of the WebSocket are out of order")
            if kind != _CONTINUATION:
                self._kind = kind
            if len(self._parts) + len(payload) > MESSAGE_LIMIT:
                raise WireError("a message of the WebSocket is too large")
            self._parts += payload
            if final:
                messages.append(Message(self._kind or kind, bytes(self._parts)))
                self._kind = None
                self._parts.clear()

    def _frame(self) -> Optional[tuple[bool, int, bytes]]:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        if first & 0x70 or second & 0x80:
            raise WireError("a frame of the WebSocket uses what was not agreed on")
        kind, size, start = first & 0x0F, second & 0x7F, 2
        if size > 125:
            start = 4 if size == 126 else 10
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[2:start], "big")
        if size > (_CONTROL_LIMIT if kind >= CLOSE else MESSAGE_LIMIT):
            raise WireError("a frame of the WebSocket is too large")
        if len(buffer) < start + size:
            return None
        payload = bytes(buffer[start : start + size])
        del buffer[: start + size]
        return bool(first & 0x80), kind, payload
