"""The client's own adapter for programs written against a fourth service: its processes, files and watches."""

import asyncio
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from support import check, eventually, fails_with, main, unique
from withruntime import blaxel
from withruntime.blaxel import NotSupportedError, ProcessRequest, ProcessRequestWithLog, ResponseError, SyncSandboxInstance


def box(**fields):
    return SyncSandboxInstance.create({"name": unique("tour"), "memory": 1024, **fields})


@check
def processes():
    process = box(envs=[{"name": "E", "value": "1"}]).process
    done = process.exec({"name": "one", "command": "echo $E; echo err >&2; exit 2", "waitForCompletion": True})
    assert (done.stdout, done.stderr, done.exit_code, done.status) == ("1\n", "err\n", 2, "failed"), done
    lines = []
    told = ProcessRequestWithLog(command="echo 1; echo 2", wait_for_completion=True, on_log=lines.append)
    assert process.exec(told).status == "completed" and lines == ["1", "2"], lines
    process.exec(ProcessRequest(name="in", command="cat", stdin=True))
    process.write_stdin("in", "typed\n")
    process.close_stdin("in")
    assert process.wait("in", max_wait=120_000).exit_code == 0 and process.logs("in") == "typed\n"
    for name, stop, status in (("s", process.stop, "stopped"), ("k", process.kill, "killed")):
        process.exec(ProcessRequest(name=name, command="sleep 1000"))
        assert process.get(name).status == "running"
        stop(name)
        assert process.wait(name, max_wait=120_000).status == status
    process.exec(ProcessRequest(name="told", command="for i in 1 2 3; do echo $i; echo e$i >&2; done"))
    out, err = [], []
    stream = process.stream_logs("told", {"on_stdout": out.append, "on_stderr": err.append})
    eventually(lambda: (out, err) == (["1", "2", "3"], ["e1", "e2", "e3"]), "all lines are told", 60)
    stream.close()
    assert {"one", "in", "s", "k", "told"} <= {each.name for each in process.list()}
    process.exec(ProcessRequest(name="web", command="python3 -m http.server 8123", wait_for_ports=[8123]))
    assert process.exec({"command": "curl -sf -o /dev/null 127.0.0.1:8123", "waitForCompletion": True}).exit_code == 0
    long = ProcessRequest(command="sleep 1000", timeout=1, wait_for_completion=True)
    assert "timed out" in str(fails_with(ResponseError, lambda: process.exec(long)))


@check
def files_and_watches():
    sandbox = box()
    fs = sandbox.fs
    fs.mkdir("/workspace/a")
    fs.write("/workspace/a/x.txt", "hello\nneedle\n")
    fs.write_binary("a/b", b"\0\1")
    fs.write_tree([{"path": "t/1", "content": "one"}, {"path": "t/2", "content": "two"}], "/workspace/a")
    fs.cp("/workspace/a/x.txt", "/workspace/a/y.txt")
    assert fs.read("/workspace/a/y.txt") == "hello\nneedle\n" and fs.read_binary("/workspace/a/b") == b"\0\1"
    listed = fs.ls("/workspace/a")
    assert {entry.name for entry in listed.files} == {"b", "x.txt", "y.txt"}
    assert [entry.name for entry in listed.subdirectories] == ["t"]
    assert {match.path for match in fs.find("/workspace/a", patterns=["*.txt"]).matches} == {"x.txt", "y.txt"}
    assert {(match.path, match.line) for match in fs.grep("needle", "/workspace/a").matches} == {("x.txt", 2), ("y.txt", 2)}
    with tempfile.TemporaryDirectory() as here:
        fs.download("/workspace/a/x.txt", f"{here}/down")
        assert (Path(here) / "down").read_text() == "hello\nneedle\n"
    fs.write("/root/of-root", "x")
    assert fs.read("/root/of-root") == "x"
    large = bytes(range(256)) * 20_000
    fs.write_binary("/workspace/large", large)
    assert fs.read_binary("/workspace/large") == large
    fs.rm("/workspace/a", recursive=True)
    fails_with(ResponseError, lambda: fs.read("/workspace/a/x.txt"))

    fs.mkdir("/workspace/w")
    told, count = [], iter(range(10_000))
    watch = fs.watch("/workspace/w/**", told.append, {"with_content": True})

    def told_of_it():
        fs.write(f"/workspace/w/below/{next(count)}", "content")
        return any(event.op == "CREATE" and event.content == "content" for event in told)

    eventually(told_of_it, "a file below is told with what is in it", 60)
    watch.close()


@check
def previews_sessions_and_copies():
    sandbox = box()
    name = sandbox.metadata.name
    spec = blaxel.PreviewSpec(port=8123, public=False)
    preview = sandbox.previews.create(blaxel.Preview(metadata=blaxel.PreviewMetadata(name="pv"), spec=spec))
    assert preview.tokens.create(datetime.now(timezone.utc) + timedelta(hours=1)).value
    assert [each.name for each in sandbox.previews.list()] == ["pv"]
    sandbox.previews.delete("pv")
    session = sandbox.sessions.create()
    page = SyncSandboxInstance.from_session(session)
    assert page.process.exec({"command": "echo page", "waitForCompletion": True}).stdout == "page\n"
    sandbox.sessions.delete(session.name)
    snapshot = sandbox.snapshots.create("kept")
    assert [each.id for each in sandbox.snapshots.list()] == [snapshot.id]
    sandbox.delete_snapshot(snapshot.id)
    copy = unique("copy")
    sandbox.fork(copy)
    found = SyncSandboxInstance.get(copy)
    assert found.process.exec({"command": "echo copy", "waitForCompletion": True}).stdout == "copy\n"
    SyncSandboxInstance.update_metadata(name, blaxel.SandboxUpdateMetadata(labels={"x": "y"}))
    SyncSandboxInstance.update_ttl(name, "24h")
    assert {name, copy} <= {each.metadata.name for each in SyncSandboxInstance.list().data}
    SyncSandboxInstance.delete(name)


@check
def its_asynchronous_half():
    async def tour():
        sandbox = await blaxel.SandboxInstance.create({"name": unique("tour"), "memory": 1024})
        done = await sandbox.process.exec({"command": "echo hi", "waitForCompletion": True})
        assert done.stdout == "hi\n" and done.exit_code == 0
        await sandbox.fs.write("/workspace/f", "x")
        assert await sandbox.fs.read("/workspace/f") == "x"
        await blaxel.SandboxInstance.delete(sandbox.metadata.name)

    asyncio.run(tour())


@check
def what_it_refuses_by_its_own_design():
    sandbox = box()
    for call in (
        lambda: sandbox.codegen.fastapply("a", "b", "c"),
        lambda: sandbox.drives.list(),
        lambda: sandbox.system.health(),
        lambda: sandbox.schedules.list(),
        sandbox.restore,
        lambda: blaxel.VolumeInstance(),
        lambda: blaxel.ImageInstance(),
        lambda: blaxel.SecretInstance(),
    ):
        fails_with(NotSupportedError, call)
    # Its files act for root where they read and write, and not where they list.
    fails_with(ResponseError, lambda: sandbox.fs.ls("/root"))
    # It visits previews over HTTPS alone, or at exactly `localhost`.
    sandbox.process.exec(ProcessRequest(command="python3 -m http.server 8123", wait_for_ports=[8123]))
    fails_with(ValueError, lambda: sandbox.fetch(8123, "/"))


if __name__ == "__main__":
    main()
