"""Watches of files, by the client and by hand."""

import threading
import time

from support import box, check, eventually, host, main, raw, rt, saved
from support import events as stream


def start(s, **body):
    return raw("POST", f"/v1/sandboxes/{s.id}/files/watches", {"path": "/workspace", "batchMs": 20, **body}).ok()


def events(s, watch, cursor, wait=8000):
    return raw("GET", f"/v1/sandboxes/{s.id}/files/watches/{watch}/events?cursor={cursor}&waitMs={wait}").ok()


def lines(s, watch, cursor):
    path = f"/v1/sandboxes/{s.id}/files/watches/{watch}/events?cursor={cursor}&follow=true"
    return stream(path, method="GET")


def until(s, watch, cursor, wanted):
    """All that is told up to and with the wanted path; and the next cursor."""
    seen, end = [], time.monotonic() + 120
    while not any(event["path"] == wanted for event in seen):
        poll = events(s, watch, cursor)
        seen += poll["events"]
        cursor = poll["nextCursor"]
        assert time.monotonic() < end and not poll["ended"], (wanted, seen, poll)
    return seen, cursor


def short(seen):
    """Repeats folded: two writes may fall into one batch or two."""
    told = []
    for event in seen:
        old = event["oldPath"] + " > " if "oldPath" in event else ""
        line = f"{event['type']} {old}{event['path']}{'/' if event['isDir'] else ''}"
        if told[-1:] != [line]:
            told.append(line)
    return told


@check
def each_change_inside_is_told_as_what_it_is():
    s = box()
    s.exec("mkdir -p d/e; echo x > d/f", check=True)
    watch = start(s, recursive=True)["id"]
    cursor = 0
    for command, told in {
        "echo y >> d/f": ["write {}/d/f"],
        "echo z > d/e/new": ["create {}/d/e/new", "write {}/d/e/new"],
        "chmod 600 d/f": ["chmod {}/d/f"],
        "mv d/f d/e/g": ["rename {0}/d/f > {0}/d/e/g"],
        "mv d moved; rm moved/e/g": ["rename {0}/d > {0}/moved/", "remove {}/moved/e/g"],
        "mkdir -p a/b/c; : > a/b/c/f": ["create {}/a/", "create {}/a/b/", "create {}/a/b/c/", "create {}/a/b/c/f"],
        "ln -s x link; ln moved/e/new hard": ["create {}/link", "create {}/hard"],
        "rm -r a": ["remove {}/a/b/c/f", "remove {}/a/b/c/", "remove {}/a/b/", "remove {}/a/"],
    }.items():
        end = f"/workspace/end{cursor}"
        s.exec(f"{command}; : > {end}", check=True)
        seen, cursor = until(s, watch, cursor, end)
        assert short(seen)[:-1] == [line.format("/workspace") for line in told], (command, short(seen))
    # A file written whole through the API appears as one.
    s.files.write("/workspace/api", "content")
    seen, cursor = until(s, watch, cursor, "/workspace/api")
    assert short(seen) == ["create /workspace/api"], seen
    s.exec("rm -rf /tmp/root; mkdir /tmp/root", check=True)
    gone = start(s, path="/tmp/root")["id"]
    s.exec("rmdir /tmp/root", check=True)
    poll = eventually(lambda: [one for one in [events(s, gone, 0)] if one["ended"]], "its end")[0]
    assert poll["notices"][-1]["reason"] == "root-removed", poll


@check
def the_client_iterates_filters_lists_and_stops():
    s = box()
    s.exec("mkdir -p node_modules/x", check=True)
    handle = s.files.watch("/workspace", recursive=True, include=["*.py"], exclude=["node_modules"], batch_ms=20)
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(handle.events()), daemon=True)
    thread.start()
    s.exec("echo 1 > a.py; echo 1 > b.txt; echo 1 > node_modules/x/c.py; mkdir p; echo 1 > p/d.py", check=True)
    [info] = s.files.watches.list()
    assert info["path"] == "/workspace" and info["state"] == "running", info
    poller = s.files.watches.start("/workspace", id="polled", events=["remove"])
    s.exec("rm b.txt", check=True)
    eventually(lambda: [e["path"] for e in poller.get_new_events(2000)] == ["/workspace/b.txt"], "a removal")
    assert poller.get_new_events() == []
    assert s.files.watches.stop("polled") is True and s.files.watches.stop("polled") is False
    # Events are handed on in the order they happened; the end ends the iteration.
    time.sleep(1)
    assert handle.stop() is True
    thread.join(120)
    assert not thread.is_alive()
    told = [line for line in short(seen) if line.startswith("create")]
    assert told == ["create /workspace/a.py", "create /workspace/p/d.py"], seen
    # Of a file in a directory that was new the first write may have been before anybody looked.
    assert "write /workspace/a.py" in short(seen), seen
    assert s.files.watches.list() == []


@check
def a_watch_survives_a_pause_and_never_wakes():
    s = box()
    watch = start(s, recursive=True, timeoutMs=0)["id"]
    s.exec(": > before", check=True)
    seen, cursor = until(s, watch, 0, "/workspace/before")
    heard = []
    follower = threading.Thread(target=lambda: heard.extend(lines(s, watch, cursor)), daemon=True)
    follower.start()
    for name in ("after", "later"):
        s.pause()
        if name == "later":
            saved(s)
        poll = events(s, watch, cursor, wait=500)
        assert poll["notices"] == [{"k": "paused", "cursor": cursor}] and poll["nextCursor"] == cursor, poll
        raw("GET", f"/v1/sandboxes/{s.id}/files/watches").refused(409, "sandbox_paused")
        assert rt.sandboxes.get(s.id).state == "paused", "reading wakes nothing"
        # A poll that waits while it is woken goes on in it.
        def wake(name=name):
            s.wake()
            s.exec(f"mkdir {name}; : > {name}/f", check=True)

        waiting = threading.Timer(0.5, wake)
        waiting.start()
        seen, cursor = until(s, watch, cursor, f"/workspace/{name}/f")
        waiting.join()
        assert short(seen) == [f"create /workspace/{name}/", f"create /workspace/{name}/f"], seen
    # And from the start: what came before the pause is held.
    assert short(until(s, watch, 0, "/workspace/later/f")[0])[0] == "create /workspace/before"
    assert raw("DELETE", f"/v1/sandboxes/{s.id}/files/watches/{watch}").ok() == {"stopped": True}
    # One who followed heard all of it, the pauses too.
    follower.join(120)
    kinds = [line["k"] for line in heard]
    assert kinds.count("paused") == 2 and kinds[-1] == "end", heard
    told = [event for line in heard if line["k"] == "events" for event in line["events"]]
    assert short(told) == [f"create /workspace/{path}" for path in ("after/", "after/f", "later/", "later/f")], heard
    s.stop()
    s.restart()
    raw("GET", f"/v1/sandboxes/{s.id}/files/watches/{watch}/events").refused(404, "not_found")


@check
def the_client_reads_on_after_a_pause():
    s = box()
    handle = s.files.watch("/workspace", timeout_ms=0)
    s.exec(": > before", check=True)
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(handle.events()), daemon=True)
    thread.start()
    eventually(lambda: seen, "what came before")
    # Just before: of its time nothing is to pass but while it stands still.
    timed = start(s, timeoutMs=10000)["id"]
    s.pause()
    thread.join(120)
    assert not thread.is_alive() and handle.exit_reason == "paused", handle.exit_reason
    # Longer than the other's time, which stands still with it.
    time.sleep(11)
    s.wake()
    assert [one["id"] for one in s.files.watches.list()] == [handle.id, timed]
    s.exec(": > after", check=True)
    read = eventually(lambda: handle.get_new_events(2000), "what came after")
    assert short(seen + read) == ["create /workspace/before", "create /workspace/after"], (seen, read)
    end = eventually(lambda: [n for n in events(s, timed, 0)["notices"] if n["k"] == "end"], "its time is up", 20)
    assert end[0]["reason"] == "timeout", end


@check
def a_copy_with_its_memory_watches_too():
    s = box()
    watch = start(s, timeoutMs=0)["id"]
    s.exec(": > before", check=True)
    seen, cursor = until(s, watch, 0, "/workspace/before")
    copy = s.fork()
    copy.exec(": > in-the-copy", check=True)
    s.exec(": > in-the-source", check=True)
    assert short(until(copy, watch, cursor, "/workspace/in-the-copy")[0]) == ["create /workspace/in-the-copy"]
    assert short(until(s, watch, cursor, "/workspace/in-the-source")[0]) == ["create /workspace/in-the-source"]


@check
def a_watch_outlives_the_server():
    s = box()
    watch = start(s, timeoutMs=0)["id"]
    s.exec(": > before", check=True)
    seen, cursor = until(s, watch, 0, "/workspace/before")
    host("kill9")
    host("start")
    eventually(lambda: rt.sandboxes.get(s.id).state == "running", "adopted", 20)
    s.exec(": > after", check=True)
    later, _ = until(s, watch, cursor, "/workspace/after")
    assert short(seen + later) == ["create /workspace/before", "create /workspace/after"], (seen, later)
    assert [one["id"] for one in s.files.watches.list()] == [watch]


@check
def reading_is_no_use_of_the_sandbox():
    s = box(idle_pause_seconds=60)
    watch = start(s, timeoutMs=0)["id"]
    lines_read = []
    threading.Thread(target=lambda: lines_read.extend(lines(s, watch, 0)), daemon=True).start()
    # It pauses by itself although it is read all the time.
    end = time.monotonic() + 300
    while not events(s, watch, 0, wait=1000)["notices"]:
        assert time.monotonic() < end, s.refresh().info
    assert s.wait_for("paused", 100).state == "paused" and s.info["stopReason"] == "idle", s.info


@check
def ten_thousand_directories_are_watched():
    s = box()
    s.exec("for i in $(seq 100); do mkdir -p many/$i; (cd many/$i; mkdir $(seq 100)); done", check=True, timeout_ms=300_000)
    watch = start(s, recursive=True, timeoutMs=0)["id"]
    if s.info["engine"] == "gvisor":
        # Each takes descriptors of the host's there: it looks at as many as leave room for the rest of the sandbox.
        assert [n["watches"] for n in events(s, watch, 0)["notices"] if n["k"] == "limit"] == [2000]
        s.exec(": > deep", check=True)
        assert short(until(s, watch, 0, "/workspace/deep")[0]) == ["create /workspace/deep"]
    else:
        s.exec(": > many/77/77/deep", check=True)
        assert short(until(s, watch, 0, "/workspace/many/77/77/deep")[0]) == ["create /workspace/many/77/77/deep"]
    # A flood is told in part, and said to be.
    s.exec("mkdir flood", check=True)
    watch = start(s, path="/workspace/flood", timeoutMs=0)["id"]
    s.exec("cd flood; seq 30000 | xargs touch; : > last", check=True, timeout_ms=300_000)
    cursor, told, missed = 0, 0, 0
    while True:
        poll = events(s, watch, cursor)
        told += len(poll["events"])
        missed += poll["lostBytes"] + sum(n["dropped"] or 1 for n in poll["notices"] if n["k"] == "overflow")
        cursor = poll["nextCursor"]
        if any(event["path"] == "/workspace/flood/last" for event in poll["events"]) or missed:
            break
    assert missed or told >= 30000, (told, missed)


if __name__ == "__main__":
    main()
