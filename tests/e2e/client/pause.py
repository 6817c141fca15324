"""Pause with memory, wake, and everything that pauses or wakes by itself."""

import threading
import time

import withruntime as w
from support import DATA, box, check, eventually, fails, host, main, raw, rt, saved, unique

# A counter in memory, a timer, a server on the loopback and a file of which half is written.
BUSY = r"""
import socketserver, threading, time
count = 0
half = open("/workspace/half", "w"); half.write("first half, "); half.flush()
class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        word = self.rfile.readline().strip()
        if word == b"finish":
            half.write("second half"); half.close()
        self.wfile.write(b"%d\n" % count)
socketserver.ThreadingTCPServer.allow_reuse_address = True
server = socketserver.ThreadingTCPServer(("127.0.0.1", 4000), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(0.01); count += 1
"""

ASK = r"""
import socket, sys
peer = socket.create_connection(("127.0.0.1", 4000), 5)
peer.sendall(sys.argv[1].encode() + b"\n")
print(peer.recv(99).decode().strip())
"""


def occupied(**fields):
    s = box(**fields)
    s.files.write("/workspace/busy.py", BUSY)
    s.files.write("/workspace/ask.py", ASK)
    p = s.spawn(["python3", "/workspace/busy.py"])
    eventually(lambda: s.exec(["python3", "/workspace/ask.py", "hello"]).exit_code == 0, "its server answers")
    return s, p


def count(s, word="hello"):
    return int(s.exec(["python3", "/workspace/ask.py", word], check=True).stdout)


@check
def memory_and_processes_survive():
    s, p = occupied(name=unique())
    before = count(s)
    s.pause()
    i = s.info
    assert s.state == "paused" and i["status"] == "paused" and i["stopReason"] is None and i["pausedAt"] and i["endedAt"] is None
    assert s.pause().state == "paused"
    assert s.refresh().state == "paused", "reading it does not wake it"
    assert s.wake().state == "running" and s.info["pausedAt"] is None and s.info["memoryRestored"] is True
    assert count(s, "finish") >= before
    assert s.files.read_text("/workspace/half") == "first half, second half"
    assert p.refresh()["state"] == "running"
    fails(w.ConflictError, "not_paused", lambda: rt.request("POST", f"/v1/sandboxes/{s.id}:wake", body={}), 409)
    assert s.wake().state == "running", "the client takes one that runs for woken"
    s.stop()
    fails(w.ConflictError, "not_running", s.pause, 409)


@check
def the_same_after_its_memory_went_to_the_disk():
    s, _ = occupied()
    for _ in range(3):
        before = count(s)
        s.pause()
        saved(s)
        assert s.wake().info["memoryRestored"] is True
        assert count(s) >= before
    before_it = time.time()
    assert before_it - 5 < int(s.exec("date +%s").stdout) < time.time() + 5
    assert count(s, "finish") >= before and s.files.read_text("/workspace/half") == "first half, second half"


@check
def a_paused_one_outlives_the_server():
    s, _ = occupied()
    for written_down in (False, True):
        before = count(s)
        s.pause()
        if written_down:
            saved(s)
        host("kill9")
        host("start")
        assert s.refresh().state == "paused"
        assert s.wake().state == "running" and s.info["memoryRestored"] is True
        assert count(s) >= before


@check
def calls_into_it_wake_it():
    s, _ = occupied()
    before = count(s)
    for call in (lambda: s.exec("true", check=True), lambda: s.files.write("/workspace/x", "1"),
                 lambda: s.files.read("/workspace/x"), lambda: s.files.list("/workspace"), s.processes,
                 lambda: s.spawn("sleep 0.1")):
        s.pause()
        call()
        assert s.refresh().state == "running"
    assert count(s) >= before
    s.update(auto_wake=False)
    s.pause()
    for call in (lambda: s.exec("true"), lambda: s.files.read("/workspace/x"), s.processes):
        fails(w.ConflictError, "sandbox_paused", call, 409)
    assert s.refresh().state == "paused" and s.wake().state == "running"


@check
def its_name_wakes_it():
    n = unique()
    a = rt.sandboxes.get_or_create(n, vcpu=1, memory_mib=512)
    a.files.write("/tmp/kept", "x")
    a.pause()
    fails(w.ConflictError, "name_taken", lambda: box(name=n), 409)
    b = rt.sandboxes.get_or_create(n)
    assert b.id == a.id and b.state == "running" and b.info["reused"] is True
    assert b.files.read_text("/tmp/kept") == "x", "what is only in memory"


@check
def a_command_in_flight_goes_on_after_the_wake():
    s = box()
    got = {}

    def run(name, **options):
        try:
            got[name] = s.exec("echo begun; until [ -e /tmp/go ]; do sleep 0.05; done; echo done", **options)
        except Exception as error:  # noqa: BLE001 - told to the check
            got[name] = error

    lines = []
    threads = [threading.Thread(target=run, args=("plain",)),
               threading.Thread(target=run, args=("stream",), kwargs={"on_stdout": lines.append})]
    for thread in threads:
        thread.start()
    eventually(lambda: sum(p["state"] == "running" for p in s.processes()) == 2, "both run")
    for written_down in (False, True):
        s.pause()
        if written_down:
            saved(s)
        s.wake()
    s.files.write("/tmp/go", "")
    for thread in threads:
        thread.join(60)
    for name in ("plain", "stream"):
        assert not isinstance(got[name], Exception), (name, got[name])
        assert (got[name].exit_code, got[name].stdout) == (0, "begun\ndone\n"), (name, got[name])
    assert "".join(lines) == "begun\ndone\n", lines


@check
def a_command_that_a_pause_met_is_no_replay_and_keeps_its_output():
    s = box()
    for round_ in range(5):
        done = []
        thread = threading.Thread(
            target=lambda: done.append(s.exec("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.02; done")))
        thread.start()
        time.sleep(0.03 * round_)  # Time itself is under test: the moment of the pause.
        s.pause()
        s.wake()
        thread.join(60)
        assert done and done[0].stdout == "1\n2\n3\n4\n5\n6\n7\n8\n", (round_, done)
        assert not getattr(done[0], "replayed", False)


@check
def one_that_cannot_be_written_down_stays_in_memory_and_wakes():
    s = box()
    engine = rt.request("GET", "/health")["engine"]
    # gVisor does not write down a file on the disk that is deleted and open; a machine with a kernel of its own does.
    p = s.spawn("exec 7<>/workspace/gone; rm /workspace/gone; echo kept >&7; touch /tmp/ready; exec sleep 1000")
    eventually(lambda: s.files.exists("/tmp/ready"), "the file is gone")
    saves = DATA / "pool/save"
    before = saves.stat().st_mtime_ns
    s.pause()
    if engine == "gvisor":
        eventually(lambda: saves.stat().st_mtime_ns != before and not list(saves.iterdir()),
                   "a save was tried and given up")
    else:
        saved(s)
    assert s.refresh().state == "paused" and s.info["stopReason"] is None
    assert s.wake().state == "running" and s.info["memoryRestored"] is True
    assert [one["state"] for one in s.processes() if one["id"] == p.id] == ["running"]


@check
def what_pauses_by_itself():
    idle = box(idle_pause_seconds=60)
    busy = box(idle_pause_seconds=60)
    busy.spawn("sleep 1000")
    pause = box(timeout_seconds=60)
    delete = box(timeout_seconds=60, on_lease_end="delete")
    pause.files.write("/tmp/kept", "x")
    assert idle.wait_for("paused", 200).state == "paused" and idle.info["stopReason"] == "idle"
    assert pause.wait_for("paused", 200).state == "paused" and pause.info["stopReason"] is None and pause.info["endsAt"] is None
    eventually(lambda: raw("GET", f"/v1/sandboxes/{delete.id}").status == 404, "the other is gone", 30)
    assert busy.refresh().state == "running", "a running command holds it off"
    # Woken by a call it has its limit anew, woken with another it has that.
    assert pause.files.read_text("/tmp/kept") == "x" and pause.refresh().info["endsAt"]
    first = pause.info["endsAt"]
    pause.pause()
    assert pause.wake(timeout_seconds=3600).info["endsAt"] > first
    assert idle.exec("echo hi").stdout == "hi\n" and idle.refresh().info["stopReason"] is None


@check
def many_pause_and_wake_at_once():
    made = [occupied(memory_mib=256)[0] for _ in range(4)]
    before = [count(s) for s in made]
    for _ in range(3):
        threads = [threading.Thread(target=lambda s=s: (s.pause(), s.wake())) for s in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    for s, least in zip(made, before):
        assert count(s) >= least and s.refresh().info["memoryRestored"] is True


if __name__ == "__main__":
    main()
