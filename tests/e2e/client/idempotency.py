"""A key makes a change happen once: replays, other requests, races, and a server that died in between."""

import json
import os
import sqlite3
import threading
import uuid

import withruntime as w
from support import box, check, eventually, events, fails, host, main, raw, rt, runtime, together, unique


def key():
    return uuid.uuid4().hex


@check
def a_repeated_create_answers_the_same_sandbox():
    k = key()
    a = box(idempotency_key=k)
    b = box(idempotency_key=k)
    assert a.id == b.id and b.info["replayed"] is True and not a.info.get("replayed")
    a.stop()
    body = {"vcpu": 1, "memoryMiB": 512}
    answer = raw("POST", "/v1/sandboxes", body, Idempotency_Key=k)
    assert answer.headers["idempotency-replayed"] == "true" and answer.ok()["state"] == "stopped"
    assert len(rt.sandboxes.list(include_stopped=True).to_list()) == 1


@check
def another_request_under_the_same_key_is_refused():
    k = key()
    a = box(idempotency_key=k)
    fails(w.InvalidRequestError, "idempotency_key_reused", lambda: box(idempotency_key=k, labels={"x": "y"}), 422)
    fails(w.InvalidRequestError, "idempotency_key_reused", lambda: box(idempotency_key=k, env={"A": "1"}), 422)
    fails(w.InvalidRequestError, "idempotency_key_reused", lambda: a.exec("true", idempotency_key=k), 422)
    fails(w.InvalidRequestError, "idempotency_key_reused", lambda: a.delete(idempotency_key=k), 422)
    for wrong in ("", "-starts", "a" * 129, "a b", "é"):
        answer = raw("POST", "/v1/sandboxes", {}, Idempotency_Key=wrong.encode("utf-8").decode("latin-1"))
        assert answer.status == 400, (wrong, answer.status)


@check
def a_repeated_exec_runs_once():
    s = box()
    k = key()
    first = s.exec("echo x >> n; echo out; exit 3", idempotency_key=k)
    for _ in range(3):
        again = s.exec("echo x >> n; echo out; exit 3", idempotency_key=k)
        assert (again.exit_code, again.stdout, again.process_id) == (3, "out\n", first.process_id) and again.replayed
    assert s.files.read_text("/workspace/n") == "x\n" and not first.replayed
    answer = raw("POST", f"/v1/sandboxes/{s.id}:exec", {"command": "echo x >> n; echo out; exit 3"}, Idempotency_Key=k)
    assert answer.status == 200 and answer.headers["idempotency-replayed"] == "true"


@check
def a_repeated_stream_is_told_again_and_runs_once():
    s = box()
    k = key()
    first = list(s.exec_stream("echo x >> n; echo out", idempotency_key=k))
    again = list(s.exec_stream("echo x >> n; echo out", idempotency_key=k))
    assert again[0]["type"] == "start" and again[0]["replayed"] is True and again[0]["processId"] == first[0]["processId"]
    assert "".join(e["data"] for e in again if e["type"] == "stdout") == "out\n" and again[-1]["exitCode"] == 0
    assert s.files.read_text("/workspace/n") == "x\n"


@check
def a_resend_while_it_runs_attaches():
    s = box()
    k = key()
    out = together(4, lambda _: s.exec("echo in >> started; until [ -e go ]; do sleep 0.05; done; echo z >> m; echo done",
                                       idempotency_key=k) if _ else release(s))
    assert [one.stdout for one in out[1:]] == ["done\n"] * 3, out
    assert s.files.read_text("/workspace/m") == "z\n" and s.files.read_text("/workspace/started") == "in\n"


def release(s):
    eventually(lambda: s.files.exists("/workspace/started"), "it started")
    # Long enough in the dark for the others to arrive; they attach whenever they do.
    s.files.write("/workspace/go", b"")


@check
def thirty_creates_racing_under_one_key_make_one():
    k = key()
    body = {"vcpu": 1, "memoryMiB": 512}
    answers = together(30, lambda _: raw("POST", "/v1/sandboxes", body, Idempotency_Key=k, Prefer="wait=60").ok())
    assert len({one["id"] for one in answers}) == 1, answers
    assert sum(1 for one in answers if not one.get("replayed")) == 1
    assert len(rt.sandboxes.list(include_stopped=True).to_list()) == 1


@check
def refusals_are_not_remembered_when_they_may_pass():
    n, k = unique(), key()
    raw("POST", "/v1/sandboxes", {"name": n}, key="bad", Idempotency_Key=k).refused(401, "unauthorized")
    assert raw("POST", "/v1/sandboxes", {"name": n, "vcpu": 1, "memoryMiB": 512}, Idempotency_Key=k).ok()["name"] == n


@check
def every_kind_of_change_is_replayed():
    s = box()
    calls = [
        ("POST", f"/v1/sandboxes/{s.id}:update", {"labels": {"a": "1"}}),
        ("POST", f"/v1/sandboxes/{s.id}/files:mkdir", {"path": "/workspace/d", "parents": False}),
        ("POST", f"/v1/sandboxes/{s.id}/files:remove", {"path": "/workspace/d", "recursive": False}),
        ("POST", f"/v1/sandboxes/{s.id}/processes", {"command": "echo x >> spawned; sleep 4321"}),
        ("POST", f"/v1/sandboxes/{s.id}:stop", {}),
        ("DELETE", f"/v1/sandboxes/{s.id}", None),
    ]
    for method, path, body in calls:
        k = key()
        first = raw(method, path, body, Idempotency_Key=k)
        first.ok()
        assert first.headers.get("idempotency-replayed") != "true"
        again = raw(method, path, body, Idempotency_Key=k)
        assert again.ok().get("replayed") is True and again.headers["idempotency-replayed"] == "true", (path, again.body)
        if path.endswith("/processes"):
            assert again.json["id"] == first.json["id"]
            eventually(lambda: s.files.exists("/workspace/spawned"), "it ran")
            assert s.files.read_text("/workspace/spawned") == "x\n"
        if path.endswith("files:remove"):
            assert again.json["removed"] is True


@check
def keys_are_known_after_the_server_was_killed():
    k, x = key(), key()
    a = box(idempotency_key=k)
    first = a.exec("echo x >> n; echo out", idempotency_key=x)
    host("kill9")
    host("start")
    b = box(idempotency_key=k)
    assert b.id == a.id and b.info["replayed"] is True and b.wait_for("running", 100).state == "running"
    again = b.exec("echo x >> n; echo out", idempotency_key=x)
    assert again.replayed and again.process_id == first.process_id and again.stdout == "out\n"
    assert b.files.read_text("/workspace/n") == "x\n"
    fails(w.InvalidRequestError, "idempotency_key_reused", lambda: box(idempotency_key=k, labels={"x": "y"}), 422)


@check
def what_only_the_agent_remembers_is_a_replay_too():
    s = box()
    x, y, z = key(), key(), key()
    path = f"/v1/sandboxes/{s.id}"
    calls = [
        (x, path + ":exec", {"command": "echo x >> n; echo out; echo err >&2; exit 3"}),
        (y, path + "/processes", {"command": "echo y >> n"}),
        (z, path + ":exec", {"command": "echo z >> n; echo out", "stream": True}),
    ]
    first = [raw("POST", to, body, Idempotency_Key=k) for k, to, body in calls]
    eventually(lambda: s.files.read_text("/workspace/n").count("\n") == 3, "all three ran")
    host("kill9")
    # As if the server had been killed before its batch was on the disk.
    with sqlite3.connect(os.path.join(os.environ["RUNTIME_TEST_DATA"], "runtime.db")) as db:
        db.execute("delete from idempotency where key in (?, ?, ?)", (x, y, z))
    host("start")
    eventually(lambda: rt.sandboxes.get(s.id).state == "running", "adopted", 20)
    again = [raw("POST", to, body, Idempotency_Key=k) for k, to, body in calls]
    for one, two in zip(first[:2], again[:2]):
        assert two.headers["idempotency-replayed"] == "true" and two.ok()["replayed"] is True, two.body
        assert "idempotency-replayed" not in one.headers
    for field in ("processId", "stdout", "stderr", "exitCode"):
        assert again[0].json[field] == first[0].json[field], field
    assert again[1].json["id"] == first[1].json["id"]
    lines = [[json.loads(line) for line in answer.body.splitlines() if line.strip()] for answer in (first[2], again[2])]
    assert lines[1][0]["replayed"] is True and lines[1][0]["processId"] == lines[0][0]["processId"], lines
    assert [e for e in lines[1] if e["type"] == "stdout"] == [e for e in lines[0] if e["type"] == "stdout"], lines
    assert sorted(s.files.read_text("/workspace/n").split()) == ["x", "y", "z"]


@check
def a_client_rides_through_a_crash_of_the_server():
    s = box()
    out = []
    one = threading.Thread(target=lambda: out.append(s.exec(
        "echo in >> started; until [ -e go ]; do sleep 0.05; done; echo z >> m; echo done")), daemon=True)
    one.start()
    eventually(lambda: s.files.exists("/workspace/started"), "it started")
    host("kill9")
    host("start")
    eventually(lambda: rt.sandboxes.get(s.id).state == "running", "adopted", 20)
    s.files.write("/workspace/go", b"")
    one.join(60)
    assert out and out[0].stdout == "done\n", out
    assert s.files.read_text("/workspace/m") == "z\n" and s.files.read_text("/workspace/started") == "in\n"


@check
def a_stream_rides_through_a_crash_of_the_server():
    s = box()
    seen = []

    def hear(text):
        seen.append(text)

    out = []
    one = threading.Thread(target=lambda: out.append(s.exec(
        "echo first; until [ -e go ]; do sleep 0.05; done; echo last; exit 6", on_stdout=hear, timeout_ms=120_000)), daemon=True)
    one.start()
    eventually(lambda: "".join(seen) == "first\n", "the first line")
    host("kill9")
    host("start")
    eventually(lambda: rt.sandboxes.get(s.id).state == "running", "adopted", 20)
    s.files.write("/workspace/go", b"")
    one.join(60)
    assert out and out[0].exit_code == 6 and "".join(seen) == "first\nlast\n", (out, seen)


@check
def a_process_and_its_output_survive_a_crash_of_the_server():
    s = box()
    p = s.spawn("echo before; read x; echo after $x", stdin="pipe")
    eventually(lambda: p.refresh()["outputBytes"] == 7, "its first line")
    host("kill9")
    host("start")
    q = eventually(lambda: rt.sandboxes.get(s.id).state == "running" and rt.sandboxes.get(s.id).process(p.id), "adopted", 20)
    assert q.state == "running"
    raw("POST", f"/v1/sandboxes/{s.id}/processes/{p.id}:write", {"data": "more\n", "offset": 0, "eof": True}).ok()
    assert q.wait().stdout == "before\nafter more\n"


if __name__ == "__main__":
    main()
