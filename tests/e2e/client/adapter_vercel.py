"""The client's own adapter for programs written against a fifth service: its processes and files."""

import asyncio
import signal
import subprocess

from support import check, fails_with, main, unique
from withruntime.vercel import sandbox as asynchronous
from withruntime.vercel.sandbox import sync as vercel


def box(**fields):
    fields = {"resources": vercel.SandboxResources(vcpus=1, memory=2048), **fields}
    return vercel.create_sandbox(name=unique("tour"), **fields)


@check
def processes():
    sandbox = box(env={"E": "1"})
    done = sandbox.run_process("bash", ["-c", "echo $E; echo e >&2; exit 3"], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "1\n", "e\n"), done
    placed = sandbox.run_process("bash", ["-c", "echo $X $PWD"], cwd="/tmp", env={"X": "9"}, capture_output=True)
    assert placed.stdout == "9 /tmp\n"
    assert sandbox.run_process("id", ["-u"], sudo=True, capture_output=True).stdout == "0\n"
    fails_with(subprocess.CalledProcessError, lambda: sandbox.run_process("false", check=True))
    assert sandbox.run_process("sleep", ["1000"], kill_after=1, capture_output=True).returncode == -9
    told = sandbox.create_process("bash", ["-c", "for i in 1 2 3; do echo $i; echo e$i >&2; done"])
    assert list(told.stdout) == ["1\n", "2\n", "3\n"] and told.wait() == 0
    assert sandbox.create_process("bash", ["-c", "echo a; echo b >&2"]).communicate() == ("a\n", "b\n")
    for end, code in (
        (lambda process: process.terminate(), -15),
        (lambda process: process.kill(), -9),
        (lambda process: process.send_signal(signal.SIGINT), -2),
    ):
        process = sandbox.create_process("sleep", ["1000"])
        assert process.id in [each.id for each in sandbox.query_processes()]
        end(process)
        assert process.wait() == code and sandbox.get_process(process.id).wait() == code


@check
def files():
    fs = box().fs
    fs.mkdir("/workspace/a/b")
    fs.write_text("a/x.txt", "hello\n")
    fs.write_bytes("/workspace/a/raw", b"\0\1", mode=0o640)
    assert fs.read_text("/workspace/a/x.txt") == "hello\n" and fs.read_bytes("a/raw") == b"\0\1"
    with fs.open("/workspace/a/opened", "w") as file:
        file.write("one\n")
        file.writelines(["two\n"])
    with fs.open("/workspace/a/opened") as file:
        assert file.readline() == "one\n" and file.read() == "two\n"
    with fs.batch(cwd="/workspace/a") as batch:
        batch.write_text("c/1", "one")
        batch.write_bytes("c/2", b"two")
    kinds = {entry.path.rsplit("/", 1)[-1]: entry.kind for entry in fs.listdir("/workspace/a")}
    assert set(kinds) == {"b", "c", "opened", "raw", "x.txt"} and kinds["b"] != kinds["raw"], kinds
    assert fs.is_dir("a/c") and fs.is_file("a/c/1") and not fs.exists("a/none")
    fs.rename("a/raw", "a/cooked")
    assert not fs.exists("a/raw") and fs.read_bytes("a/cooked") == b"\0\1"
    large = bytes(range(256)) * 20_000
    fs.write_bytes("large", large)
    assert fs.read_bytes("large") == large
    fs.remove("a", recursive=True)
    fails_with(vercel.SandboxPathNotFoundError, lambda: fs.read_text("a/x.txt"))
    fs.remove("a", recursive=True, missing_ok=True)


@check
def stops_copies_and_settings():
    sandbox = box(execution_time_limit=300)
    sandbox.fs.write_text("kept", "1")
    sandbox.extend_execution_time_limit(60)
    sandbox.update(ports=[3000])
    sandbox.update_network_policy("deny-all")
    assert [route.port for route in sandbox.refresh().routes] == [3000]
    sandbox.stop()
    woken = vercel.resume_sandbox(name=sandbox.name)
    assert woken.fs.read_text("kept") == "1"
    assert sandbox.name in [each.name for each in vercel.query_sandboxes()]
    with vercel.fork_sandbox(source_sandbox=sandbox.name, name=unique("copy")) as copy:
        assert copy.fs.read_text("kept") == "1"
    # A snapshot stops what it was taken of.
    snapshot = woken.snapshot()
    copy = vercel.create_sandbox(source=vercel.SnapshotSource(snapshot.id))
    assert copy.fs.read_text("kept") == "1"
    copy.destroy()
    snapshot.delete()


@check
def its_asynchronous_half():
    async def tour():
        sandbox = await asynchronous.create_sandbox(name=unique("tour"))
        done = await sandbox.run_process("echo", ["hi"], capture_output=True)
        assert done.returncode == 0 and done.stdout == "hi\n"
        await sandbox.fs.write_text("f", "x")
        assert await sandbox.fs.read_text("f") == "x"
        await sandbox.destroy()

    asyncio.run(tour())


@check
def what_it_refuses_by_its_own_design():
    sandbox = box()
    for call in (
        lambda: sandbox.open_interactive("bash"),
        sandbox.list_sessions,
        sandbox.list_snapshots,
        vercel.query_sessions,
        vercel.get_drive,
        vercel.get_or_create_drive,
        vercel.query_drives,
        vercel.delete_drive,
    ):
        fails_with(vercel.NotSupportedError, call)


if __name__ == "__main__":
    main()
