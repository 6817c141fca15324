"""Snapshots, of memory and of the disk, and sandboxes made from them."""

import withruntime as w
from pause import count, occupied
from support import DATA, box, check, eventually, fails, host, main, patience, raw, rt, saved, together, unique


def on_disk():
    return {path.name for path in DATA.glob("pool/snap/*")}


def of(snapshot, **fields):
    return rt.sandboxes.create(snapshot=snapshot["id"], **fields)


def goes_on(s):
    """A snapshot is answered when it is whole; its source is on its way back then."""
    eventually(lambda: s.refresh().state == "running", "the source goes on")


@check
def a_disk_is_kept_while_its_source_goes_on():
    s, p = occupied(name=unique(), labels={"team": "web"})
    s.exec("echo one > /workspace/kept; echo two > /etc/kept", user="root", check=True)
    before = count(s)
    x = s.snapshot(name=unique(), mode="disk", retention_days=7)
    assert x["state"] == "ready" and x["mode"] == "disk" and x["kind"] == "snapshot" and x["sourceSandboxId"] == s.id
    assert x["labels"] == {"team": "web"} and x["readyAt"] and x["retentionDays"] == 7 and x["error"] is None
    assert x["shape"]["memoryMiB"] == 512 and x["storedBytes"] > 0
    goes_on(s)
    assert s.info["stopReason"] is None
    assert count(s) >= before and p.refresh()["state"] == "running"
    s.files.write("/workspace/kept", "changed")
    copy = of(x)
    assert copy.id != s.id and copy.state == "running" and copy.info["snapshot"] == x["id"]
    assert copy.info["labels"] == {"team": "web"} and copy.info["name"] is None
    assert copy.files.read_text("/workspace/kept") == "one\n" and copy.files.read_text("/etc/kept") == "two\n"
    assert [one for one in copy.processes() if one["state"] == "running"] == []
    copy.files.write("/workspace/kept", "mine")
    again = of(x, memory_mib=768, disk_mib=8192, labels={"a": "b"}, env={"A": "1"})
    assert again.files.read_text("/workspace/kept") == "one\n" and again.info["memoryMiB"] == 768
    assert again.info["labels"] == {"a": "b"} and again.exec("echo $A").stdout == "1\n"
    assert s.files.read_text("/workspace/kept") == "changed"
    refused = raw("POST", "/v1/sandboxes", {"snapshot": x["id"], "diskMiB": 3072})
    refused.refused(400, "disk_too_small")


@check
def memory_and_processes_go_on_in_a_copy():
    s, p = occupied(env={"SECRET": "of the source"})
    s.exec("echo kept > /workspace/kept", check=True)
    before = count(s)
    x = s.snapshot()
    assert x["state"] == "ready" and x["mode"] == "memory"
    goes_on(s)
    assert count(s) >= before
    copies = [of(x), of(x)]
    hosts = {s.exec("hostname").stdout, *(one.exec("hostname").stdout for one in copies)}
    machines = {s.files.read_text("/etc/machine-id"), *(one.files.read_text("/etc/machine-id") for one in copies)}
    assert len(hosts) == 3 and len(machines) == 3, (hosts, machines)
    for one in copies:
        assert one.info["memoryMiB"] == 512 and one.process(p.id).refresh()["state"] == "running"
        assert count(one, "finish") >= before and one.files.read_text("/workspace/half") == "first half, second half"
        assert one.exec("echo -$SECRET-").stdout == "--\n", "a sandbox from a snapshot has its own variables only"
    assert s.files.read_text("/workspace/half") == "first half, "
    s.delete()
    late = of(x)
    assert count(late) >= before and late.files.read_text("/workspace/kept") == "kept\n"
    late.pause()
    assert late.wake().info["memoryRestored"] is True and count(late) >= before
    late.stop()
    late.restart()
    assert late.files.read_text("/workspace/kept") == "kept\n"
    for field, value in (("memoryMiB", 1024), ("vcpu", 2), ("diskMiB", 8192)):
        issues = raw("POST", "/v1/sandboxes", {"snapshot": x["id"], field: value}).refused(400, "invalid_request")
        assert [one["path"] for one in issues["details"]["issues"]] == [field]


@check
def of_one_that_is_paused_or_stopped():
    s, _ = occupied()
    before = count(s)
    s.pause()
    hot = s.snapshot()
    assert hot["state"] == "ready" and s.refresh().state == "paused"
    saved(s)
    cold, disk = s.snapshot(), s.snapshot(mode="disk")
    assert s.refresh().state == "paused" and cold["state"] == disk["state"] == "ready"
    assert count(s) >= before
    s.stop()
    for x in (hot, cold):
        assert count(of(x)) >= before
    fails(w.ConflictError, "not_running", lambda: rt.snapshots.create(s.id), 409)
    stopped = s.snapshot(mode="disk")
    assert s.refresh().state == "stopped"
    for x in (disk, stopped):
        assert of(x).files.read_text("/workspace/half") == "first half, "


@check
def they_are_found_changed_and_deleted():
    s = box(labels={"a": "1"})
    x, y = s.snapshot(name="first", mode="disk"), s.snapshot(labels={"b": "2"}, mode="disk")
    assert rt.snapshots.get(x["id"]) == x and x["labels"] == {"a": "1"} and y["labels"] == {"b": "2"}
    ids = lambda **query: [one["id"] for one in rt.snapshots.list(**query)]  # noqa: E731
    assert ids() == ids(sandbox_id=s.id) == ids(state="ready") == ids(limit=1) == [x["id"], y["id"]]
    assert ids(name="first") == [x["id"]] and ids(sandbox_id=unique()) == ids(state="failed") == []
    changed = rt.snapshots.update(x["id"], labels={"c": "3"}, if_labels={"a": "1"})
    assert changed["labels"] == {"c": "3"} and changed["name"] == "first"
    fails(w.ConflictError, "snapshot_metadata_changed",
          lambda: rt.snapshots.update(x["id"], labels={}, if_labels={"a": "1"}), 409)
    assert rt.snapshots.update(x["id"], name=None)["name"] is None
    longer = rt.snapshots.extend(y["id"], 30)
    assert longer["retentionDays"] == 30 and longer["expiresAt"] > longer["createdAt"]
    raw("POST", f"/v1/snapshots/{y['id']}:extend", {"retentionDays": 366}).refused(400, "invalid_request")
    kept = of(x)
    rt.snapshots.delete(x["id"])
    assert raw("POST", f"/v1/snapshots/{x['id']}:delete").ok()["state"] in ("deleting", "deleted")
    assert ids() == [y["id"]]
    fails(w.NotFoundError, "not_found", lambda: rt.snapshots.get(x["id"]), 404)
    fails(w.NotFoundError, "snapshot_not_found", lambda: of(x), 404)
    assert kept.exec("true").exit_code == 0
    raw("DELETE", f"/v1/snapshots/{y['id']}").ok()
    eventually(lambda: not on_disk(), "nothing of them is on the disk")
    assert s.refresh().state == "running" and s.exec("true").exit_code == 0


@check
def a_repeated_snapshot_is_taken_once():
    s = box()
    key = unique("key")
    first = s.snapshot(mode="disk", idempotency_key=key)
    second = s.snapshot(mode="disk", idempotency_key=key)
    assert first["id"] == second["id"] and len(list(rt.snapshots.list())) == 1
    many = together(4, lambda _: s.snapshot(mode="disk"))
    assert len({one["id"] for one in many}) == 4
    goes_on(s)


@check
def a_command_goes_on_through_a_snapshot():
    s = box()
    results = together(2, lambda n: s.exec("for i in $(seq 100); do echo $i; sleep 0.02; done") if n else
                       [s.snapshot(mode=mode)["state"] for mode in ("disk", "memory", "disk")])
    assert results[0] == ["ready"] * 3, results
    assert results[1].exit_code == 0 and results[1].stdout == "".join(f"{i}\n" for i in range(1, 101)), results[1]


@check
def one_of_a_full_disk_is_whole():
    s = box(disk_mib=3072)
    s.exec("dd if=/dev/zero of=/workspace/full bs=1M; sync", timeout_ms=patience(300_000))
    assert s.exec("echo more > /workspace/more").exit_code != 0
    size = s.exec("stat -c %s /workspace/full", check=True).stdout
    x = s.snapshot()
    s.files.remove("/workspace/full")
    copy = of(x)
    assert copy.exec("stat -c %s /workspace/full", check=True).stdout == size
    copy.delete()
    # What a snapshot holds on to stays counted to who wrote it.
    rt.snapshots.delete(x["id"])
    eventually(lambda: s.exec("echo more > /workspace/more").exit_code == 0, "there is room again", 90)


@check
def it_outlives_the_server_and_its_source():
    s, _ = occupied()
    before = count(s)
    x = s.snapshot()
    host("kill9")
    host("kill-helpers")
    host("start")
    s.delete()
    assert rt.snapshots.get(x["id"])["state"] == "ready"
    assert count(of(x)) >= before


if __name__ == "__main__":
    main()
