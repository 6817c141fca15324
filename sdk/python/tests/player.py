"""A small server that speaks the real protocol and answers what a test tells it to, one answer after the other."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Union


@dataclass(frozen=True)
class Request:
    """What the client sent."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> Optional[str]:
        return self.headers.get("idempotency-key")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """Bytes to send, and whether the connection closes after them."""

    parts: tuple[bytes, ...]
    close: bool = False
    #: Waited for before each part but the first.
    gate: Optional[threading.Event] = None


def answer(value: Any, status: int = 200, headers: Optional[Mapping[str, str]] = None) -> Answer:
    """JSON with a length."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Answer((_head(status, {"content-length": str(len(body)), **(headers or {})}) + body,))


def refusal(status: int, code: str, headers: Optional[Mapping[str, str]] = None, **more: Any) -> Answer:
    """The error envelope."""
    error = {"code": code, "status": status, "message": f"{code}.", "requestId": "req_test", **more}
    return answer({"error": error}, status, headers)


def chunked(*parts: bytes, headers: Optional[Mapping[str, str]] = None, whole: bool = True, **more: Any) -> Answer:
    """A body in chunks; cut off after the last one unless `whole`."""
    head = _head(200, {"transfer-encoding": "chunked", **(headers or {})})
    coded = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    end = [b"0\r\n\r\n"] if whole else []
    return Answer((head, *coded, *end), close=not whole, **more)


def events(*lines: Mapping[str, Any], whole: bool = True) -> Answer:
    """Newline-delimited JSON."""
    return chunked(*[json.dumps(line).encode() + b"\n" for line in lines], whole=whole)


def drop() -> Answer:
    """Closes without a word."""
    return Answer((), close=True)


def raw(data: bytes) -> Answer:
    return Answer((data,), close=True)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", "content-type: application/json", "x-request-id: req_test"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


Script = Union[list[Answer], Callable[[Request], Answer]]


@dataclass
class Player:
    """Plays a script on a port of its own. The last answer of a list is given again and again."""

    script: Script
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> Player:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # To close alone would leave the thread that accepts in its call.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._open:
                one.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def keys(self) -> list[Optional[str]]:
        return [request.key for request in self.requests]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            try:
                while True:
                    request = read_request(reader)
                    if request is None:
                        return
                    told = self._next(request)
                    for number, part in enumerate(told.parts):
                        if number and told.gate is not None:
                            told.gate.wait(30)
                        connection.sendall(part)
                    if told.close:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
            except (OSError, ValueError):
                return

    def _next(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            if not isinstance(self.script, list):
                script = self.script
            elif len(self.script) > 1:
                return self.script.pop(0)
            else:
                return self.script[0]
        return script(request)


def read_request(reader: Any) -> Optional[Request]:
    """The next request of a connection, or None where there is none."""
    line = reader.readline().decode()
    if not line:
        return None
    method, target, _ = line.split(" ", 2)
    headers = {}
    while True:
        name, colon, value = reader.readline().decode().partition(":")
        if not colon:
            break
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    body = reader.read(length)
    return Request(method, target, headers, body) if len(body) == length else None
