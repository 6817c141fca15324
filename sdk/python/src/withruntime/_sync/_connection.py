# Written by scripts/derive_sync.py from _async/_connection.py: do not edit.
"""One connection to the server: a request out, an answer in, again."""

from __future__ import annotations

from typing import Optional

from .. import _io_sync as io
from .._wire import HEAD_LIMIT, BodyReader, Head, WireError, parse_head


class Connection:
    """A stream of HTTP/1.1. One request at a time."""

    def __init__(self, stream: io.Stream) -> None:
        self._stream = stream
        self._unread = b""
        self._body: Optional[BodyReader] = None
        self._keep_alive = True
        #: Whether a byte of the present answer has come.
        self.answering = False

    def send(self, data: bytes, timeout: Optional[float]) -> None:
        self.answering = False
        self._body = None
        self._stream.write(data, timeout)

    def head(self, timeout: Optional[float]) -> Head:
        """The head of the answer. Afterwards its body is read with `part`."""
        until = None if timeout is None else io.now() + timeout
        raw = bytearray(self._unread)
        while b"\r\n\r\n" not in raw:
            if len(raw) > HEAD_LIMIT:
                raise WireError("the answer's head is endless")
            data = self._stream.read(None if until is None else max(0.0, until - io.now()))
            if not data:
                raise WireError("the connection closed before an answer")
            self.answering = True
            raw += data
        first, _, rest = bytes(raw).partition(b"\r\n\r\n")
        head = parse_head(first)
        self._unread = rest
        self._body = BodyReader(head)
        self._keep_alive = head.keep_alive
        return head

    def part(self, timeout: Optional[float]) -> bytes:
        """The next bytes of the body; `b""` once it is whole."""
        body = self._body
        if body is None:
            raise WireError("there is no answer to read")
        while not body.done:
            data, self._unread = self._unread, b""
            if not data:
                data = self._stream.read(timeout)
            joined = b"".join(body.feed(data))
            if joined:
                return joined
        return b""

    def reusable(self) -> bool:
        """Whether the last answer was read to its end and another may follow it."""
        body = self._body
        return body is not None and body.done and body.framed and self._keep_alive and not self._unread

    def detach(self) -> tuple[io.Stream, bytes]:
        """The stream, and what was read of it beyond the answer, for another protocol."""
        return self._stream, self._unread

    def idle(self) -> bool:
        return self._stream.idle()

    def close(self) -> None:
        self._stream.close()
