"""Terminals and tunnels: byte for byte, by the client and by hand."""

import hashlib
import os
import socket
import threading
import time

from socket_by_hand import Refused, Socket
from support import box, check, eventually, host, main, raw, rt, together


def until(terminal, wanted, seconds=120):
    """Output up to and with the wanted bytes."""
    seen, end = b"", time.monotonic() + seconds
    while wanted not in seen:
        data = terminal.recv()
        assert data is not None and time.monotonic() < end, (wanted, seen[-2000:])
        seen += data
    return seen


def rest(terminal):
    seen = b""
    while (data := terminal.recv()) is not None:
        seen += data
    return seen


def shell_of(s):
    """The one process with a terminal."""
    [info] = [p for p in s.processes() if p["pty"]]
    return s.process(info["id"])


def terminal_of(s, **query):
    more = "&".join(f"{name}={value}" for name, value in query.items())
    return Socket(f"/v1/sandboxes/{s.id}/terminal?{more}")


def serve(s, code, port):
    """A server in the sandbox, up when this returns."""
    process = s.spawn(["python3", "-u", "-c", code])
    eventually(lambda: s.exec(f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))'").exit_code == 0, f"port {port}")
    return process


def forwarded(s, port):
    """The forward and the local port it listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local = probe.getsockname()[1]
    return s.forward_port(port, local_port=local), local


ECHO = """
import socket, threading
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", 7000)); l.listen(200)
def one(c):
    while d := c.recv(65536): c.sendall(d)
    c.sendall(b"bye"); c.close()
while True: threading.Thread(target=one, args=(l.accept()[0],), daemon=True).start()
"""


@check
def a_process_with_a_terminal():
    s = box()
    p = s.spawn("tty; stty size; echo $TERM; read x; echo got $x; echo err >&2; exit 7", pty={"cols": 100, "rows": 30})
    info = p.refresh()
    assert info["pty"] is True and info["stdinOpen"] is True, info
    eventually(lambda: p.refresh()["outputBytes"] > 20, "its first lines")
    p.resize(50, 20)
    p.write("hello\n")
    result = p.wait()
    text = result.stdout.replace("\r\n", "\n")
    assert result.exit_code == 7 and result.stderr == "", result
    assert text.startswith("/dev/pts/") and "\n30 100\nxterm-256color\n" in text, text
    # What is typed is echoed, and both outputs are one.
    assert "hello\ngot hello\nerr\n" in text, text
    assert p.refresh()["stdinOpen"] is False
    resize = f"/v1/sandboxes/{s.id}/processes/{p.id}:resize"
    assert raw("POST", resize, {"cols": 10, "rows": 10}).ok() == {}
    raw("POST", resize, {"cols": 0, "rows": 10}).refused(400, "invalid_request")
    raw("POST", resize, {}).refused(400, "invalid_request")
    raw("POST", f"/v1/sandboxes/{s.id}/processes/none:resize", {"cols": 1, "rows": 1}).refused(404, "not_found")
    plain = s.spawn("sleep 100")
    raw("POST", f"/v1/sandboxes/{s.id}/processes/{plain.id}:resize", {"cols": 1, "rows": 1}).refused(400, "invalid_request")
    for pty in ({}, {"cols": 1}, {"cols": 0, "rows": 1}, {"cols": 1, "rows": 99999}, 1, {"cols": 1, "rows": 1, "x": 1}):
        raw("POST", f"/v1/sandboxes/{s.id}/processes", {"command": "true", "pty": pty}).refused(400, "invalid_request")


@check
def a_resize_reaches_the_program():
    s = box()
    p = s.spawn("trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done", pty={"cols": 80, "rows": 24})
    eventually(lambda: p.refresh()["outputBytes"] >= 7, "it is ready")
    p.resize(132, 43)
    assert "43 132" in p.wait().stdout


@check
def the_end_of_input_is_told_to_a_terminal():
    s = box()
    p = s.spawn("cat; echo over", pty={"cols": 80, "rows": 24})
    raw("POST", f"/v1/sandboxes/{s.id}/processes/{p.id}:write", {"data": "one\ntwo", "offset": 0, "eof": True}).ok()
    assert p.wait().stdout.replace("\r\n", "\n").endswith("over\n")


@check
def a_terminal_shows_a_shell():
    s = box(env={"FROM": "the-sandbox"})
    t = s.terminal(cols=90, rows=33)
    t.write("stty size; echo $FROM-$((40+2)); whoami; pwd\n")
    seen = until(t, b"the-sandbox-42")
    seen += until(t, b"/workspace")
    assert b"33 90" in seen and b"runtime" in seen, seen
    t.resize(44, 12)
    t.write("stty size\n")
    until(t, b"12 44")
    info = shell_of(s)
    assert info.state == "running"
    t.write("exit 3\n")
    rest(t)
    assert info.wait().exit_code == 3


@check
def a_terminal_runs_what_it_is_told_as_whom_and_where():
    s = box()
    t = s.terminal(command="id -un; pwd; printf 'a\\377b'; stty -echo; echo end", user="root", cwd="/tmp")
    seen = rest(t)
    assert seen.replace(b"\r\n", b"\n") == b"root\n/tmp\na\xffbend\n", seen
    by_hand = terminal_of(s, command="exit%205")
    assert by_hand.text()["type"] == "ready"
    assert by_hand.text() == {"type": "exit", "exitCode": 5}
    assert by_hand.closed() == 1000
    killed = terminal_of(s, command="kill%20-9%20%24%24")
    assert killed.text()["type"] == "ready" and killed.text() == {"type": "exit", "exitCode": -9}


@check
def a_full_screen_of_bytes_comes_exactly():
    s = box()
    s.exec("head -c 3000000 /dev/urandom > blob", check=True)
    t = s.terminal(command="stty raw -echo; cat blob")
    seen = rest(t)
    assert hashlib.sha256(seen).hexdigest() == hashlib.sha256(s.files.read("/workspace/blob")).hexdigest(), len(seen)
    # The other way: what is typed arrives whole, however slowly it is read.
    # gVisor's terminals send signals for ^C, ^Z and ^\, too, where the program asked for none; the bytes come all the same.
    data = bytes(range(256)) + os.urandom(400_000)
    t = s.terminal(command=f"trap '' INT TSTP QUIT; stty raw -echo; echo go; sleep 1; head -c {len(data)} > typed; cat typed")
    until(t, b"go\n")
    t.write(data)
    seen = rest(t)
    assert s.files.read("/workspace/typed") == data
    assert seen == data, len(seen)


@check
def several_terminals_show_one_process():
    s = box()
    p = s.spawn("stty -echo; echo here; while read x; do echo got $x; done", pty={"cols": 80, "rows": 24})
    eventually(lambda: p.refresh()["outputBytes"] >= 6, "it is ready")
    one, two = s.terminal(process_id=p.id), s.terminal(process_id=p.id)
    until(one, b"here"), until(two, b"here")
    one.write("a\n")
    two.write("b\n")
    for t in (one, two):
        seen = until(t, b"got b")
        assert b"got" in seen
    one.close()
    two.write("c\n")
    until(two, b"got c")
    two.close()
    time.sleep(1)  # Time in which a process that is hung up would be gone.
    assert p.refresh()["state"] == "running", "it was not these that opened it"
    p.kill()
    for query in ({"processId": s.spawn("sleep 9").id}, {"processId": "none"}, {"cols": 0}, {"bogus": 1}, {"cwd": "x"},
                  {"processId": p.id, "command": "x"}, {"user": "nobody"}):
        t = terminal_of(s, **query)
        assert t.text()["type"] == "error", query


@check
def a_shell_is_hung_up_when_its_terminal_goes():
    s = box()
    t = s.terminal()
    t.write("sleep 1000 & echo at $((1+1))\n")
    until(t, b"at 2")
    shell = shell_of(s)
    # One that is cut without a word.
    by_hand = terminal_of(s)
    other = by_hand.text()["processId"]
    by_hand.cut()
    t.close()
    eventually(lambda: shell.refresh()["state"] != "running", "the shell is hung up")
    eventually(lambda: s.process(other).state != "running", "the other too")


@check
def twelve_terminals_and_no_more():
    s = box()
    open_ones = [terminal_of(s, command="cat") for _ in range(12)]
    assert all(t.text()["type"] == "ready" for t in open_ones)
    refused = terminal_of(s).text()
    assert refused["type"] == "error" and refused["error"]["code"] == "rate_limited", refused
    open_ones[0].close()
    eventually(lambda: terminal_of(s, command="true").text()["type"] == "ready", "a place is given back")
    for t in open_ones[1:]:
        t.send(b"x\n")
        while b"x" not in t.frame()[1]:
            pass


@check
def a_terminal_goes_on_after_a_crash_of_the_server():
    s = box()
    t = s.terminal()
    t.write("X=kept; echo set-$((1+1))\n")
    until(t, b"set-2")
    shell = shell_of(s)
    host("kill9")
    host("start")
    eventually(lambda: rt.sandboxes.get(s.id).state == "running", "adopted", 20)
    again = s.terminal(process_id=shell.id)
    again.write("echo $X-$((2+2))\n")
    until(again, b"kept-4")
    # A stop of the server closes it and hangs nothing up.
    by_hand = terminal_of(s, processId=shell.id)
    assert by_hand.text()["type"] == "ready"
    host("stop")
    host("start")
    eventually(lambda: rt.sandboxes.get(s.id).state == "running", "adopted", 20)
    assert s.process(shell.id).state == "running"


@check
def sockets_are_refused_as_the_contract_says():
    s = box()
    path = f"/v1/sandboxes/{s.id}"
    for key in (None, "rtcloud_wrong"):
        for what in ("/terminal", "/tunnel"):
            assert fails_with(lambda: Socket(path + what, key=key)) == 401
    for what in ("/terminal", "/tunnel"):
        raw("GET", path + what).refused(400, "invalid_request")
        gone = Socket(f"/v1/sandboxes/00000000-0000-7000-8000-000000000000{what}").text()
        assert gone["type"] == "error" and gone["error"]["code"] == "not_found", gone
        assert gone["error"]["requestId"].startswith("req_")
    assert Socket(path + "/tunnel?x=1").text()["type"] == "error"
    s.stop()
    for what in ("/terminal", "/tunnel"):
        stopped = Socket(path + what).text()
        assert stopped["error"]["code"] == "sandbox_stopped", stopped


def fails_with(function):
    try:
        function()
    except Refused as refused:
        return refused.status
    raise AssertionError("it was accepted")


@check
def a_stop_ends_what_is_open():
    s = box()
    t, tunnel = terminal_of(s), Socket(f"/v1/sandboxes/{s.id}/tunnel")
    assert t.text()["type"] == "ready" and tunnel.text()["type"] == "ready"
    s.stop()
    assert t.closed() is not None and tunnel.closed() is not None


@check
def ports_are_forwarded_byte_for_byte():
    s = box()
    serve(s, ECHO, 7000)
    forward, port = forwarded(s, 7000)

    def one(number):
        data = os.urandom(1_500_000 + number)
        c = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=lambda: (c.sendall(data), c.shutdown(socket.SHUT_WR)), daemon=True).start()
        got = b""
        while piece := c.recv(65536):
            got += piece
        c.close()
        return got == data + b"bye"

    assert together(12, one) == [True] * 12
    assert one(0)
    # Nothing listens: the connection ends.
    closed, nothing = forwarded(s, 7999)
    c = socket.create_connection(("127.0.0.1", nothing))
    c.settimeout(120)
    try:
        assert c.recv(10) == b""
    except ConnectionResetError:
        pass
    forward.close()
    closed.close()


@check
def a_server_that_speaks_first_is_heard():
    s = box()
    serve(s, "import socket\nl = socket.socket(); l.bind(('127.0.0.1', 7000)); l.listen(100)\n"
             "while True:\n    c = l.accept()[0]\n    try:\n        c.sendall(b'220 hello')\n        c.close()\n    except OSError: pass\n", 7000)
    forward, port = forwarded(s, 7000)

    def one(_):
        c = socket.create_connection(("127.0.0.1", port))
        got = b""
        while piece := c.recv(100):
            got += piece
        return got

    for _ in range(5):
        assert together(8, one) == [b"220 hello"] * 8
    forward.close()


def frame(kind, number, payload=b""):
    return kind.encode() + number.to_bytes(4, "big") + payload


class Tunnel(Socket):
    def __init__(self, s):
        super().__init__(f"/v1/sandboxes/{s.id}/tunnel")
        assert self.text() == {"type": "ready"}
        self.credit = 0

    def hear(self):
        """The next frame that is not credit."""
        while True:
            kind, data = self.frame()
            assert kind == 2, (kind, data)
            if data[:1] != b"a":
                return data[:1].decode(), int.from_bytes(data[1:5], "big"), data[5:]
            assert data[1:5] == b"\0\0\0\0"
            credit = int.from_bytes(data[5:], "big")
            assert credit > self.credit
            self.credit = credit


@check
def a_tunnel_by_hand():
    s = box()
    serve(s, ECHO, 7000)
    t = Tunnel(s)
    t.send(frame("o", 1, b"tcp 7000"))
    assert t.hear() == ("o", 1, b"")
    t.send(frame("d", 1, b"hello"))
    assert t.hear() == ("d", 1, b"hello")
    t.send(frame("e", 1))
    assert [t.hear() for _ in range(3)] == [("d", 1, b"bye"), ("e", 1, b""), ("c", 1, b"done")]
    for number, (target, reason) in enumerate([(b"tcp 7999", b"closed"), (b"tcp 10800", b"reserved"), (b"tcp 10802", b"reserved"),
                                               (b"tcp 10853", b"reserved"), (b"ssh ssh-ed25519 AAAA", b"the key does not read")], 2):
        t.send(frame("o", number, target))
        assert t.hear() == ("c", number, reason), target
    for number, target in enumerate([b"tcp 0", b"tcp 70000", b"tcp -1", b"tcp +80", b"udp 53", b"", b"tcp 80 ", b"\xff", b"tcp 10.0.0.1:80"], 20):
        t.send(frame("o", number, target))
        kind, of, reason = t.hear()
        assert (kind, of) == ("c", number) and reason not in (b"", b"done", b"closed"), (target, reason)
    # Data of a connection that is not there is nobody's; the tunnel goes on, and its credit comes back.
    t.send(frame("d", 99, b"x" * 1000))
    t.send(frame("e", 99))
    t.send(frame("c", 99))
    t.send(frame("o", 50, b"tcp 7000"))
    assert t.hear() == ("o", 50, b"")
    t.send(frame("d", 50, b"y" * 70_000))
    got = b""
    while len(got) < 70_000:
        got += t.hear()[2]
    assert t.credit >= 71_005
    t.send(frame("c", 50))
    t.close()


@check
def who_sends_past_the_credit_is_cut_off():
    s = box()
    # Accepts and never reads.
    serve(s, "import socket, time\nl = socket.socket(); l.bind(('127.0.0.1', 7000)); l.listen(100)\nk = []\nwhile True: k.append(l.accept())\n", 7000)
    t = Tunnel(s)
    t.send(frame("o", 1, b"tcp 7000"))
    assert t.hear() == ("o", 1, b"")
    sent = 0
    try:
        while sent < 64 << 20:
            t.send(frame("d", 1, b"z" * 65_536))
            sent += 65_536
        raise AssertionError("nothing bounds it")
    except OSError:
        pass
    broken = Tunnel(s)
    broken.send(frame("o", 0, b"tcp 7000"))
    assert broken.text()["type"] == "error" and broken.closed() is not None
    for junk in (b"", b"o", b"o\0\0\0"):
        t = Tunnel(s)
        t.send(junk)
        assert t.text()["type"] == "error", junk
    twice = Tunnel(s)
    twice.send(frame("o", 1, b"tcp 7000"))
    assert twice.hear() == ("o", 1, b"")
    twice.send(frame("o", 1, b"tcp 7000"))
    assert twice.text()["type"] == "error"
    assert s.exec("echo on").stdout == "on\n"


@check
def a_reader_that_is_slow_loses_nothing_and_holds_up_nobody_else():
    s = box()
    serve(s, "import socket, threading\nl = socket.socket(); l.bind(('127.0.0.1', 7000)); l.listen(100)\n"
             "def one(c):\n    [c.sendall(bytes([n % 256]) * 65536) for n in range(320)]; c.close()\n"
             "while True: threading.Thread(target=one, args=(l.accept()[0],), daemon=True).start()\n", 7000)
    slow = Tunnel(s)
    slow.send(frame("o", 1, b"tcp 7000"))
    assert slow.hear() == ("o", 1, b"")
    other = Tunnel(s)
    other.send(frame("o", 1, b"tcp 7000"))
    for t in (other, slow):
        got = hashlib.sha256()
        count = 0
        while True:
            kind, _, data = t.hear()
            if kind == "d":
                got.update(data)
                count += len(data)
            elif kind == "e":
                break
        expected = hashlib.sha256()
        for n in range(320):
            expected.update(bytes([n % 256]) * 65536)
        assert count == 320 * 65536 and got.digest() == expected.digest(), count


@check
def many_connections_of_one_tunnel_are_kept_apart():
    s = box()
    serve(s, ECHO, 7000)
    t = Tunnel(s)
    for number in range(1, 101):
        t.send(frame("o", number, b"tcp 7000") )
        t.send(frame("d", number, b"%d " % number * 50))
        t.send(frame("e", number))
    got, done = {}, set()
    while len(done) < 100:
        kind, number, data = t.hear()
        if kind == "d":
            got[number] = got.get(number, b"") + data
        elif kind == "c":
            assert data == b"done"
            done.add(number)
    assert all(got[n] == b"%d " % n * 50 + b"bye" for n in range(1, 101))


if __name__ == "__main__":
    main()
