"""A proxy that does to requests what networks do: loses them, loses their answers, delays, cuts, sends twice.

It stands between a client and a real server and speaks HTTP with both. What it does is planned for each request by
the test; what passed is written down.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Optional
from urllib.parse import urlsplit

from .player import Request, read_request, refusal

#: Let it through.
PASS = "pass"
#: Lose the request: the server never sees it.
LOSE_REQUEST = "lose the request"
#: Let the server do it and lose the answer.
LOSE_ANSWER = "lose the answer"
#: Answer 503 in place of the server.
REFUSE = "refuse"
#: Let the server answer, and cut the answer in the middle.
CUT = "cut the answer"
#: Deliver the request twice, and answer the second answer.
TWICE = "deliver twice"
#: Hold the answer back for a moment.
DELAY = "delay"

ALL = (LOSE_REQUEST, LOSE_ANSWER, REFUSE, CUT, TWICE, DELAY)

Plan = Callable[[Request], str]


@dataclass
class FaultyNetwork:
    """The proxy, on a port of its own."""

    server: str
    plan: Plan
    seen: list[tuple[str, Request]] = field(default_factory=list)

    def __enter__(self) -> FaultyNetwork:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def done(self, fault: str) -> int:
        """How often a fault was done."""
        return sum(1 for one, _ in self.seen if one == fault)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # Of its answers some are streams that end with their connection: one request for each.
        try:
            with client, client.makefile("rb") as reader:
                request = read_request(reader)
                if request is None:
                    return
                with self._lock:
                    fault = self.plan(request)
                    self.seen.append((fault, request))
                self._carry(client, request, fault)
        except (OSError, ValueError):
            return

    def _carry(self, client: socket.socket, request: Request, fault: str) -> None:
        if fault == LOSE_REQUEST:
            return
        if fault == REFUSE:
            client.sendall(b"".join(refusal(503, "host_unavailable", {"connection": "close"}).parts))
            return
        if fault in (LOSE_ANSWER, TWICE):
            self._to_server(request, None)
            if fault == LOSE_ANSWER:
                return
        if fault == DELAY:
            time.sleep(0.2)
        self._to_server(request, client, cut=fault == CUT)

    def _to_server(self, request: Request, client: Optional[socket.socket], cut: bool = False) -> None:
        """Sends the request on, and its answer back: all of it, or about half of what comes first behind the head."""
        target = urlsplit(self.server)
        with socket.create_connection((target.hostname, target.port or 80)) as server:
            headers = {**request.headers, "connection": "close"}
            head = f"{request.method} {request.target} HTTP/1.1\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            server.sendall(head.encode() + b"\r\n" + request.body)
            received = b""
            while True:
                data = server.recv(65536)
                if not data:
                    return
                if client is None:
                    continue
                if not cut:
                    client.sendall(data)
                    continue
                received += data
                at = received.find(b"\r\n\r\n")
                if at >= 0 and len(received) > at + 8:
                    client.sendall(received[: at + 4 + (len(received) - at - 4) // 2])
                    return


def first(fault: str, matches: Callable[[Request], bool], times: int = 1) -> Plan:
    """Does a fault to the first requests that match, and passes all else."""
    left = [times]

    def plan(request: Request) -> str:
        if left[0] and matches(request):
            left[0] -= 1
            return fault
        return PASS

    return plan


def every(number: int, faults: tuple[str, ...]) -> Plan:
    """Does one fault after the other, to every so many requests."""
    state = {"count": 0, "next": 0}

    def plan(request: Request) -> str:
        state["count"] += 1
        if state["count"] % number:
            return PASS
        state["next"] += 1
        return faults[state["next"] % len(faults)]

    return plan
