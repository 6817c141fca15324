"""Forks: copies that go on where their source stands, each as somebody of its own."""

import withruntime as w
from pause import count, occupied
from support import box, check, eventually, fails, main, raw, rt, together, unique


@check
def each_copy_is_somebody_of_its_own():
    s, p = occupied(name=unique(), labels={"team": "web"}, env={"A": "1"}, idle_pause_seconds=600)
    before, name = count(s), unique("copy")
    copies = s.fork(3, name=name)
    assert [one.info["name"] for one in copies] == [name, f"{name}-1", f"{name}-2"]
    everybody = [s, *copies]
    assert len({one.id for one in everybody}) == 4
    for what in ("hostname", "cat /etc/machine-id /etc/hostname", "head -c 16 /dev/urandom | od -An -tx1",
                 "python3 -c 'import os; print(os.urandom(16).hex())'"):
        said = [one.exec(what, check=True).stdout for one in everybody]
        assert len(set(said)) == 4, (what, said)
    for one in copies:
        assert one.state == "running" and one.info["labels"] == {"team": "web"}
        assert one.info["memoryMiB"] == 512 and one.info["idlePauseSeconds"] == 600
        assert one.exec("echo $A").stdout == "1\n" and one.process(p.id).refresh()["state"] == "running"
        assert count(one) >= before
    assert s.refresh().state == "running" and s.info["name"] != name and count(s) >= before
    # None writes where another reads.
    for n, one in enumerate(everybody):
        one.files.write("/workspace/whose", str(n))
        count(one, "finish")
    assert [one.files.read_text("/workspace/whose") for one in everybody] == ["0", "1", "2", "3"]
    assert list(rt.snapshots.list()) == [], "the snapshot that it was made from passes"
    s.delete()
    assert all(count(one) >= before for one in copies)


@check
def one_copy_without_a_count_and_what_can_be_said():
    s = box(labels={"a": "1"})
    one = s.fork(labels={"b": "2"}, keep_snapshot=True)
    assert one.info["labels"] == {"b": "2"} and one.info["name"] is None
    kept = list(rt.snapshots.list())
    assert [x["sourceSandboxId"] for x in kept] == [s.id] and kept[0]["state"] == "ready"
    assert one.info["snapshot"] == kept[0]["id"]
    again = one.fork()
    assert again.exec("true").exit_code == 0
    fails(w.ConflictError, "name_taken", lambda: again.fork(2, name=box(name=unique()).info["name"]), 409)
    for fields in ({"count": 0}, {"count": 17}, {"nmae": "x"}):
        raw("POST", f"/v1/sandboxes/{s.id}:fork", fields).refused(400, "invalid_request")
    s.stop()
    fails(w.ConflictError, "not_running", s.fork, 409)


@check
def a_paused_one_stays_paused():
    s, _ = occupied()
    before = count(s)
    s.pause()
    one = s.fork()
    assert s.refresh().state == "paused" and count(one) >= before
    assert s.wake().state == "running" and count(s) >= before


@check
def a_repeated_fork_is_made_once():
    s, key = box(), unique("key")
    first, second = s.fork(2, idempotency_key=key), s.fork(2, idempotency_key=key)
    assert [one.id for one in first] == [one.id for one in second]
    assert len(list(rt.sandboxes.list())) == 3
    first[0].delete()
    assert [one.id for one in s.fork(2, idempotency_key=key)] == [one.id for one in first]


@check
def a_running_command_is_in_every_copy():
    s = box()
    p = s.spawn("i=0; while true; do i=$((i+1)); echo $i > /workspace/i.new; mv /workspace/i.new /workspace/i; sleep 0.02; done")
    eventually(lambda: s.files.exists("/workspace/i"), "it counts")
    copies = s.fork(4)
    for one in copies:
        now = int(one.files.read_text("/workspace/i") or 0)
        eventually(lambda: int(one.files.read_text("/workspace/i") or 0) > now, "it counts on in a copy")
    results = together(4, lambda n: copies[n].process(p.id).kill())
    assert all(not isinstance(one, BaseException) for one in results), results
    assert p.refresh()["state"] == "running"


if __name__ == "__main__":
    main()
