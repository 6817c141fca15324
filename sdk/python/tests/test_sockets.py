"""Terminals and tunnels, against a server that does on the WebSocket what each test wants."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Awaitable, Callable

import pytest

from withruntime import AsyncSandbox, ConnectionError, NotFoundError, RuntimeError, Sandbox, ServiceUnavailableError

from .forms import BOX, both, settle
from .peer import Line, Peer
from .player import Player, answer, refusal


def drive(form: str, url: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """Runs `work` with a sandbox's handle of that form."""

    async def run() -> Any:
        kind: Any = AsyncSandbox if form == "async" else Sandbox
        return await asyncio.wait_for(work(kind.from_session("rtsess_x", BOX["id"], api_url=url)), 60)

    return asyncio.run(run())


#: Of its own: the event loop's are few, and look up names too.
THREADS = ThreadPoolExecutor(32)


async def blocking(work: Callable[[], Any]) -> Any:
    """Local programs that use a forwarded port, where they hold up no event loop."""
    return await asyncio.get_running_loop().run_in_executor(THREADS, work)


READY = {"type": "ready", "processId": "p1"}


@both
def test_a_terminal_says_and_hears(form: str) -> None:
    heard: list[Any] = []
    over = threading.Event()

    def shell(line: Line) -> None:
        line.send(READY)
        line.frame(9, b"there?")
        line.send(b"$ ")
        while True:
            kind, data = line.recv()
            heard.append((kind, data))
            if data == b"exit\n":
                line.send(b"bye")
                line.send({"type": "exit", "exitCode": 7})
                line.frame(8, (1000).to_bytes(2, "big"))
                heard.append(line.recv())
                over.set()
                return

    async def work(box: Any) -> None:
        terminal = await settle(box.terminal(cols=100, rows=30, command="bash", user="root", cwd="/"))
        assert terminal.process_id == "p1" and terminal.exit_code is None
        assert await settle(terminal.recv()) == b"$ "
        await settle(terminal.resize(120, 40))
        await settle(terminal.write("exit\n"))
        assert await settle(terminal.recv()) == b"bye"
        assert await settle(terminal.recv()) is None and terminal.exit_code == 7
        assert await settle(terminal.recv()) is None
        await settle(terminal.close())
        with pytest.raises(ConnectionError):
            await settle(terminal.write("more"))

    with Peer(shell) as peer:
        drive(form, peer.url, work)
        assert peer.lines[0].target.endswith("/terminal?cols=100&rows=30&command=bash&cwd=%2F&user=root")
        assert over.wait(30)
    assert heard[:3] == [(10, b"there?"), (1, b'{"type": "resize", "cols": 120, "rows": 40}'), (2, b"exit\n")]
    assert heard[3][0] == 8


@both
def test_a_refusal_on_the_socket_keeps_its_class_and_its_reason(form: str) -> None:
    error = {"code": "not_found", "status": 404, "message": "There is none.", "requestId": "req_test"}

    def refuse(line: Line) -> None:
        line.send({"type": "error", "error": error})
        line.recv()

    with Peer(refuse) as peer:
        for code, open_it in (
            ("terminal_refused", lambda box: settle(box.terminal())),
            ("tunnel_refused", lambda box: settle(box.forward_port(80))),
        ):
            with pytest.raises(NotFoundError, match="There is none") as told:
                drive(form, peer.url, open_it)
            assert told.value.code == code and told.value.details == {"code": "not_found"}
            assert told.value.request_id == "req_test" and told.value.status == 404


@both
def test_a_refused_upgrade_is_the_servers_own_error(form: str, quick: Any) -> None:
    with Player([refusal(503, "busy"), refusal(501, "unavailable")]) as player:
        with pytest.raises(ServiceUnavailableError) as told:
            drive(form, player.url, lambda box: settle(box.terminal()))
        assert told.value.code == "unavailable" and len(player.requests) == 2
    with Player([answer({})]) as player, pytest.raises(RuntimeError):
        drive(form, player.url, lambda box: settle(box.terminal()))


@both
@pytest.mark.parametrize("first", [b"\x82\x01x", b"\x88\x00", b"\x81\x02{}", b"\xff\xff", b""])
def test_what_does_not_begin_as_it_should(form: str, first: bytes) -> None:
    with Peer(lambda line: line.connection.sendall(first)) as peer, pytest.raises(RuntimeError) as told:
        drive(form, peer.url, lambda box: settle(box.terminal()))
    assert told.value.code in ("terminal_refused", "connection_error")


@both
def test_an_answer_for_someone_else_is_no_upgrade(form: str) -> None:
    with Peer(lambda line: line.send(READY), accept="wrong") as peer, pytest.raises(ConnectionError):
        drive(form, peer.url, lambda box: settle(box.terminal()))


@both
def test_a_lost_terminal_is_an_error_and_not_an_end(form: str) -> None:
    def lose(line: Line) -> None:
        line.send(READY)
        line.send(b"so far")

    async def work(box: Any) -> None:
        terminal = await settle(box.terminal())
        assert await settle(terminal.recv()) == b"so far"
        with pytest.raises(ConnectionError):
            await settle(terminal.recv())

    with Peer(lose) as peer:
        drive(form, peer.url, work)


class Echo:
    """A sandbox whose ports say back what they hear. Port 9 has nobody, port 7 one who never reads.

    It gives credit late, so that the client must wait for it, and notes the most that was on the way in one tunnel.
    """

    def __init__(self) -> None:
        self.most = 0
        self.unread = 0

    def __call__(self, line: Line) -> None:
        lock, over = threading.Lock(), threading.Event()
        sent = taken = stuck = 0
        ports: dict[bytes, bytes] = {}

        def credit() -> None:
            nonlocal taken
            try:
                while not over.wait(0.002):
                    with lock:
                        if taken != sent - stuck:
                            taken = sent - stuck
                            line.send(b"a" + bytes(4) + taken.to_bytes(8, "big"))
            except OSError:
                # The client has left.
                return

        line.send({"type": "ready"})
        threading.Thread(target=credit, daemon=True).start()
        while True:
            kind, data = line.recv()
            if kind == 8:
                over.set()
                return
            what, number, payload = data[:1], data[1:5], data[5:]
            with lock:
                if what == b"o":
                    ports[number] = payload
                    line.send(b"c" + number + b"closed" if payload == b"tcp 9" else b"o" + number)
                elif what == b"d":
                    assert len(payload) <= 65536
                    sent += len(payload)
                    self.most = max(self.most, sent - taken)
                    if ports[number] == b"tcp 7":
                        stuck += len(payload)
                        self.unread = stuck
                    else:
                        line.send(b"d" + number + payload)
                elif what == b"e":
                    line.send(b"e" + number)
                    line.send(b"c" + number + b"done")


def echoed(port: int, data: bytes) -> bytes:
    """What comes back from a local port."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:

        def send() -> None:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                # It was ended; what has come back tells.
                pass

        sender = threading.Thread(target=send)
        sender.start()
        got = bytearray()
        while True:
            piece = connection.recv(65536)
            if not piece:
                break
            got += piece
        sender.join()
        return bytes(got)


def gone(port: int) -> bool:
    """Whether a connection to a local port ends with nothing."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        try:
            return connection.recv(1) == b""
        except OSError:
            return True


@both
@pytest.mark.parametrize("connections, tunnels", [(1, 1), (4, 4), (20, 8)])
def test_many_connections_within_their_credit(form: str, connections: int, tunnels: int) -> None:
    echo = Echo()
    data = [bytes([number]) * 1_500_000 for number in range(connections)]

    async def work(box: Any) -> None:
        forward = await settle(box.forward_port(80, local_port=0))
        assert forward.port == 80 and forward.host == "127.0.0.1"
        ran = [blocking(lambda one=one: echoed(forward.local_port, one)) for one in data]  # type: ignore[misc]
        assert await asyncio.gather(*ran) == data
        await settle(forward.close())
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", forward.local_port), 5)

    with Peer(echo) as peer:
        drive(form, peer.url, work)
        assert 1 <= len(peer.lines) <= tunnels
    assert 65536 < echo.most <= 1024 * 1024


@both
def test_one_that_nobody_reads_holds_up_no_other(form: str) -> None:
    echo = Echo()

    async def work(box: Any) -> None:
        forward = await settle(box.forward_port(80, local_port=0))
        stuck = await settle(box.forward_port(7, local_port=0))
        # Of one forward, to two ports: only the server knows them apart.
        forward._tunnels, other = stuck._tunnels, forward._tunnels
        lost = asyncio.ensure_future(blocking(lambda: cut(stuck.local_port)))
        await full(echo)
        assert await blocking(lambda: echoed(forward.local_port, bytes(2_000_000))) == bytes(2_000_000)
        # It is ended by the end of the forward.
        await settle(stuck.close())
        await asyncio.wait_for(lost, 30)
        await settle(forward.close())
        for one in other:
            await settle(one.close())

    with Peer(echo) as peer:
        drive(form, peer.url, work)


def cut(port: int) -> None:
    """Sends until it is ended, one way or another."""
    try:
        assert echoed(port, bytes(8_000_000)) == b""
    except OSError:
        # Reset, where something was on the way.
        pass


async def full(echo: Echo) -> None:
    """Once as much is on the way as may be."""
    deadline = time.monotonic() + 120
    while echo.unread <= 1024 * 1024 - 65536:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@both
def test_a_port_that_nobody_serves_ends_the_connection(form: str) -> None:
    async def work(box: Any) -> None:
        forward = await settle(box.forward_port(9, local_port=0))
        assert await blocking(lambda: gone(forward.local_port))
        await settle(forward.close())

    with Peer(Echo()) as peer:
        drive(form, peer.url, work)


@both
def test_a_lost_tunnel_is_opened_again(form: str) -> None:
    async def work(box: Any) -> None:
        forward = await settle(box.forward_port(80, local_port=0))
        assert await blocking(lambda: echoed(forward.local_port, b"one")) == b"one"
        peer.lines[0].connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + 120
        while await blocking(lambda: echoed(forward.local_port, b"two")) != b"two":
            assert time.monotonic() < deadline
        await settle(forward.close())

    with Peer(Echo()) as peer:
        drive(form, peer.url, work)
        assert len(peer.lines) == 2


@both
def test_a_port_that_is_taken_leaves_no_tunnel(form: str) -> None:
    over = threading.Event()

    def tunnel(line: Line) -> None:
        line.send({"type": "ready"})
        assert line.recv()[0] == 8
        over.set()

    with Peer(tunnel) as peer, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError):
            drive(form, peer.url, lambda box: settle(box.forward_port(80, local_port=port)))
        assert over.wait(30)


@pytest.mark.parametrize("port", [0, -1, 65536, True, "80"])
def test_a_port_is_a_number(port: Any) -> None:
    with pytest.raises(RuntimeError) as told:
        Sandbox.from_session("rtsess_x", BOX["id"], api_url="http://127.0.0.1:1").forward_port(port)
    assert told.value.code == "invalid_request"


def test_only_tokens_of_sessions_open_a_session() -> None:
    with pytest.raises(RuntimeError) as told:
        Sandbox.from_session("rtcloud_x", BOX["id"])
    assert told.value.code == "invalid_request"


@both
def test_tls_is_read_and_written_at_once(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    made = ["openssl", "req", "-x509", "-nodes", *curve, *files, "-days", "2", *names]
    subprocess.run(made, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
    data = [os.urandom(4_000_000) for _ in range(3)]

    async def work(box: Any) -> None:
        forward = await settle(box.forward_port(80, local_port=0))
        ran = [blocking(lambda one=one: echoed(forward.local_port, one)) for one in data]  # type: ignore[misc]
        assert await asyncio.gather(*ran) == data
        await settle(forward.close())

    with Peer(Flood(), tls=tls) as peer:
        drive(form, peer.url, work)


class Flood:
    """An echo in one thread, as TLS in a test wants it. It gives credit at once: the client's threads are both busy."""

    def __call__(self, line: Line) -> None:
        line.send({"type": "ready"})
        taken = 0
        while True:
            kind, data = line.recv()
            if kind == 8:
                return
            what, number, payload = data[:1], data[1:5], data[5:]
            if what == b"o":
                line.send(b"o" + number)
            elif what == b"d":
                taken += len(payload)
                line.send(b"d" + number + payload)
                line.send(b"a" + bytes(4) + taken.to_bytes(8, "big"))
            elif what == b"e":
                line.send(b"e" + number)
                line.send(b"c" + number + b"done")
