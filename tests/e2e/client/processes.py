"""Processes: start, list, read, follow, write, signal."""

import base64
import time

import withruntime as w
from support import box, check, eventually, events, fails, main, raw, runtime, together

FIELDS = {"id", "kind", "state", "exitCode", "command", "cwd", "user", "pid", "pty", "stdinOpen", "stdinOffset",
          "outputEncoding", "startedAt", "endedAt", "timeoutMs", "outputBytes", "firstOffset"}


@check
def spawn_answers_at_once_and_the_process_lives_on():
    s = box()
    p = s.spawn("echo up; sleep 4321")
    assert p.id and p.state == "running" and p.exit_code is None and p.command == "bash -c echo up; sleep 4321"
    i = p.refresh()
    assert FIELDS <= set(i), FIELDS - set(i)
    assert i["kind"] == "process" and i["cwd"] == "/workspace" and i["user"] == "sandbox" and isinstance(i["pid"], int)
    assert i["pty"] is False and i["stdinOpen"] is False and i["endedAt"] is None
    assert s.exec("pgrep -fc 'sleep 432[1]'").stdout != "0\n"
    p.kill("SIGKILL")
    assert p.wait().exit_code == -9 and p.refresh()["state"] == "killed"


@check
def spawn_takes_every_field():
    s = box()
    p = s.spawn(["sh", "-c", "pwd; id -u; echo $A; cat"], cwd="/tmp", user="root", env={"A": "x"}, stdin="given")
    r = p.wait()
    assert r.stdout == "/tmp\n0\nx\ngiven" and r.exit_code == 0 and p.user == "root"
    assert p.refresh()["command"] == "sh -c pwd; id -u; echo $A; cat"
    assert len(s.spawn("true " + "x" * 500).refresh()["command"]) == 256
    q = s.spawn("sleep 4321", timeout_ms=500)
    assert q.wait().timed_out and q.refresh()["state"] == "timed_out"


@check
def processes_are_listed_with_those_that_ended():
    s = box()
    alive = s.spawn("sleep 4321")
    ran = s.exec("true")
    listed = {one["id"]: one for one in s.processes()}
    assert listed[alive.id]["state"] == "running" and listed[ran.process_id]["state"] == "exited"
    assert FIELDS <= set(listed[alive.id])
    for _ in range(20):
        last = s.exec("true")
    ended = [one for one in s.processes() if one["state"] != "running"]
    assert len(ended) == 16 and last.process_id in {one["id"] for one in ended}
    assert s.process(alive.id).state == "running"
    fails(w.NotFoundError, "not_found", lambda: s.process("no-such"), 404)


@check
def output_follows_and_begins_where_asked():
    s = box()
    p = s.spawn("echo one; read x; echo two $x; exit 3", stdin="pipe")
    follow = p.output()
    first = next(follow)
    assert first["type"] == "stdout" and first["data"] == "one\n" and first["offset"] == 0
    p.write("more\n")
    rest = list(follow)
    assert "".join(e["data"] for e in rest if e["type"] == "stdout") == "two more\n"
    assert rest[-1]["type"] == "exit" and rest[-1]["exitCode"] == 3
    # An ended one: what is kept, then its exit; from any byte.
    assert "".join(e["data"] for e in p.output(4) if e["type"] == "stdout") == "two more\n"
    assert "".join(e["data"] for e in s.process(p.id).output() if e["type"] == "stdout") == "one\ntwo more\n"
    assert [e["type"] for e in p.output(13)] == ["exit"]


@check
def output_is_polled_with_a_cursor():
    s = box()
    p = s.spawn("echo one; read x; echo two >&2; read x", stdin="pipe")
    path = f"/v1/sandboxes/{s.id}/processes/{p.id}/output"
    got = eventually(lambda: [c for c in [raw("GET", path + "?cursor=0&waitMs=8000").ok()] if c["chunks"]], "the first line")[0]
    assert got["chunks"][0] == {**got["chunks"][0], "stream": "stdout", "text": "one\n", "offset": 0}
    assert got["nextCursor"] == 4 and got["process"]["id"] == p.id and got["process"]["state"] == "running"
    start = time.monotonic()
    quiet = raw("GET", path + "?cursor=4&waitMs=500").ok()
    assert quiet["chunks"] == [] and quiet["nextCursor"] == 4 and time.monotonic() - start > 0.4
    heard = lambda: raw("GET", path + "?cursor=4&waitMs=8000").ok()["chunks"]
    both = together(2, lambda n: p.write("go\n") if n else eventually(heard, "the second line"))
    assert both[0][0]["stream"] == "stderr" and both[0][0]["text"] == "two\n", both
    for wrong in ("cursor=-1", "cursor=x", "waitMs=8001", "bogus=1"):
        raw("GET", path + "?" + wrong).refused(400, "invalid_request")
    p.kill("SIGKILL")


@check
def a_process_keeps_the_last_mebibyte_and_says_what_is_lost():
    s = box()
    p = s.spawn("head -c 3000000 /dev/zero | tr '\\0' a; echo; echo end")
    eventually(lambda: p.refresh()["state"] == "exited", "its end", 30)
    i = p.refresh()
    assert i["outputBytes"] == 3_000_005 and 1_900_000 <= i["firstOffset"] <= 3_000_005 - 1_000_000, i
    got = events(f"/v1/sandboxes/{s.id}/processes/{p.id}/output?cursor=0&follow=true", method="GET")
    assert got[-1]["type"] == "exit"
    pieces = [e for e in got if e["type"] == "stdout"]
    assert pieces[0]["offset"] == i["firstOffset"] and "".join(e["data"] for e in pieces).endswith("a\nend\n")
    lost = [e for e in got if e["type"] == "truncated"]
    assert not lost or lost[0]["resumeAt"] == i["firstOffset"]


@check
def a_follower_that_reads_loses_nothing():
    s = box()
    p = s.spawn("read x; head -c 20000000 /dev/zero | tr '\\0' a", stdin="pipe")
    follow = p.output()
    p.write("\n")
    size, cursor = 0, 0
    for event in follow:
        assert event["type"] != "truncated", event
        if event["type"] == "stdout":
            assert event["offset"] == cursor
            cursor += len(event["data"])
            size += len(event["data"])
    assert size == 20_000_000


@check
def wait_gives_both_outputs():
    s = box()
    r = s.spawn("echo out; echo err >&2; exit 9").wait()
    assert (r.exit_code, r.stdout, r.stderr, r.timed_out) == (9, "out\n", "err\n", False)


@check
def input_is_written_counted_and_closed():
    s = box()
    p = s.spawn("cat", stdin="pipe")
    assert p.refresh()["stdinOpen"] is True and p.refresh()["stdinOffset"] == 0
    p.write("héé")
    p.write(b"\x00\x01\xff")
    eventually(lambda: p.refresh()["outputBytes"] == 8, "what was written came back")
    assert p.refresh()["stdinOffset"] == 8
    p.write("", eof=True)
    r = p.wait()
    assert r.exit_code == 0 and p.refresh()["stdinOpen"] is False
    q = s.spawn("sha256sum", stdin="pipe")
    data = bytes(range(256)) * 12_000
    q.write(data, eof=True)
    import hashlib
    assert q.wait().stdout.split()[0] == hashlib.sha256(data).hexdigest()


@check
def a_resent_write_is_not_written_twice():
    s = box()
    p = s.spawn("cat", stdin="pipe")
    path = f"/v1/sandboxes/{s.id}/processes/{p.id}:write"
    b64 = lambda data: base64.b64encode(data).decode()  # noqa: E731
    assert raw("POST", path, {"base64": b64(b"abc"), "offset": 0, "eof": False}).ok()["offset"] == 3
    assert raw("POST", path, {"base64": b64(b"abc"), "offset": 0, "eof": False}).ok()["offset"] == 3
    assert raw("POST", path, {"base64": b64(b"bcdef"), "offset": 1, "eof": False}).ok()["offset"] == 6
    assert raw("POST", path, {"data": "g", "offset": 6, "eof": False}).ok()["offset"] == 7
    assert 400 <= raw("POST", path, {"data": "x", "offset": 99, "eof": False}).status < 500
    assert raw("POST", path, {"base64": "", "offset": 7, "eof": True}).ok()["offset"] == 7
    assert p.wait().stdout == "abcdefg"


@check
def a_writer_to_one_who_does_not_read_is_told_how_much_went_in():
    s = box()
    p = s.spawn("sleep 4321", stdin="pipe")
    path = f"/v1/sandboxes/{s.id}/processes/{p.id}:write"
    total = 0
    for _ in range(8):
        answer = raw("POST", path, {"base64": base64.b64encode(b"x" * 1_048_576).decode(), "offset": total, "eof": False}).ok()
        assert total <= answer["offset"] <= total + 1_048_576
        if answer["offset"] == total:
            break
        total = answer["offset"]
    else:
        raise AssertionError(f"{total} bytes were taken for a process that reads nothing")
    p.kill("SIGKILL")


@check
def signals_reach_the_whole_tree():
    s = box()
    p = s.spawn("sleep 4321 & setsid sleep 4321 & sh -c 'sleep 4321' & wait")
    eventually(lambda: int(s.exec("pgrep -fc '^sleep 432[1]'").stdout) >= 3, "three sleepers")
    p.kill("SIGTERM")
    assert p.wait().exit_code == -15 and p.refresh()["state"] == "exited"
    eventually(lambda: s.exec("pgrep -fc '^sleep 432[1]'").stdout == "0\n", "no sleeper")
    q = s.spawn("trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.05; done")
    follow = q.output()
    assert next(follow)["data"] == "ready\n"
    q.kill("SIGUSR1")
    assert "usr1" in "".join(e.get("data", "") for e in follow)
    q.kill("SIGKILL")
    for name in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR2"):
        one = s.spawn(["sh", "-c", "echo up; exec sleep 4321"])
        assert next(one.output())["data"] == "up\n"
        one.kill(name)
        assert one.wait().exit_code < 0, name
    raw("POST", f"/v1/sandboxes/{s.id}/processes/{q.id}:signal", {"signal": "SIGNONE"}).refused(400, "invalid_request")


@check
def a_process_ends_with_its_leader_whoever_holds_its_output():
    s = box()
    p = s.spawn("(sleep 4321; true) & echo $!; exit 0")
    r = p.wait()
    assert r.exit_code == 0
    assert p.refresh()["state"] == "exited"


@check
def processes_outlive_the_connection_and_end_with_the_sandbox():
    s = box()
    p = s.spawn("echo kept; sleep 4321")
    other = runtime().sandboxes.get(s.id)
    assert other.process(p.id).state == "running"
    assert next(other.process(p.id).output())["data"] == "kept\n"
    s.stop()
    s.restart()
    assert s.exec("pgrep -fc 'sleep 432[1]'").stdout == "0\n"


@check
def base64_output_is_exact():
    s = box()
    p = s.spawn(["python3", "-c", "import os; os.write(1, bytes(range(256)))"], output_encoding="base64")
    assert b"".join(e["data"] for e in p.output_bytes() if e["type"] == "stdout") == bytes(range(256))
    assert p.refresh()["outputEncoding"] == "base64"


if __name__ == "__main__":
    main()
