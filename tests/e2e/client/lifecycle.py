"""Sandboxes: create, read, find, list, update, stop, restart, delete."""

import re
import time
import uuid

import withruntime as w
from support import box, check, eventually, fails, main, raw, rt, runtime, together, unique
from withruntime import Sandbox

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@check
def create_waits_until_it_runs():
    s = rt.sandboxes.create()
    i = s.info
    assert s.state == "running" and i["status"] == "active" and i["kind"] == "sandbox"
    assert str(uuid.UUID(i["id"])) == i["id"] == s.id
    assert (i["vcpu"], i["memoryMiB"], i["diskMiB"], i["cpuFloorMillis"]) == (2, 4096, 4096, 50)
    assert i["cpu"] == "shared" and i["funding"] == "paid" and i["pausable"] is True and i["persistent"] is False
    assert i["timeoutSeconds"] == 0 and i["idlePauseSeconds"] == 300 and i["autoWake"] is True
    assert i["onLeaseEnd"] == i["onTimeout"] == "pause" and i["user"] == "sandbox"
    assert i["labels"] == {} and i["name"] is None and i["envNames"] == [] and "env" not in i
    assert i["endsAt"] is None and i["endedAt"] is None and i["stopReason"] is None and i["pausedAt"] is None
    assert i["image"] is None and i["snapshot"] is None and i["secrets"] is None
    for field in ("createdAt", "readyAt", "lastActiveAt", "expiresAt"):
        assert TIME.fullmatch(i[field]), (field, i[field])
    assert not i.get("replayed") and not i.get("reused")
    assert i["chargedMicros"] == 0 and i["heldMicros"] == 0 and isinstance(i["region"], str)


@check
def create_without_waiting_is_starting_and_comes_up():
    s = rt.sandboxes.create(wait=False, vcpu=1, memory_mib=512)
    assert s.state in ("starting", "running"), s.state
    assert s.wait_for("running").state == "running"
    assert s.exec("echo hi").stdout == "hi\n"


@check
def a_command_to_one_that_is_starting_waits_for_it():
    s = rt.sandboxes.create(wait=False, vcpu=1, memory_mib=512)
    assert s.exec("echo hi").stdout == "hi\n"


@check
def create_takes_every_field():
    s = rt.sandboxes.create(
        name=unique(), labels={"a": "b:c", "long": "v" * 256}, env={"B": "2", "A": "1"}, user="root", funding="trial",
        vcpu=1, memory_mib=1024, disk_mib=3072, cpu="reserved", timeout_seconds=3600, on_lease_end="stop",
        idle_pause_seconds=5, auto_wake=False, max_total_cost_micros=5, pausable=True)
    i = s.info
    assert (i["vcpu"], i["memoryMiB"], i["diskMiB"], i["cpu"], i["cpuFloorMillis"]) == (1, 1024, 3072, "reserved", 1000)
    assert i["labels"] == {"a": "b:c", "long": "v" * 256} and i["envNames"] == ["A", "B"] and i["user"] == "root"
    assert i["timeoutSeconds"] == 3600 and TIME.fullmatch(i["endsAt"]) and i["onLeaseEnd"] == i["onTimeout"] == "stop"
    assert i["idlePauseSeconds"] == 60 and i["autoWake"] is False
    assert s.exec("id -u; echo $A$B").stdout == "0\n12\n"
    p = rt.request("POST", "/v1/sandboxes", body={"persistent": True, "vcpu": 1, "memoryMiB": 512})
    assert p["persistent"] is True and p["timeoutSeconds"] == 0 and p["idlePauseSeconds"] == 0
    o = rt.request("POST", "/v1/sandboxes", body={"onTimeout": "delete", "vcpu": 1, "memoryMiB": 512})
    assert o["onTimeout"] == o["onLeaseEnd"] == "delete"


@check
def every_wrong_field_of_a_create_is_named():
    wrong = {"memoryMb": 1, "vcpu": "x", "memoryMiB": 1, "diskMiB": 10, "labels": {"a": 1}, "timeoutSeconds": 5,
             "onLeaseEnd": "explode", "cpu": "fast", "idlePauseSeconds": -1, "name": "a\nb", "user": "admin"}
    e = fails(w.InvalidRequestError, "invalid_request",
              lambda: rt.request("POST", "/v1/sandboxes", body=wrong), 400)
    paths = {issue["path"].split(".")[0] for issue in e.details["issues"]}
    assert paths == set(wrong), (set(wrong) - paths, paths - set(wrong))
    for body in ([], "x", 3, None):
        if body is not None:
            raw("POST", "/v1/sandboxes", body).refused(400, "invalid_request")
    raw("POST", "/v1/sandboxes", b"{", Content_Type="application/json").refused(400, "invalid_request")
    fails(w.InvalidRequestError, "invalid_request", lambda: rt.request("POST", "/v1/sandboxes", body={"getOrCreate": True}), 400)
    fails(w.InvalidRequestError, "invalid_env", lambda: box(env={"1A": "x"}), 400)
    fails(w.InvalidRequestError, "env_too_large", lambda: box(env={f"V{n}": "x" for n in range(33)}), 400)
    fails(w.InvalidRequestError, "env_too_large", lambda: box(env={"V": "x" * 33 * 1024}), 400)
    fails(w.InvalidRequestError, "invalid_request", lambda: box(labels={f"l{n}": "x" for n in range(33)}), 400)
    fails(w.InvalidRequestError, "invalid_region", lambda: box(region="moon"), 400)
    fails(w.NotFoundError, "image_not_found", lambda: box(image="no-such-image"), 404)
    raw("GET", "/v1/sandboxes?bogus=1").refused(400, "invalid_request")
    assert rt.sandboxes.list(include_stopped=True).to_list() == []


@check
def get_connect_and_refresh_read_the_same():
    s = box(name=unique(), env={"A": "1"})
    assert rt.sandboxes.get(s.id).info["name"] == s.info["name"]
    assert Sandbox.connect(s.id).exec("echo hi").stdout == "hi\n"
    assert Sandbox.connect(s.id, client=rt).id == s.id
    rt.request("POST", f"/v1/sandboxes/{s.id}:update", body={"labels": {"x": "y"}})
    assert s.info["labels"] == {} and s.refresh() is s and s.info["labels"] == {"x": "y"}
    assert s.info["envNames"] == ["A"]
    fails(w.NotFoundError, "not_found", lambda: rt.sandboxes.get(str(uuid.uuid4())), 404)


@check
def the_module_level_shortcuts_work():
    s = Sandbox.create(vcpu=1, memory_mib=512)
    assert s.exec("echo hi").stdout == "hi\n"
    n = unique()
    a, b = Sandbox.get_or_create(n, vcpu=1, memory_mib=512), Sandbox.get_or_create(n)
    assert a.id == b.id and b.info["reused"] is True
    s.delete()


@check
def delete_ends_everything_at_once_and_again():
    s = box(name=unique(), labels={"k": "v"})
    gone = s.delete()
    assert gone["id"] == s.id and gone["status"] == "deleted" and gone["kind"] == "sandbox"
    assert gone["name"] == s.info["name"] and gone["labels"] == {"k": "v"}
    assert gone["state"] in ("stopping", "stopped") and TIME.fullmatch(gone["deletedAt"]) and TIME.fullmatch(gone["endedAt"])
    again = rt.sandboxes.delete(s.id)
    assert again["id"] == s.id and again["deletedAt"] == gone["deletedAt"]
    for call in (s.refresh, s.stop, s.restart, lambda: s.exec("true"), lambda: s.files.read("/etc/hostname"),
                 s.processes, lambda: s.update(name="x"), lambda: s.extend(60)):
        fails(w.NotFoundError, "not_found", call, 404)
    assert s.id not in ids(rt.sandboxes.list(include_stopped=True))
    assert box(name=s.info["name"]).id != s.id
    fails(w.NotFoundError, "not_found", lambda: rt.sandboxes.delete(str(uuid.uuid4())), 404)


@check
def delete_works_in_every_state():
    a = rt.sandboxes.create(wait=False, vcpu=1, memory_mib=512)
    assert a.delete()["status"] == "deleted"
    b = box()
    b.stop()
    assert b.delete()["status"] == "deleted"
    c = box()
    c.stop(wait=False)
    assert c.delete()["status"] == "deleted"


def ids(page):
    return [one.id for one in page.to_list()]


@check
def list_is_oldest_first_and_pages():
    made = [rt.sandboxes.create(wait=False, vcpu=1, memory_mib=512, labels={"n": str(n)}).id for n in range(7)]
    assert ids(rt.sandboxes.list()) == made
    page, seen = rt.sandboxes.list(limit=3), []
    while page:
        seen.append(len(page.data))
        page = page.next_page() if page.has_more else None
    assert seen == [3, 3, 1], seen
    assert ids(rt.sandboxes.list(limit=2)) == made
    first = raw("GET", "/v1/sandboxes?limit=7").ok()
    assert [one["id"] for one in first["data"]] == made and first.get("nextCursor") is None
    for wrong in ("limit=0", "limit=101", "limit=x", "cursor=%00", "cursor=nonsense", "state=dancing", "label=nocolon"):
        answer = raw("GET", "/v1/sandboxes?" + wrong)
        assert answer.status == 400 or wrong == "label=nocolon", (wrong, answer.status)
    # One that is deleted while a reader pages does not make another be seen twice or not at all.
    page = rt.sandboxes.list(limit=3)
    rt.sandboxes.delete(made[2])
    assert [one.id for one in page.next_page().data] == made[3:6]


@check
def list_filters_by_name_labels_and_state():
    n = unique()
    a = box(name=n, labels={"app": "x", "url": "http://h:1"})
    b = box(labels={"app": "x", "tier": "2"})
    c = box(labels={"app": "y"})
    assert ids(rt.sandboxes.list(name=n)) == [a.id] and ids(rt.sandboxes.list(name="absent")) == []
    assert ids(rt.sandboxes.list(labels={"app": "x"})) == [a.id, b.id]
    assert ids(rt.sandboxes.list(labels={"app": "x", "tier": "2"})) == [b.id]
    assert ids(rt.sandboxes.list(labels={"url": "http://h:1"})) == [a.id]
    b.stop()
    assert ids(rt.sandboxes.list()) == [a.id, b.id, c.id]
    assert ids(rt.sandboxes.list(state=["stopped"])) == [b.id]
    assert ids(rt.sandboxes.list(state=["running", "stopped"], labels={"app": "x"})) == [a.id, b.id]
    assert ids(rt.sandboxes.list(state=["starting", "running", "resuming"])) == [a.id, c.id]
    assert ids(rt.sandboxes.list(state=["pausing", "paused"])) == []
    assert ids(rt.sandboxes.list(include_stopped=True)) == [a.id, b.id, c.id]


@check
def stop_all_and_delete_all_take_what_matches():
    mine = [box(labels={"group": "a"}) for _ in range(3)]
    other = box(labels={"group": "b"})
    stopped = rt.sandboxes.stop_all(labels={"group": "a"})
    assert sorted(stopped["stopped"]) == sorted(s.id for s in mine) and not stopped["failed"], stopped
    assert all(s.refresh().state == "stopped" for s in mine) and other.refresh().state == "running"
    # Again: they are stopped already, which is no fault.
    assert not rt.sandboxes.stop_all(labels={"group": "a"})["failed"]
    gone = rt.sandboxes.delete_all(labels={"group": "a"})
    assert not gone["failed"], gone
    assert ids(rt.sandboxes.list(include_stopped=True)) == [other.id]


@check
def wait_for_answers_at_the_state_or_at_the_limit():
    s = box()
    assert s.wait_for("running", 5).state == "running"
    start = time.monotonic()
    assert s.wait_for("stopped", 1).state == "running" and time.monotonic() - start > 0.9
    s.stop()
    # One that is stopped will not run by itself: told at once.
    start = time.monotonic()
    assert s.wait_for("running", 100).state == "stopped" and time.monotonic() - start < 60
    t = box()
    waiting = together(2, lambda n: t.stop(wait=False) if n else rt.sandboxes.get(t.id).wait_for("stopped", 100).state)
    assert waiting[0] == "stopped", waiting
    raw("GET", f"/v1/sandboxes/{s.id}?waitFor=dancing").refused(400, "invalid_request")


@check
def stop_keeps_the_disk_and_restart_brings_it_back():
    s = box(name=unique(), env={"A": "1"}, labels={"k": "v"})
    s.files.write("/workspace/kept", b"\x00data\xff")
    s.exec("echo root > /opt/kept", user="root", check=True)
    p = s.spawn("sleep 1000")
    assert s.stop().state == "stopped"
    i = s.info
    assert i["stopReason"] == "requested" and i["diskKept"] is True and TIME.fullmatch(i["endedAt"]) and i["endsAt"] is None
    assert i["status"] == "stopped"
    assert s.stop().state == "stopped"
    fails(w.ConflictError, "sandbox_stopped", lambda: s.exec("true"), 409)
    fails(w.ConflictError, "sandbox_stopped", lambda: s.files.read("/workspace/kept"), 409)
    assert s.restart().state == "running" and s.info["stopReason"] is None and s.info["endedAt"] is None
    assert s.restart().state == "running"
    assert s.files.read("/workspace/kept") == b"\x00data\xff"
    assert s.exec("cat /opt/kept; echo $A; pgrep -c sleep").stdout == "root\n1\n0\n"
    assert s.info["labels"] == {"k": "v"} and p.id not in {one["id"] for one in s.processes() if one["state"] == "running"}


@check
def another_size_keeps_the_disk():
    s = box(vcpu=1, memory_mib=512, name=unique(), env={"A": "1"})
    s.files.write("/workspace/kept", "x")
    s.exec("echo memory > /dev/shm/lost", check=True)
    e = fails(w.ConflictError, "resize_needs_restart", lambda: s.resize(restart=False, memory_mib=768), 409)
    assert "restart" in e.hint and s.exec("cat /dev/shm/lost").stdout == "memory\n"
    assert s.resize(memory_mib=768, vcpu=2).state == "running"
    assert (s.info["memoryMiB"], s.info["vcpu"]) == (768, 2) and s.info["stopReason"] is None
    total = int(s.exec("awk '/MemTotal/ {print $2}' /proc/meminfo").stdout) >> 10
    assert 600 < total <= 768 and s.exec("nproc; echo $A").stdout == "2\n1\n", total
    # gVisor shows no fewer than two processors, and gives the time of those that were asked for.
    single = "2" if s.info["engine"] == "gvisor" else "1"
    assert s.files.read("/workspace/kept") == b"x" and s.exec("ls /dev/shm").stdout == ""
    assert s.resize(memory_mib=768).state == "running"
    s.pause()
    assert s.resize(vcpu=1).state == "running" and s.exec("nproc; cat kept").stdout == single + "\nx"
    s.stop()
    assert s.resize(restart=False, memory_mib=512).state == "running" and s.info["memoryMiB"] == 512
    disk = s.info["diskMiB"]
    fails(w.RuntimeError, "disk_too_small", lambda: s.resize(disk_mib=disk - 1), 400)
    before = int(s.exec("df -m --output=size /workspace | tail -1").stdout)
    assert s.resize(disk_mib=disk + 2048).info["diskMiB"] == disk + 2048
    after = int(s.exec("df -m --output=size /workspace | tail -1").stdout)
    # On gVisor the file system is the host's, whose size tells nothing.
    assert s.info["engine"] == "gvisor" or after - before > 1800, (before, after)
    assert s.files.read("/workspace/kept") == b"x"
    raw("POST", f"/v1/sandboxes/{s.id}:resize", {"restart": True}).refused(400, "invalid_request")
    raw("POST", f"/v1/sandboxes/{s.id}:resize", {"memoryMiB": 1, "x": 1}).refused(400, "invalid_request")


@check
def stop_without_waiting_ends_stopped():
    s = box()
    assert s.stop(wait=False).state in ("stopping", "stopped")
    assert s.wait_for("stopped", 100).state == "stopped"


@check
def names_are_unique_while_held():
    n = unique()
    a = box(name=n)
    e = fails(w.ConflictError, "name_taken", lambda: box(name=n), 409)
    assert e.details["field"] == "name" and e.details["sandboxId"] == a.id and e.details["state"] == "running"
    a.stop()
    e = fails(w.ConflictError, "name_taken", lambda: box(name=n), 409)
    assert e.details["state"] == "stopped"
    b = box()
    fails(w.ConflictError, "name_taken", lambda: b.update(name=n), 409)
    a.delete()
    assert b.update(name=n).info["name"] == n
    assert b.update(name=unique()).info["name"] != n and box(name=n).info["name"] == n


@check
def get_or_create_finds_restarts_or_makes():
    n = unique()
    a = rt.sandboxes.get_or_create(n, vcpu=1, memory_mib=512)
    assert not a.info.get("reused")
    b = rt.sandboxes.get_or_create(n, vcpu=2, labels={"ignored": "x"})
    assert b.id == a.id and b.info["reused"] is True and b.info["vcpu"] == 1 and b.info["labels"] == {}
    a.files.write("/workspace/kept", "x")
    a.stop()
    c = rt.sandboxes.get_or_create(n)
    assert c.id == a.id and c.state == "running" and c.info["reused"] is True and c.files.read_text("/workspace/kept") == "x"
    c.delete()
    d = rt.sandboxes.get_or_create(n, wait=False, vcpu=1, memory_mib=512)
    assert d.id != a.id and not d.info.get("reused")


@check
def two_hundred_callers_racing_on_a_new_name_get_one_sandbox():
    n = unique()
    body = {"name": n, "getOrCreate": True, "vcpu": 1, "memoryMiB": 512}
    answers = together(200, lambda _: raw("POST", "/v1/sandboxes", body, Prefer="wait=60").ok())
    bad = [one for one in answers if isinstance(one, BaseException)]
    assert not bad, bad[:3]
    assert len({one["id"] for one in answers}) == 1
    assert sum(1 for one in answers if not one.get("reused")) == 1
    assert all(one["state"] == "running" for one in answers)
    assert ids(rt.sandboxes.list(include_stopped=True)) == [answers[0]["id"]]


@check
def fifty_callers_racing_without_get_or_create_make_one():
    n = unique()
    answers = together(50, lambda _: raw("POST", "/v1/sandboxes", {"name": n, "vcpu": 1, "memoryMiB": 512}))
    assert sorted({one.status for one in answers}) == [200, 409], [getattr(one, "status", one) for one in answers]
    assert sum(1 for one in answers if one.status == 200) == 1
    assert all(one.json["error"]["code"] == "name_taken" for one in answers if one.status == 409)


@check
def update_changes_only_what_is_given():
    s = box(labels={"a": "1"}, env={"A": "1", "B": "2"})
    s.update(labels={"b": "2"})
    assert s.info["labels"] == {"b": "2"} and s.info["envNames"] == ["A", "B"]
    s.update(env={"A": None, "C": "3"})
    assert s.info["envNames"] == ["B", "C"] and s.exec("echo [$A$B$C]").stdout == "[23]\n"
    s.update(labels={})
    assert s.info["labels"] == {}
    s.update(idle_pause_seconds=0, auto_wake=False, user="root")
    assert s.info["idlePauseSeconds"] == 0 and s.info["autoWake"] is False and s.exec("id -u").stdout == "0\n"
    s.update(timeout_seconds=120, on_timeout="stop")
    assert s.info["timeoutSeconds"] == 120 and TIME.fullmatch(s.info["endsAt"]) and s.info["onLeaseEnd"] == "stop"
    s.update(timeout_seconds=0)
    assert s.info["timeoutSeconds"] == 0 and s.info["endsAt"] is None
    s.update(idle_pause_seconds=5)
    assert s.info["idlePauseSeconds"] == 60
    s.stop()
    assert s.update(labels={"when": "stopped"}, env={"D": "4"}).info["labels"] == {"when": "stopped"}
    assert s.state == "stopped" and s.restart().exec("echo $D").stdout == "4\n"
    e = fails(w.InvalidRequestError, "invalid_request",
              lambda: rt.request("POST", f"/v1/sandboxes/{s.id}:update", body={"vcpu": 4, "timeoutSeconds": 1}), 400)
    assert {issue["path"] for issue in e.details["issues"]} == {"vcpu", "timeoutSeconds"}


@check
def a_running_command_keeps_the_environment_it_started_with():
    s = box(env={"A": "old"})
    p = s.spawn("read line; echo $A", stdin="pipe")
    s.update(env={"A": "new"})
    p.write("go\n", eof=True)
    assert p.wait().stdout == "old\n" and s.exec("echo $A").stdout == "new\n"


@check
def a_time_limit_stops_the_sandbox_and_keeps_its_disk():
    s = box(timeout_seconds=60, on_lease_end="stop")
    s.files.write("/workspace/kept", "x")
    assert TIME.fullmatch(s.info["endsAt"])
    # A command may not outlast the sandbox it runs in; one without a limit of its own is never refused.
    e = fails(w.ConflictError, "time_limit_too_short", lambda: s.exec("true", timeout_ms=59_999_000), 409)
    assert isinstance(e.details["secondsLeft"], (int, float)) and 0 < e.details["secondsLeft"] <= 60
    assert s.exec("echo hi").stdout == "hi\n"
    # The other limit, in the same minute: one that nobody uses.
    idle = box(idle_pause_seconds=60)
    idle.files.write("/workspace/kept", "y")
    assert s.wait_for("stopped", 200).state == "stopped"
    assert s.info["stopReason"] == "time_limit" and s.info["diskKept"] is True and s.info["endsAt"] is None
    assert idle.wait_for("paused", 200).state == "paused" and idle.info["stopReason"] == "idle"
    assert s.restart().files.read_text("/workspace/kept") == "x" and TIME.fullmatch(s.info["endsAt"])
    # A call wakes it.
    assert idle.files.read_text("/workspace/kept") == "y"
    assert idle.refresh().state == "running" and idle.info["memoryRestored"] is True


@check
def a_block_deletes_what_it_created_and_stops_what_it_found():
    with rt.sandboxes.create(vcpu=1, memory_mib=512) as s:
        assert s.exec("echo hi").stdout == "hi\n"
    fails(w.NotFoundError, "not_found", lambda: rt.sandboxes.get(s.id))
    with rt.sandboxes.create(vcpu=1, memory_mib=512, keep=True) as k:
        pass
    assert rt.sandboxes.get(k.id).wait_for("stopped", 100).state == "stopped"
    n = unique()
    with rt.sandboxes.get_or_create(n, vcpu=1, memory_mib=512) as made:
        with rt.sandboxes.get_or_create(n) as found:
            assert found.id == made.id
        assert made.wait_for("stopped", 100).state == "stopped"
    fails(w.NotFoundError, "not_found", made.refresh)
    try:
        with rt.sandboxes.create(vcpu=1, memory_mib=512) as broken:
            raise KeyError("mine")
    except KeyError:
        pass
    fails(w.NotFoundError, "not_found", broken.refresh)


@check
def extend_changes_nothing_without_a_time_limit():
    s = box()
    assert s.extend(60).info["endsAt"] is None


@check
def extend_moves_the_end():
    s = box(timeout_seconds=120)
    before = s.info["endsAt"]
    assert s.extend(600).info["endsAt"] > before
    raw("POST", f"/v1/sandboxes/{s.id}:extend", {"seconds": 0}).refused(400, "invalid_request")


@check
def retention_is_kept():
    s = box()
    s.set_retention(7)
    s.stop()
    assert TIME.fullmatch(s.refresh().info["pausedExpiresAt"])
    raw("POST", f"/v1/sandboxes/{s.id}:retention", {"days": 0}).refused(400, "invalid_request")


@check
def keep_alive_of_one_without_a_limit_asks_for_nothing():
    s = box()
    stop = s.keep_alive(every_seconds=10)
    eventually(lambda: s.refresh().state == "running", "still running")
    stop()
    assert s.info["endsAt"] is None


@check
def twenty_sandboxes_at_once_all_come_up():
    made = together(20, lambda _: runtime().sandboxes.create(vcpu=1, memory_mib=256))
    bad = [one for one in made if isinstance(one, BaseException)]
    assert not bad, bad[:2]
    assert {one.exec("hostname >/dev/null; echo ok").stdout for one in made} == {"ok\n"}
    assert len({one.id for one in made}) == 20


if __name__ == "__main__":
    main()
