"""The client's own adapter for programs written against another service."""

import asyncio

from support import check, eventually, fails_with, main
from withruntime import e2b
from withruntime.e2b import CommandExitException, NotFoundException, NotSupportedException, PtySize, Sandbox


@check
def create_run_write_read_kill():
    sandbox = Sandbox.create()
    result = sandbox.commands.run("echo hi")
    assert result.stdout == "hi\n" and result.exit_code == 0
    sandbox.files.write("/workspace/a.txt", "content")
    assert sandbox.files.read("/workspace/a.txt") == "content"
    assert sandbox.is_running()
    assert sandbox.kill()
    assert not sandbox.is_running()


@check
def what_its_users_do_next():
    sandbox = Sandbox.create(metadata={"user": "x:y"}, envs={"A": "1"}, timeout=3600)
    assert sandbox.commands.run("echo $A").stdout == "1\n"
    try:
        sandbox.commands.run("echo oops >&2; exit 3")
        raise AssertionError("no error")
    except CommandExitException as error:
        assert error.exit_code == 3 and error.stderr == "oops\n"
    out = []
    sandbox.commands.run("echo a; echo b", on_stdout=out.append)
    assert "".join(out) == "a\nb\n"
    assert sandbox.commands.run("whoami", user="root").stdout == "root\n"
    handle = sandbox.commands.run("read x; echo got $x", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "it\n")
    assert handle.wait().stdout == "got it\n"
    sandbox.files.make_dir("/workspace/d")
    sandbox.files.write("/workspace/d/f", "x")
    assert [entry.name for entry in sandbox.files.list("/workspace/d")] == ["f"]
    assert sandbox.files.exists("/workspace/d/f") and sandbox.files.get_info("/workspace/d/f").size == 1
    sandbox.files.rename("/workspace/d/f", "/workspace/d/g")
    sandbox.files.remove("/workspace/d/g")
    assert not sandbox.files.exists("/workspace/d/f")
    try:
        sandbox.files.read("/workspace/none")
        raise AssertionError("no error")
    except NotFoundException:
        pass
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.commands.run("echo again").stdout == "again\n"
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id and info.metadata["user"] == "x:y"
    assert Sandbox.kill(sandbox.sandbox_id) is True


@check
def its_commands_live_on_and_are_found_again():
    sandbox = Sandbox.create()
    handle = sandbox.commands.run("echo one; echo two >&2; exec sleep 1000", background=True)
    (found,) = sandbox.commands.list()
    assert found.pid == handle.pid and "sleep 1000" in found.args[-1]
    again = sandbox.commands.connect(handle.pid)
    assert sandbox.commands.kill(handle.pid) is True
    assert fails_with(CommandExitException, again.wait).exit_code == -9
    assert fails_with(CommandExitException, handle.wait).exit_code == -9
    assert sandbox.commands.kill(2**30) is False
    told = list(sandbox.commands.run("echo a; echo b >&2; echo c", background=True))
    assert "".join(out for out, _, _ in told if out) == "a\nc\n"
    assert "".join(err for _, err, _ in told if err) == "b\n"
    reader = sandbox.commands.run("cat", background=True, stdin=True)
    reader.send_stdin("all of it")
    reader.close_stdin()
    assert reader.wait().stdout == "all of it"
    fails_with(e2b.TimeoutException, lambda: sandbox.commands.run("sleep 1000", timeout=1))
    assert sandbox.commands.run("pwd", cwd="/tmp", envs={"X": "1"}).stdout == "/tmp\n"


@check
def its_terminals():
    sandbox = Sandbox.create()
    shell = sandbox.pty.create(PtySize(rows=30, cols=100), envs={"Q": "1"}, cwd="/tmp")
    sandbox.pty.send_stdin(shell.pid, b"stty size; echo $Q $PWD; read x\n")
    seen = []

    def carry_on(data):
        seen.append(data)
        if b"1 /tmp" in b"".join(seen) and len(sizes) == 0:
            sizes.append(True)
            sandbox.pty.resize(shell.pid, PtySize(rows=40, cols=90))
            sandbox.pty.send_stdin(shell.pid, b"on\nstty size; exit 3\n")

    sizes = []
    ended = fails_with(CommandExitException, lambda: shell.wait(on_pty=carry_on))
    shown = b"".join(seen)
    assert ended.exit_code == 3 and b"30 100\r\n" in shown and b"40 90\r\n" in shown, shown
    other = sandbox.pty.create(PtySize(rows=10, cols=20))
    assert sandbox.pty.connect(other.pid).pid == other.pid
    assert sandbox.pty.kill(other.pid) is True
    assert fails_with(CommandExitException, other.wait).exit_code == -9


@check
def its_files_and_watches():
    sandbox = Sandbox.create()
    files = sandbox.files
    files.write_files([{"path": "/workspace/m/1", "data": "1"}, {"path": "m/2", "data": b"\0\1"}])
    assert files.read("m/2", "bytes") == b"\0\1" and b"".join(files.read("m/1", "stream")) == b"1"
    assert {entry.path for entry in files.list("m", depth=2)} == {"/home/user/m/1", "/home/user/m/2"}
    large = bytes(range(256)) * 20_000
    files.write("/workspace/large", large)
    assert files.read("/workspace/large", "bytes") == large
    files.write("/root/of-root", "y", user="root")
    assert files.read("/root/of-root", user="root") == "y"
    fails_with(e2b.AuthenticationException, lambda: files.read("/root/of-root"))
    watch = files.watch_dir("/workspace/m")
    deep = files.watch_dir("/workspace/m", recursive=True, include_entry=True)
    files.write("/workspace/m/new", "x")
    files.write("/workspace/m/below/new", "x")
    told, deeper = [], []

    def all_told():
        told.extend((event.name, event.type.value) for event in watch.get_new_events())
        deeper.extend(deep.get_new_events())
        return ("below", "create") in told and any(event.name == "below/new" for event in deeper)

    eventually(all_told, "both watches tell what was written", 60)
    assert ("new", "create") in told and not any("/" in name for name, _ in told), told
    assert any(event.entry and event.entry.path == "/workspace/m/new" for event in deeper), deeper
    watch.stop()
    deep.stop()


@check
def its_pauses_copies_and_snapshots():
    sandbox = Sandbox.create(metadata={"tour": "yes"})
    sandbox.files.write("/workspace/kept", "1")
    assert sandbox.pause() and not sandbox.is_running()
    assert Sandbox.connect(sandbox.sandbox_id).is_running()
    (copy,) = sandbox.fork()
    assert copy.files.read("/workspace/kept") == "1" and copy.sandbox_id != sandbox.sandbox_id
    snapshot = sandbox.create_snapshot()
    # A template is an image or a snapshot: the adapter asks for an image of that id first.
    assert Sandbox.create(template=snapshot.snapshot_id).files.read("/workspace/kept") == "1"
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    sandbox.set_timeout(600)
    page = Sandbox.list(query=e2b.SandboxQuery(metadata={"tour": "yes"}))
    assert sandbox.sandbox_id in [info.sandbox_id for info in page.next_items()]


@check
def its_asynchronous_half():
    async def tour():
        sandbox = await e2b.AsyncSandbox.create()
        assert (await sandbox.commands.run("echo $((6*7))")).stdout == "42\n"
        told, shown = asyncio.Queue(), bytearray()
        await sandbox.files.make_dir("/workspace/w")
        watch = await sandbox.files.watch_dir("/workspace/w", on_event=told.put_nowait)
        await sandbox.files.write("/workspace/w/new", "x")
        assert (await asyncio.wait_for(told.get(), 120)).name == "new"
        await watch.stop()
        shell = await sandbox.pty.create(PtySize(rows=30, cols=100), on_data=shown.extend)
        await sandbox.pty.send_stdin(shell.pid, b"stty size; exit 5\n")
        try:
            await shell.wait()
        except CommandExitException as error:
            assert error.exit_code == 5
        assert b"30 100" in shown, shown
        assert await sandbox.kill()

    asyncio.run(tour())


@check
def what_it_refuses_by_its_own_design():
    sandbox = Sandbox.create()
    for call in (
        lambda: sandbox.git,
        lambda: sandbox.git.status("/workspace"),
        lambda: sandbox.update_network({}),
        lambda: sandbox.files.write("/workspace/f", "x", metadata={"a": "b"}),
        lambda: e2b.Template(),
        lambda: e2b.Volume(),
        lambda: e2b.Secret(),
        lambda: Sandbox.get_mcp_token(),
    ):
        fails_with(NotSupportedException, call)
    # What this server does not have yet is told the same way, and not as something that broke.
    fails_with(NotSupportedException, lambda: sandbox.download_url("/workspace/f"))
    fails_with(NotSupportedException, lambda: sandbox.upload_url("/workspace/f"))


if __name__ == "__main__":
    main()
