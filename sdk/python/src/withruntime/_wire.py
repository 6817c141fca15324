"""HTTP/1.1 as far as this client speaks it: bytes in, parts out. No sockets, so that it can be fed anything.

What a server sends is bounded before it is kept: a head has a size, a chunk a length in digits, a body a limit that
its reader names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping, Optional
from urllib.parse import quote, urlencode

HEAD_LIMIT = 64 * 1024
_LINE_LIMIT = 8 * 1024


class WireError(Exception):
    """The other side did not speak HTTP/1.1, or stopped in the middle of it."""


class ReadTimeout(Exception):
    """Nothing came in the time that was given."""


class OpenError(Exception):
    """A connection could not be opened; no byte of a request was sent."""


@dataclass(frozen=True)
class Head:
    """Status line and headers of an answer; names in lower case, the last of a repeated one."""

    status: int
    headers: Mapping[str, str]
    keep_alive: bool


def request_head(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """The bytes of a request up to its body. Refuses what would end a line early."""
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers:
        if any(c in value for c in "\r\n\0"):
            raise ValueError(f"the value of the header {name} has a line break in it")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def target(path: str, query: Optional[Iterable[tuple[str, str]]] = None) -> str:
    """A path that is percent-encoded already, with its query."""
    encoded = urlencode(list(query or ()))
    return f"{path}?{encoded}" if encoded else path


def segment(text: str) -> str:
    """One part of a path, so that nothing in it can be taken for more than one."""
    return quote(text, safe="")


def parse_head(raw: bytes) -> Head:
    """The head of an answer, without the empty line that ends it."""
    lines = raw.decode("latin-1").split("\r\n")
    first = lines[0].split(" ", 2)
    if len(first) < 2 or not first[0].startswith("HTTP/1.") or len(first[1]) != 3 or not first[1].isdigit():
        raise WireError("the answer does not begin with an HTTP/1.1 status line")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise WireError("a header line of the answer has no name")
        headers[name.lower()] = value.strip()
    keep = headers.get("connection", "").lower() != "close" and first[0] == "HTTP/1.1"
    return Head(int(first[1]), headers, keep)


class BodyReader:
    """Takes a body out of the bytes of a connection, by length, by chunks or to the end."""

    def __init__(self, head: Head) -> None:
        self.done = False
        #: Whether the connection can carry another request once the body is done.
        self.framed = True
        self._buffer = bytearray()
        self._left: Optional[int] = None
        self._chunked = False
        self._trailer = False
        self._in_chunk = 0
        coding = head.headers.get("transfer-encoding", "").lower()
        length = head.headers.get("content-length")
        if head.status in (204, 304) or head.status < 200:
            self.done = True
        elif coding:
            if coding != "chunked":
                raise WireError(f"the answer is coded as {coding[:40]!r}, which was not asked for")
            self._chunked = True
        elif length is not None:
            if not length.isdigit() or len(length) > 18:
                raise WireError("the answer's length is no number")
            self._left = int(length)
            self.done = self._left == 0
        else:
            self.framed = False

    def feed(self, data: bytes) -> list[bytes]:
        """The parts of the body in `data`. `b""` is the end of the connection."""
        if self.done:
            return []
        if not data:
            if self.framed:
                raise WireError("the connection closed in the middle of an answer")
            self.done = True
            return []
        if self._chunked:
            return self._feed_chunks(data)
        if self._left is None:
            return [data]
        taken = data[: self._left]
        self._left -= len(taken)
        self.done = self._left == 0
        if len(taken) < len(data):
            self.framed = False
        return [taken]

    def _feed_chunks(self, data: bytes) -> list[bytes]:
        self._buffer += data
        parts: list[bytes] = []
        while not self.done:
            if self._in_chunk > 2:
                part = bytes(self._buffer[: self._in_chunk - 2])
                if not part:
                    break
                del self._buffer[: len(part)]
                self._in_chunk -= len(part)
                parts.append(part)
                continue
            if self._in_chunk:
                if len(self._buffer) < self._in_chunk:
                    break
                if not b"\r\n".endswith(bytes(self._buffer[: self._in_chunk])):
                    raise WireError("a chunk of the answer is longer than it said")
                del self._buffer[: self._in_chunk]
                self._in_chunk = 0
            line = self._line()
            if line is None:
                break
            self._begin(line)
        if self.done and self._buffer:
            self.framed = False
        return parts

    def _begin(self, line: bytes) -> None:
        if self._trailer:
            self.done = not line
            return
        size = line.split(b";", 1)[0].strip()
        try:
            length = int(size, 16) if 0 < len(size) <= 15 and size.isalnum() else -1
        except ValueError:
            length = -1
        if length < 0:
            raise WireError("a chunk of the answer has no length")
        if length == 0:
            self._trailer = True
        else:
            self._in_chunk = length + 2

    def _line(self) -> Optional[bytes]:
        end = self._buffer.find(b"\r\n", 0, _LINE_LIMIT)
        if end < 0:
            if len(self._buffer) >= _LINE_LIMIT:
                raise WireError("a chunk of the answer has an endless head")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line
