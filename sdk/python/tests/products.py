"""Does what the newer products offer with whatever `withruntime` is installed, ours or the public one, and prints what
came of each step as JSON: results and errors, with what differs from run to run left out.

    RUNTIME_API_URL=… RUNTIME_API_KEY=… python products.py [--async]
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any, Awaitable, Callable

import withruntime

Step = tuple[str, Callable[[], Any]]


async def settle(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def error_of(error: Exception) -> dict[str, Any]:
    """What programs decide by."""
    return {"class": type(error).__name__, "code": getattr(error, "code", None)}


def without(value: Any, *names: str) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in names}


async def play(client: Any) -> dict[str, Any]:
    """All steps, and what came of each."""
    box = await settle(client.sandboxes.create(memory_mib=512, labels={"products": "yes"}))
    told: dict[str, Any] = {}

    async def step(name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            value = await work()
        except (withruntime.RuntimeError, ValueError) as error:
            value = error_of(error)
        told[name] = value
        return value

    try:
        await network(box, step)
        await terminals(box, step)
        await folders(box, step)
        await watches(box, step)
        await traces(box, step)
        await sessions(box, step)
        await previews(box, step)
        await snapshots(client, box, step)
        await sizes(box, step)
    finally:
        await settle(box.delete())
    return told


async def network(box: Any, step: Any) -> None:
    async def rules(call: Any, **fields: Any) -> Any:
        return without(await settle(call(**fields)), "sandboxId", "updatedAt")

    await step("network.get", lambda: rules(box.network.get))
    await step("network.set", lambda: rules(box.network.set, internet=False, allow=["Example.com."], connect=["a.b:5"]))
    await step("network.wrong", lambda: rules(box.network.set, internet=True, allow=["*"]))
    await step("network.off", lambda: rules(box.network.off))
    await step("network.on", lambda: rules(box.network.on))


async def terminals(box: Any, step: Any) -> None:
    async def terminal() -> Any:
        opened = await settle(box.terminal(cols=100, rows=30, command="stty size; read x; exit $x"))
        await settle(opened.write("6\n"))
        shown = b""
        while True:
            piece = await settle(opened.recv())
            if piece is None:
                break
            shown += piece
        await settle(opened.close())
        return [b"30 100" in shown, opened.exit_code, isinstance(opened.process_id, str)]

    async def refused() -> Any:
        try:
            await settle(box.terminal(process_id="nobody"))
        except withruntime.RuntimeError as error:
            # The public client tells nothing but the code; ours has the class of the server's error too.
            return error.code

    def hear(port: int) -> str:
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            connection.sendall(b"hello")
            connection.shutdown(socket.SHUT_WR)
            heard = b""
            while True:
                piece = connection.recv(100)
                if not piece:
                    return heard.decode()
                heard += piece

    async def forward() -> Any:
        script = (
            "import socket; l = socket.create_server(('127.0.0.1', 9000)); print('on', flush=True); c, _ = l.accept()"
        )
        script += "; d = c.recv(100); c.sendall(d.upper()); c.close()"
        process = await settle(box.spawn(["python3", "-c", script]))
        while not (await settle(process.refresh()))["outputBytes"]:
            await asyncio.sleep(0.02)
        opened = await settle(box.forward_port(9000, local_port=0))
        heard = await asyncio.get_running_loop().run_in_executor(None, hear, opened.local_port)
        facts = [heard, opened.port, opened.host, opened.local_port > 0]
        await settle(opened.close())
        return facts

    async def no_port() -> Any:
        return await settle(box.forward_port(0))

    await step("terminal", terminal)
    await step("terminal.refused", refused)
    await step("forward_port", forward)
    await step("forward_port.wrong", no_port)


async def traces(box: Any, step: Any) -> None:
    def own(paths: list[str]) -> list[str]:
        return [path for path in paths if path.startswith("/workspace/traced/")]

    def told(files: Any) -> Any:
        return [
            type(files).__name__,
            own(files.read),
            own(files.written),
            files.truncated,
            "/usr/bin/cat" in files.read,
        ]

    async def of_an_exec() -> Any:
        line = "mkdir -p traced/d; ln -s d traced/l; echo x > traced/in; cat traced/in > traced/l/out; ls traced/l"
        return told((await settle(box.exec(line, trace_files=True))).files)

    async def of_a_process() -> Any:
        process = await settle(box.spawn("read x; cat traced/in", stdin="pipe", trace_files=True))
        early = None
        try:
            await settle(process.files())
        except withruntime.RuntimeError as error:
            early = error_of(error)
        await settle(process.write("\n"))
        await settle(process.wait())
        return [early, told(await settle(process.files()))]

    async def of_none() -> Any:
        return (await settle(box.exec("true"))).files

    await step("traced.exec", of_an_exec)
    await step("traced.process", of_a_process)
    await step("traced.not", of_none)


async def sizes(box: Any, step: Any) -> None:
    async def resized(**fields: Any) -> Any:
        await settle(box.resize(**fields))
        return [box.state, box.info["memoryMiB"], box.info["vcpu"], box.info["diskMiB"]]

    await settle(box.files.write("/workspace/kept", "x"))
    await step("resize.refused", lambda: resized(restart=False, memory_mib=768))
    await step("resize", lambda: resized(restart=True, memory_mib=768, vcpu=2))
    await step("resize.smaller", lambda: resized(restart=True, disk_mib=1024))
    await step("resize.nothing", lambda: resized(restart=True))

    async def kept() -> Any:
        return (await settle(box.exec("cat kept"))).stdout

    await step("resize.kept", kept)


async def folders(box: Any, step: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "in" / "sub").mkdir(parents=True)
        (here / "in" / "sub" / "large").write_bytes(os.urandom(2_500_000))
        (here / "in" / "run").write_text("x")
        (here / "in" / "run").chmod(0o750)
        (here / "in" / "link").symlink_to("run")

        async def round_trip() -> Any:
            await settle(box.files.upload(str(here / "in"), "/workspace/in"))
            await settle(box.files.download("/workspace/in", str(here / "out")))
            same = (here / "in" / "sub" / "large").read_bytes() == (here / "out" / "sub" / "large").read_bytes()
            mode = oct((here / "out" / "run").stat().st_mode & 0o777)
            return [same, mode, os.readlink(here / "out" / "link"), sorted(os.listdir(here / "out"))]

        async def archive(**fields: Any) -> Any:
            data = await settle(box.files.archive("/workspace/in", **fields))
            await settle(box.files.unarchive("/workspace/again", data))
            found = await settle(box.files.list("/workspace/again", depth=5))
            await settle(box.files.remove("/workspace/again", recursive=True))
            return [data[:2] == b"\x1f\x8b", [one["path"] for one in found]]

        async def call(work: Any) -> Any:
            return await settle(work())

        async def nothing() -> Any:
            try:
                await settle(box.files.download("/workspace/no", str(here / "no")))
            except withruntime.RuntimeError as error:
                # Of ours it has the class of a 404, as where the server says it.
                return error.code

        await step("folders", round_trip)
        await step("archive", archive)
        await step("archive.plain", lambda: archive(gzip=False))
        await step("archive.part", lambda: archive(exclude=["sub"]))
        await step("archive.file", lambda: call(lambda: box.files.archive("/workspace/in/run")))
        await step("unarchive.wrong", lambda: call(lambda: box.files.unarchive("/workspace/x", b"nonsense" * 1000)))
        await step("download.nothing", nothing)
        await step(
            "upload.root", lambda: call(lambda: box.files.upload(str(here / "in" / "run"), "/root/x", user="root"))
        )
        await settle(box.exec("mkdir bait && ln -s /etc bait/etc"))
        await step("download.bait", lambda: call(lambda: box.files.download("/workspace/bait", str(here / "bait"))))


async def watches(box: Any, step: Any) -> None:
    files = box.files

    async def changes() -> Any:
        watch = await settle(
            files.watch("/workspace", recursive=True, events=["create", "rename"], include=["*.py"], batch_ms=20)
        )
        await settle(box.exec(": > a.py; : > b.txt; mv a.py c.py"))
        seen: list[Any] = []
        while len(seen) < 2:
            for event in await settle(watch.get_new_events(8000)):
                seen.append([event["type"], event["path"], event["isDir"], event.get("oldPath")])
        stopped = [await settle(watch.stop()), await settle(watch.stop())]
        events = watch.events()
        rest = [event async for event in events] if hasattr(events, "__aiter__") else list(events)
        return [seen, stopped, rest, watch.exit_reason]

    async def named() -> Any:
        await settle(files.watches.start("/workspace", id="named", timeout_ms=0))
        listed = [[one["id"], one["path"], one["state"]] for one in await settle(files.watches.list())]
        return [listed, await settle(files.watches.stop("named")), await settle(files.watches.list())]

    await step("watch", changes)
    await step("watches.named", named)
    await step("watch.missing", lambda: settle(files.watch("/none")))
    await step("watch.wrong", lambda: settle(files.watch("/workspace", events=["nothing"])))
    await step("watches.unknown", lambda: settle(files.watches.stop("unknown")))


async def sessions(box: Any, step: Any) -> None:
    changing = ("id", "sandboxId", "createdAt", "expiresAt", "revokedAt", "token", "apiUrl", "createdBy")
    key = uuid.uuid4().hex
    kind = withruntime.AsyncSandbox if inspect.iscoroutinefunction(box.refresh) else withruntime.Sandbox
    made: list[Any] = []

    async def create() -> Any:
        made.append(await settle(box.sessions.create(ttl_seconds=60, name="s", idempotency_key=key)))
        return [made[-1]["token"][:7], without(made[-1], *changing)]

    async def use(work: Any) -> Any:
        page = kind.from_session(made[-1]["token"], box.id, api_url=made[-1]["apiUrl"])
        return await settle(work(page))

    async def command(page: Any) -> Any:
        return (await settle(page.exec("echo hi"))).stdout

    async def revoke() -> Any:
        return without(await settle(box.sessions.revoke(made[-1]["id"])), *changing)

    async def states() -> Any:
        return [one["state"] for one in await settle(box.sessions.list())]

    await step("sessions.create", create)
    await step("sessions.again", create)
    await step("sessions.list", states)
    await step("session.exec", lambda: use(command))
    await step("session.forbidden", lambda: use(lambda page: page.network.get()))
    await step("sessions.revoke", revoke)
    await step("session.over", lambda: use(command))
    await step("session.token", lambda: wrong_token(kind, box.id))


async def wrong_token(kind: Any, sandbox_id: str) -> Any:
    return repr(kind.from_session("rtcloud_x", sandbox_id))


async def previews(box: Any, step: Any) -> None:
    changing = ("id", "sandboxId", "url", "urlWithToken", "token", "tokenExpiresAt", "createdAt")

    async def told(work: Any) -> Any:
        one = await settle(work)
        return [without(one, *changing), [isinstance(one.get(name), str) for name in changing]]

    async def listed() -> Any:
        return [one["port"] for one in await settle(box.previews.list())]

    all_of = box.previews
    await step("previews.create", lambda: told(all_of.create(3000, ttl_seconds=60)))
    await step("previews.public", lambda: told(all_of.create(3000, visibility="public", embed_origins=["https://a.b"])))
    await step("previews.kept", lambda: told(all_of.create(3000)))
    await step("previews.any", lambda: told(all_of.create(3000, embed_origins=[])))
    await step("previews.wrong", lambda: told(all_of.create(10800, ttl_seconds=1)))
    await step("previews.get", lambda: told(all_of.get(3000, ttl_seconds=60)))
    await step("previews.rotate", lambda: told(all_of.rotate(3000)))
    await step("previews.list", listed)
    await step("previews.delete", lambda: told(all_of.delete(3000)))
    await step("previews.nothing", lambda: told(all_of.get(3000)))


async def snapshots(client: Any, box: Any, step: Any) -> None:
    changing = (
        "id", "sourceSandboxId", "createdAt", "readyAt", "expiresAt", "storedBytes", "meteredBytes",
    )  # fmt: skip
    taken: list[Any] = []
    all_of = client.snapshots

    async def take(**fields: Any) -> Any:
        taken.append(await settle(box.snapshot(**fields)))
        return [without(taken[-1], *changing), (await settle(box.refresh())).state]

    async def update(**fields: Any) -> Any:
        return without(await settle(all_of.update(taken[0]["id"], **fields)), *changing)

    async def listed() -> Any:
        page = await settle(all_of.list(sandbox_id=box.id, limit=1))
        return [len(page.data), page.has_more, [one["mode"] for one in await settle(page.to_list())]]

    async def create() -> Any:
        copy = await settle(client.sandboxes.create(snapshot=taken[0]["id"]))
        facts = [copy.info["snapshot"] == taken[0]["id"], copy.info["labels"], copy.state]
        await settle(copy.delete())
        return facts

    async def fork(*count: int, **fields: Any) -> Any:
        copies = await settle(box.fork(*count, **fields))
        some = copies if isinstance(copies, list) else [copies]
        facts = [isinstance(copies, list), [[one.state, one.info["labels"]] for one in some]]
        for one in some:
            await settle(one.delete())
        return facts

    async def gone() -> Any:
        deleted = [await settle(all_of.delete(one["id"])) for one in taken]
        return [deleted, await settle((await settle(all_of.list(sandbox_id=box.id))).to_list())]

    await step("snapshot", lambda: take(name="n", labels={"a": "b"}, retention_days=2))
    await step("snapshot.disk", lambda: take(mode="disk"))
    await step("snapshot.wrong", lambda: take(mode="disc"))
    await step("snapshots.list", listed)
    await step("snapshots.conflict", lambda: update(labels={}, if_labels={"no": "no"}))
    await step("snapshots.update", lambda: update(name=None, labels={"c": "d"}, if_labels={"a": "b"}))
    await step("create", create)
    await step("fork", fork)
    await step("fork.two", lambda: fork(2, labels={"e": "f"}))
    await step("fork.wrong", lambda: fork(17))
    await step("snapshots.delete", gone)


async def main() -> None:
    if "--async" in sys.argv:
        async with withruntime.AsyncRuntime() as client:
            told = await play(client)
    else:
        with withruntime.Runtime() as client:
            told = await play(client)
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
