"""The client's own adapter for programs written against a third service: its processes, files and watches. It makes an
image for each of its sandboxes, which this server does not have yet: `images.py` stands in for that alone."""

import os
import tempfile
import threading
from pathlib import Path

from images import Images
from support import check, fails_with, main
from withruntime import modal

images = Images()
os.environ["RUNTIME_API_URL"] = images.__enter__()
app = modal.App.lookup("tour", create_if_missing=True)


def box(*entrypoint, **options):
    return modal.Sandbox.create(*entrypoint, app=app, **{"timeout": 600, **options})


@check
def processes():
    sandbox = box(env={"E": "1"})
    done = sandbox.exec("bash", "-c", "echo $E; echo err >&2; exit 3")
    assert (done.stdout.read(), done.stderr.read(), done.wait()) == ("1\n", "err\n", 3)
    placed = sandbox.exec("bash", "-c", "echo $X $PWD", workdir="/tmp", env={"X": "9"})
    assert placed.stdout.read() == "9 /tmp\n" and placed.wait() == 0
    raw = sandbox.exec("printf", "\\0\\377ab", text=False)
    assert raw.stdout.read() == b"\0\xffab" and raw.wait() == 0
    assert "".join(sandbox.exec("bash", "-c", "for i in 1 2 3; do echo $i; done").stdout) == "1\n2\n3\n"
    reader = sandbox.exec("cat")
    reader.stdin.write("typed\n")
    reader.stdin.write_eof()
    reader.stdin.drain()
    assert reader.stdout.read() == "typed\n" and reader.wait() == 0
    asleep = sandbox.exec("sleep", "1000")
    assert asleep.poll() is None
    asleep.kill()
    assert asleep.wait() == -9 and asleep.poll() == -9
    assert sandbox.exec("sleep", "1000", timeout=1).wait() == -1
    shown = sandbox.exec("bash", "-c", "stty size; tty", pty=True)
    assert shown.stdout.read().startswith("24 80\r\n/dev/") and shown.wait() == 0


@check
def the_one_that_a_sandbox_is_for():
    # The same time for the sandbox and for its process, which starts a moment later.
    sandbox = box("bash", "-c", "echo first; read x; echo got $x; exit 5", timeout=600)
    sandbox.stdin.write("it\n")
    sandbox.stdin.write_eof()
    sandbox.stdin.drain()
    sandbox.wait(raise_on_termination=False)
    assert sandbox.stdout.read() == "first\ngot it\n" and sandbox.returncode == 5, sandbox.returncode
    probe = modal.Probe.with_exec("test", "-e", "/tmp/ready")
    ready = box("bash", "-c", "touch /tmp/ready; sleep 1000", readiness_probe=probe)
    ready.wait_until_ready(timeout=120)
    assert ready.exec("cat", "/tmp/ready").wait() == 0


@check
def files_and_watches():
    sandbox = box()
    fs = sandbox.filesystem
    fs.make_directory("/workspace/d/e")
    fs.write_text("hi", "/workspace/d/t")
    fs.write_bytes(b"\0\1", "/workspace/d/b")
    with tempfile.TemporaryDirectory() as here:
        (Path(here) / "up").write_bytes(b"carried")
        fs.copy_from_local(f"{here}/up", "/workspace/d/up")
        fs.copy_to_local("/workspace/d/up", f"{here}/down")
        assert (Path(here) / "down").read_bytes() == b"carried"
    assert fs.read_text("/workspace/d/t") == "hi" and fs.read_bytes("/workspace/d/b") == b"\0\1"
    assert {entry.name for entry in fs.list_files("/workspace/d")} == {"b", "e", "t", "up"}
    assert fs.stat("/workspace/d/t").size == 2
    fs.remove("/workspace/d", recursive=True)
    fails_with(modal.exception.SandboxFilesystemNotFoundError, lambda: fs.read_text("/workspace/d/t"))
    fails_with(modal.exception.SandboxFilesystemPermissionError, lambda: fs.write_text("x", "/root/x"))
    large = bytes(range(256)) * 20_000
    fs.write_bytes(large, "/workspace/large")
    assert fs.read_bytes("/workspace/large") == large

    # A watch begins when it is read, so that somebody goes on writing until it has told of something.
    over = threading.Event()

    def write():
        number = 0
        while not over.wait(0.2):
            number += 1
            fs.write_text("x", f"/workspace/n{number}")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    for event in fs.watch("/workspace", recursive=True, timeout=120):
        assert event.type.value == "Create" and event.paths[0].startswith("/workspace/n"), event
        break
    else:
        raise AssertionError("the watch told nothing")
    over.set()
    writer.join()


@check
def names_tags_and_copies():
    sandbox = box(name="one", tags={"a": "b"}, cpu=1, memory=512)
    assert modal.Sandbox.from_name("tour", "one").object_id == sandbox.object_id
    sandbox.set_tags({"x": "y"})
    assert sandbox.get_tags() == {"x": "y"}
    assert [found.object_id for found in modal.Sandbox.list(tags={"x": "y"})] == [sandbox.object_id]
    assert modal.Sandbox.from_id(sandbox.object_id).exec("echo", "x").stdout.read() == "x\n"
    sandbox.filesystem.write_text("1", "/workspace/kept")
    copy = box(image=sandbox.snapshot_filesystem())
    assert copy.filesystem.read_text("/workspace/kept") == "1"
    closed = box(block_network=True, encrypted_ports=[8000])
    assert closed.tunnels()[8000].host.startswith("8000-") and closed.exec("true").wait() == 0
    assert sandbox.terminate(wait=True) == 137 and sandbox.poll() == 137


@check
def what_it_refuses_by_its_own_design():
    sandbox = box()
    for call in (
        lambda: box(gpu="any"),
        sandbox.create_connect_token,
        lambda: sandbox.snapshot_directory("/workspace"),
        lambda: modal.Secret.objects,
        lambda: modal.Volume.objects,
        lambda: modal.Volume.from_name("v", create_if_missing=True).listdir("/"),
    ):
        fails_with(modal.CompatibilityError, call)


if __name__ == "__main__":
    main()
