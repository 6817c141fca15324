"""What a type checker must accept and refuse. Never run: mypy reads it, and fails where an ignore is not needed."""

from __future__ import annotations

from withruntime import AsyncRuntime, Runtime, Sandbox


def synchronous(runtime: Runtime) -> None:
    box: Sandbox = runtime.sandboxes.create(memory_mib=512, labels={"a": "b"}, network={"internet": False})
    runtime.sandboxes.create(memroy_mib=512)  # type: ignore[call-arg]
    runtime.sandboxes.create(vcpu="two")  # type: ignore[arg-type]
    runtime.sandboxes.create(on_lease_end="explode")  # type: ignore[arg-type]
    runtime.sandboxes.get_or_create("x", persistent=True)
    created: str = box.info["createdAt"]
    box.info["createdAtt"]  # type: ignore[typeddict-item]
    code: int = box.exec("true").exit_code  # type: ignore[assignment]
    names: list[str] = [one.id for one in runtime.sandboxes.list()]
    box.update(env={"A": None}, max_total_cost_micros=None)
    box.exec("true").exit_code = 1  # type: ignore[misc]
    copy: Sandbox = box.fork()
    copies: list[Sandbox] = box.fork(2)
    taken: str = box.snapshot(mode="disk")["state"]
    box.snapshot(mode=1)  # type: ignore[arg-type]
    runtime.snapshots.update(taken, name=None, label={})  # type: ignore[call-arg]
    box.network.set(allow=["example.com"])  # type: ignore[call-arg]
    token: str = box.sessions.create()["token"]  # type: ignore[assignment]
    verdicts: list[str] = [one["verdict"] for one in box.network.decisions()]
    with box.terminal() as terminal, box.forward_port(80, local_port=0) as forward:
        shown: bytes = terminal.recv()  # type: ignore[assignment]
        print(shown, forward.local_port, copy, copies, token, verdicts)
    watch = box.files.watch("/workspace", recursive=True)
    changed: list[str] = [change["path"] for change in watch.events()]
    box.files.watches.start("/workspace", batchms=1)  # type: ignore[call-arg]
    started: int = box.files.watches.list()[0]["startedAt"]
    print(changed, started, watch.cursor, watch.exit_reason)
    with box as same:
        again: Sandbox = same.refresh().stop()
    print(created, code, names, again)


async def asynchronous(runtime: AsyncRuntime) -> None:
    box = await runtime.sandboxes.create()
    async with box as same:
        text: str = await same.files.read_text("/workspace/x")
        names: list[str] = [one.id async for one in await runtime.sandboxes.list()]
        async for event in same.exec_stream("true"):
            print(event["type"], text, names)
