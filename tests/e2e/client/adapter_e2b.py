"""The client's own adapter for programs written against another service."""

from support import check, main
from withruntime.e2b import CommandExitException, NotFoundException, Sandbox


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


if __name__ == "__main__":
    main()
