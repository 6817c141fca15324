"""Snapshots, forks, network rules, terminals, tunnels, archives and sessions of a real server, with both forms."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest

from withruntime import (
    AsyncSandbox,
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RuntimeError,
    Sandbox,
)

from .conftest import Server
from .forms import both, drive, items, settle
from .test_sockets import blocking, echoed, gone

#: A server in the sandbox that says back what it hears, at its loopback alone.
ECHO = """
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            data = self.request.recv(65536)
            if not data:
                return
            self.request.sendall(data)
socketserver.ThreadingTCPServer.allow_reuse_address = True
with socketserver.ThreadingTCPServer(("127.0.0.1", 9000), Echo) as server:
    print("listens", flush=True)
    server.serve_forever()
"""


async def same(client: Any, box: Sandbox) -> Any:
    """The test's sandbox, as a handle of the client's form."""
    return await settle(client.sandboxes.get(box.id))


@both
def test_a_terminal_is_one(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        mine = await same(client, box)
        terminal = await settle(mine.terminal(cols=100, rows=30, cwd="/tmp"))
        await settle(terminal.write("stty size; pwd; echo is-$((40+2)); read word\n"))
        shown = await until(terminal, b"is-42")
        assert b"30 100" in shown and b"/tmp" in shown
        # The same one, seen twice.
        other = await settle(mine.terminal(process_id=terminal.process_id))
        await settle(other.resize(90, 20))
        await settle(other.write("x\nstty size; exit 5\n"))
        assert b"20 90" in await until(terminal, None)
        assert terminal.exit_code == 5
        await until(other, None)
        assert other.exit_code == 5
        process = await settle(mine.process(terminal.process_id))
        assert process.state == "exited" and process.info["pty"] is True

    drive(form, server.url, work, api_key=server.key)


async def until(terminal: Any, word: Any) -> bytes:
    """What a terminal shows up to a word, or to its end."""
    shown = b""
    while word is None or word not in shown:
        piece = await settle(terminal.recv())
        if piece is None:
            assert word is None, shown
            return shown
        shown += piece
    return shown


@both
def test_a_closed_terminal_hangs_its_shell_up(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        mine = await same(client, box)
        terminal = await settle(mine.terminal(command="sleep 1000"))
        await settle(terminal.close())
        process = await settle(mine.process(terminal.process_id))
        assert (await settle(process.wait())).exit_code not in (None, 0)
        with pytest.raises(NotFoundError) as told:
            await settle(mine.terminal(process_id="nobody"))
        assert told.value.code == "terminal_refused" and told.value.details == {"code": "not_found"}
        with pytest.raises(InvalidRequestError):
            await settle(mine.terminal(cols=0))

    drive(form, server.url, work, api_key=server.key)


@both
def test_a_process_with_a_terminal_has_a_size(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        process = await settle((await same(client, box)).spawn("read x; stty size", pty={"cols": 70, "rows": 10}))
        await settle(process.resize(71, 11))
        await settle(process.write("\n"))
        assert "11 71" in (await settle(process.wait())).stdout

    drive(form, server.url, work, api_key=server.key)


@both
def test_a_port_is_here(server: Server, box: Sandbox, form: str) -> None:
    data = [os.urandom(2_500_000) for _ in range(3)]

    async def work(client: Any) -> None:
        mine = await same(client, box)
        process = await settle(mine.spawn(["python3", "-c", ECHO]))
        for event in await first(process.output()):
            assert "listens" in event["data"]
        forward = await settle(mine.forward_port(9000, local_port=0))
        ran = [blocking(lambda one=one: echoed(forward.local_port, one)) for one in data]  # type: ignore[misc]
        assert await asyncio.gather(*ran) == data
        await settle(forward.close())
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", forward.local_port), 5)
        nobody = await settle(mine.forward_port(9001, local_port=0))
        assert await blocking(lambda: gone(nobody.local_port))
        await settle(nobody.close())
        await settle(process.kill())
        await settle(process.wait())

    drive(form, server.url, work, api_key=server.key)


async def first(events: Any) -> list[Any]:
    """The first event of a stream, which is left then."""
    if hasattr(events, "__aiter__"):
        async for event in events:
            await events.aclose()
            return [event]
    for event in events:
        events.close()
        return [event]
    return []


@both
def test_a_snapshot_is_kept_and_made_a_sandbox_of(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        mine = await same(client, box)
        await settle(mine.files.write("/workspace/kept", form))
        taken = await settle(mine.snapshot(name=f"n-{form}", retention_days=2))
        assert taken["state"] == "ready" and taken["mode"] == "memory" and taken["labels"] == box.info["labels"]
        assert taken["sourceSandboxId"] == box.id and taken["shape"]["memoryMiB"] == box.info["memoryMiB"]
        assert (await settle(mine.refresh())).state == "running"
        async with holding(await settle(client.sandboxes.create(snapshot=taken["id"]))) as copy:
            assert await settle(copy.files.read_text("/workspace/kept")) == form
            assert copy.info["snapshot"] == taken["id"]
        disk = await settle(mine.snapshot(mode="disk"))
        async with holding(await settle(client.sandboxes.create(snapshot_id=disk["id"], memory_mib=512))) as copy:
            assert await settle(copy.files.read_text("/workspace/kept")) == form
        snapshots = client.snapshots
        found = await items(await settle(snapshots.list(sandbox_id=box.id, limit=1)))
        assert [one["id"] for one in found] == [taken["id"], disk["id"]]
        named = await settle(snapshots.list(name=f"n-{form}", state="ready"))
        assert [one["id"] for one in named.data] == [taken["id"]]
        with pytest.raises(ConflictError) as told:
            await settle(snapshots.update(taken["id"], labels={}, if_labels={"not": "these"}))
        assert told.value.code == "snapshot_metadata_changed"
        changed = await settle(snapshots.update(taken["id"], name=None, labels={"a": "b"}))
        assert changed["name"] is None and changed["labels"] == {"a": "b"}
        assert (await settle(snapshots.extend(taken["id"], 9)))["retentionDays"] == 9
        begun = await settle(snapshots.create(box.id, mode="disk"))
        assert begun["state"] in ("capturing", "ready")
        while (await settle(snapshots.get(begun["id"])))["state"] == "capturing":
            await asyncio.sleep(0.05)
        for one in (taken, disk, begun):
            assert await settle(snapshots.delete(one["id"])) is None
        with pytest.raises(NotFoundError):
            await settle(client.sandboxes.create(snapshot=taken["id"]))

    drive(form, server.url, work, api_key=server.key)


class holding:
    """The scope of a sandbox of either form."""

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    async def __aenter__(self) -> Any:
        return self._sandbox

    async def __aexit__(self, *_: object) -> None:
        await settle(self._sandbox.delete())


@both
def test_forks_go_on_from_where_it_was(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        mine = await same(client, box)
        counter = await settle(mine.spawn("n=0; while read x; do n=$((n+x)); echo $n; done", stdin="pipe"))
        await settle(counter.write("40\n"))
        while "40" not in await output(mine, counter.id):
            await asyncio.sleep(0.02)
        key = f"fork-{uuid.uuid4().hex}"
        copies = await settle(mine.fork(2, name=f"f-{key}", labels={"fork": form}, idempotency_key=key))
        try:
            assert [copy.info["name"] for copy in copies] == [f"f-{key}", f"f-{key}-1"]
            assert all(copy.state == "running" and copy.info["labels"] == {"fork": form} for copy in copies)
            # The shell in each goes on with what it knew.
            for number, copy in enumerate(copies):
                running = await settle(copy.process(counter.id))
                await settle(running.write(f"{number}\n", eof=True))
                assert (await settle(running.wait())).stdout.split()[-1] == str(40 + number)
            again = await settle(mine.fork(2, name=f"f-{key}", labels={"fork": form}, idempotency_key=key))
            assert [copy.id for copy in again] == [copy.id for copy in copies]
            one = await settle(mine.fork())
            assert isinstance(one, AsyncSandbox if form == "async" else Sandbox)
            await settle(one.delete())
        finally:
            for copy in copies:
                await settle(copy.delete())
        with pytest.raises(InvalidRequestError):
            await settle(mine.fork(17))

    drive(form, server.url, work, api_key=server.key)


async def output(box: Any, process_id: str) -> str:
    found = await settle(box.process(process_id))
    if not found.info["outputBytes"]:
        return ""
    return "".join(event["data"] for event in await first(found.output()))


@both
def test_rules_of_the_network(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        mine = await same(client, box)
        network = mine.network
        before = await settle(network.get())
        assert before["internet"] is True and before["sandboxId"] == box.id
        rules = await settle(
            network.set(internet=False, allow=["Example.com.", "*.example.org"], deny=["10.0.0.0/8"], connect=["a.b:5"])
        )
        # An allow list alone is what "no internet but these" means.
        assert rules["internet"] is True and rules["allow"] == ["example.com", "*.example.org"]
        assert rules["deny"] == ["10.0.0.0/8"] and rules["connect"] == ["a.b:5"]
        assert rules["enforced"] is True and rules["version"] == before["version"] + 1
        with pytest.raises(InvalidRequestError) as told:
            await settle(network.set(internet=True, allow=["*", "http://x"]))
        assert {issue["path"] for issue in (told.value.details or {})["issues"]} == {"allow[0]", "allow[1]"}
        assert (await settle(network.get()))["version"] == rules["version"]
        # Said by name: commands of a sandbox with no way out are told of no proxy.
        ask = "curl -s -o /dev/null -D - -x http://127.0.0.1:10800 http://%s/ | grep -i x-runtime-egress"
        refused = await settle(mine.exec(ask % "denied.example.net"))
        assert "rule-not-allowed" in refused.stdout
        off = await settle(network.off())
        assert off["internet"] is False and off["allow"] == []
        assert "internet-off" in (await settle(mine.exec(ask % "example.com"))).stdout
        page = await settle(network.decisions(limit=1))
        decisions = await items(page)
        told_of = [(one["host"], one["verdict"], one["reason"]) for one in decisions]
        assert told_of == [
            ("example.com", "refused", "internet-off"),
            ("denied.example.net", "refused", "rule-not-allowed"),
        ]
        assert len(page.data) == 1 and page.has_more
        on = await settle(network.on())
        assert on["internet"] is True and on["connect"] == []

    drive(form, server.url, work, api_key=server.key)


@both
def test_folders_go_in_and_come_out(server: Server, box: Sandbox, form: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "large").write_bytes(os.urandom(3_000_000))
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("deep/er/large")

    async def work(client: Any) -> None:
        files = (await same(client, box)).files
        await settle(files.upload(source, "/workspace/in"))
        assert box.exec(["/workspace/in/run"]).stdout == "ran\n"
        assert (await settle(files.stat("/workspace/in/link")))["symlinkTarget"] == "deep/er/large"
        await settle(files.download("/workspace/in", tmp_path / "out"))
        assert (tmp_path / "out" / "link").read_bytes() == (source / "deep" / "er" / "large").read_bytes()
        assert (tmp_path / "out" / "run").stat().st_mode & 0o777 == 0o755
        packed = await settle(files.archive("/workspace/in", exclude=["deep"]))
        plain = await settle(files.archive("/workspace/in", gzip=False))
        assert packed[:2] == b"\x1f\x8b" and len(packed) < 10_000 and b"ustar" in plain[:512]
        await settle(files.unarchive("/workspace/small", packed))
        await settle(files.unarchive("/workspace/large", plain, idempotency_key=f"u-{uuid.uuid4().hex}"))
        assert [one["name"] for one in await settle(files.list("/workspace/small"))] == ["link", "run"]
        assert box.exec("cmp large/deep/er/large in/deep/er/large").exit_code == 0
        with pytest.raises(InvalidRequestError) as told:
            await settle(files.unarchive("/workspace/bad", b"no archive" * 1000))
        assert told.value.code == "invalid_archive"
        with pytest.raises(ConflictError) as conflict:
            await settle(files.archive("/workspace/in/run"))
        assert conflict.value.code == "not_a_directory"
        with pytest.raises(NotFoundError):
            await settle(files.download("/workspace/nowhere", tmp_path / "nowhere"))
        # What leads out of the folder there would lead out of it here.
        box.exec("mkdir bait && ln -s /etc bait/etc")
        with pytest.raises(RuntimeError) as refused:
            await settle(files.download("/workspace/bait", tmp_path / "bait"))
        assert refused.value.code == "unsafe_archive" and not (tmp_path / "bait").exists()

    drive(form, server.url, work, api_key=server.key)


@both
def test_what_is_roots_goes_by_folders(server: Server, box: Sandbox, form: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    async def work(client: Any) -> None:
        files = (await same(client, box)).files
        box.exec("mkdir /root/kept && echo secret > /root/kept/it && chmod 700 /root/kept", user="root")
        with pytest.raises(RuntimeError):
            await settle(files.archive("/root/kept"))
        await settle(files.download("/root/kept", tmp_path / "kept", user="root"))
        assert (tmp_path / "kept" / "it").read_text() == "secret\n"
        await settle(files.upload(tmp_path / "kept", "/root/again", user="root"))
        assert box.exec("cat /root/again/it", user="root").stdout == "secret\n"
        with pytest.raises(ValueError):
            await settle(files.upload(tmp_path / "file", "/root/file", user="root"))

    drive(form, server.url, work, api_key=server.key)


@both
def test_a_large_file_goes_in_parts_and_stays_whole(server: Server, box: Sandbox, form: str, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(9_000_001))
    (tmp_path / "large").chmod(0o700)

    async def work(client: Any) -> None:
        files = (await same(client, box)).files
        await settle(files.upload(tmp_path / "large", "/workspace/large"))
        assert (await settle(files.stat("/workspace/large")))["mode"] == "0700"
        await settle(files.download("/workspace/large", tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()

    drive(form, server.url, work, api_key=server.key)


@both
def test_a_session_reaches_its_sandbox_and_nothing_else(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        mine = await same(client, box)
        key = f"s-{uuid.uuid4().hex}"
        first = await settle(mine.sessions.create(ttl_seconds=60, name=form, idempotency_key=key))
        assert first["token"].startswith("rtsess_") and first["state"] == "active"
        second = await settle(mine.sessions.create(ttl_seconds=60, name=form, idempotency_key=key))
        assert second["token"] and second["id"] != first["id"]
        states = {one["id"]: one["state"] for one in await settle(mine.sessions.list())}
        assert states == {first["id"]: "revoked", second["id"]: "active"}

        kind: Any = AsyncSandbox if form == "async" else Sandbox
        page = kind.from_session(second["token"], box.id, api_url=second["apiUrl"])
        assert (await settle(page.exec("echo hi", on_stdout=print))).stdout == "hi\n"
        await settle(page.files.write("/workspace/from-page", b"x" * 2_000_000))
        assert (await settle(page.refresh())).state == "running"
        for forbidden in (page.network.get, page.stop, page.terminal, page.sessions.list):
            with pytest.raises(PermissionDeniedError):
                await settle(forbidden())
        assert (await settle(mine.sessions.revoke(second["id"])))["state"] == "revoked"
        with pytest.raises(AuthenticationError):
            await settle(page.exec("true"))
        with pytest.raises(InvalidRequestError):
            await settle(mine.sessions.create(origins=["http://example.com"]))
        with pytest.raises(NotFoundError):
            await settle(mine.sessions.revoke(str(uuid.uuid4())))

    drive(form, server.url, work, api_key=server.key)


@both
def test_a_terminal_and_a_tunnel_end_with_their_sandbox(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        mine = await same(client, box)
        terminal = await settle(mine.terminal())
        forward = await settle(mine.forward_port(9000, local_port=0))
        await settle(mine.stop())
        try:
            while await settle(terminal.recv()) is not None:
                pass
        except RuntimeError:
            # How it ends is the server's to say; that it does is what counts.
            pass
        assert await blocking(lambda: gone(forward.local_port))
        await settle(forward.close())
        with pytest.raises(ConflictError) as told:
            await settle(mine.terminal())
        assert told.value.details == {"code": "sandbox_stopped"}

    drive(form, server.url, work, api_key=server.key)
