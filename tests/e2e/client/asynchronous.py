"""The asyncio client where it differs: it reads every answer to its announced end, and would hang on one without."""

import asyncio

import withruntime as w
from support import check, main, unique
from withruntime import AsyncRuntime


def run(function, seconds=300):
    async def go():
        async with AsyncRuntime(timeout=120, max_retries=0, wait_for_capacity=0) as a:
            await function(a)
    asyncio.run(asyncio.wait_for(go(), seconds))


async def make(a, **fields):
    return await a.sandboxes.create(**{"vcpu": 1, "memory_mib": 512, **fields})


@check
def every_call_ends():
    async def go(a):
        assert (await a.me())["orgId"] and await a.limits.get()
        s = await make(a)
        await s.files.write("/workspace/a", b"")
        assert await s.files.read("/workspace/a") == b""
        await s.files.mkdir("/workspace/d")
        await s.files.rename("/workspace/a", "/workspace/b")
        assert (await s.files.stat("/workspace/b"))["exists"] and await s.files.exists("/workspace/b")
        assert len(await s.files.list()) == 2 and len(await s.files.glob("*")) == 2
        assert await s.files.remove("/workspace/b") is True
        await s.update(labels={"a": "b"})
        assert (await s.refresh()).info["labels"] == {"a": "b"}
        await s.stop()
        await s.restart()
        assert (await s.wait_for("running")).state == "running"
        await s.delete()
    run(go)


@check
def lifecycle_and_lists():
    async def go(a):
        n = unique()
        s = await a.sandboxes.get_or_create(n, vcpu=1, memory_mib=512)
        t = await a.sandboxes.get_or_create(n)
        assert s.id == t.id and t.info["reused"] is True
        many = await asyncio.gather(*(make(a, labels={"k": "v"}) for _ in range(6)))
        seen = [one async for one in await a.sandboxes.list(labels={"k": "v"}, limit=2)]
        assert len(seen) == 6 and len({m.id for m in many}) == 6
        assert (await a.sandboxes.get(s.id)).id == s.id
        out = await a.sandboxes.stop_all(labels={"k": "v"})
        assert len(out["stopped"]) == 6 and not out["failed"]
        out = await a.sandboxes.delete_all(labels={"k": "v"})
        assert not out["failed"]
        async with await a.sandboxes.create(vcpu=1, memory_mib=512) as inside:
            assert (await inside.exec("echo hi")).stdout == "hi\n"
        try:
            await inside.refresh()
            raise AssertionError("the block left it there")
        except w.NotFoundError as error:
            assert error.code == "not_found"
        w_ = await a.sandboxes.create(wait=False, vcpu=1, memory_mib=512)
        assert (await w_.wait_for("running")).state == "running"
    run(go)


@check
def commands():
    async def go(a):
        s = await make(a)
        r = await s.exec("echo out; echo err >&2; exit 3")
        assert (r.exit_code, r.stdout, r.stderr) == (3, "out\n", "err\n")
        out = []
        r = await s.exec("echo one; echo two", on_stdout=out.append)
        assert "".join(out) == "one\ntwo\n" and r.exit_code == 0
        r = await s.exec("echo long", timeout_ms=120_000)
        assert r.stdout == "long\n"
        kinds = [event["type"] async for event in s.exec_stream("echo a; exit 2")]
        assert kinds[0] == "start" and kinds[-1] == "exit" and "stdout" in kinds
        assert (await s.exec("cat", stdin=b"in")).stdout == "in"
        assert (await s.exec("id -u", user="root")).stdout == "0\n"
        try:
            await s.exec("exit 2", check=True)
            raise AssertionError("no error")
        except w.CommandError as error:
            assert error.exit_code == 2
        many = await asyncio.gather(*(s.exec(["echo", str(n)]) for n in range(40)))
        assert [m.stdout for m in many] == [f"{n}\n" for n in range(40)]
    run(go)


@check
def processes():
    async def go(a):
        s = await make(a)
        p = await s.spawn("cat", stdin="pipe")
        await p.write("x")
        await p.write(b"y", eof=True)
        assert (await p.wait()).stdout == "xy"
        q = await s.spawn("echo up; sleep 4321")
        async for event in q.output():
            assert event["data"] == "up\n"
            break
        assert q.id in {one["id"] for one in await s.processes()}
        assert (await s.process(q.id)).id == q.id
        await q.kill("SIGKILL")
        assert (await q.wait()).exit_code == -9
        await s.delete()
    run(go)


if __name__ == "__main__":
    main()
