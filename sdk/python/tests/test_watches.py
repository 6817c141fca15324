"""Watches of a real server, with both forms, on a good network and on a bad one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from withruntime import ConflictError, NotFoundError, Sandbox

from .conftest import Server
from .faults import ALL, CUT, DELAY, LOSE_REQUEST, REFUSE, FaultyNetwork, every, first
from .forms import both, drive, settle


async def mine(client: Any, box: Sandbox) -> Any:
    """The test's sandbox, as a handle of the client's form."""
    return await settle(client.sandboxes.get(box.id))


def told(events: list[dict[str, Any]]) -> list[str]:
    """Repeats folded: two writes may fall into one batch or two."""
    lines: list[str] = []
    for event in events:
        old = event["old_path"] + " > " if "oldPath" in event else ""
        line = f"{event['type']} {old}{event['path']}{'/' if event['is_dir'] else ''}"
        if lines[-1:] != [line]:
            lines.append(line)
    return lines


async def until(watch: Any, path: str) -> list[dict[str, Any]]:
    """What `events` hands on, up to a path, where it is left."""
    seen: list[dict[str, Any]] = []
    events = watch.events()
    if hasattr(events, "__aiter__"):
        async for event in events:
            seen.append(event)
            if event["path"] == path:
                await events.aclose()
                break
    else:
        for event in events:
            seen.append(event)
            if event["path"] == path:
                events.close()
                break
    assert seen[-1]["path"] == path, seen
    return seen


async def rest(watch: Any) -> list[dict[str, Any]]:
    """What `events` hands on until it ends by itself."""
    events = watch.events()
    if hasattr(events, "__aiter__"):
        return [event async for event in events]
    return list(events)


@both
def test_changes_are_told_as_they_happen(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        files = (await mine(client, box)).files
        box.exec("mkdir p out", check=True)
        kinds = ["create", "rename", "remove"]
        watch = await settle(
            files.watch("/workspace", recursive=True, events=kinds, include=["*.py"], exclude=["out"], batch_ms=20)
        )
        assert watch.path == "/workspace" and watch.info["state"] == "running"
        box.exec(": > a.py; : > b.txt; : > out/c.py; : > p/d.py; mv p/d.py p/e.py", check=True)
        seen = await until(watch, "/workspace/p/e.py")
        assert told(seen) == [
            "create /workspace/a.py",
            "create /workspace/p/d.py",
            "rename /workspace/p/d.py > /workspace/p/e.py",
        ]
        # Left in the middle of a batch, it goes on behind what was handed on.
        box.exec("seq -f %g.py 50 | xargs touch", check=True)
        before = await until(watch, "/workspace/3.py")
        after = await until(watch, "/workspace/50.py")
        paths = [event["path"] for event in before + after if event["type"] == "create"]
        assert paths == [f"/workspace/{number}.py" for number in range(1, 51)]
        polled = await settle(files.watches.start("/workspace", id="polled", events=["remove"]))
        box.exec("rm a.py b.txt", check=True)
        gone: list[str] = []
        while len(gone) < 2:
            gone += told(await settle(polled.get_new_events(8000)))
        assert gone == ["remove /workspace/a.py", "remove /workspace/b.txt"]
        assert await settle(polled.get_new_events()) == [] and polled.exit_reason is None
        with pytest.raises(ConflictError) as taken:
            await settle(files.watches.start("/workspace", id="polled"))
        assert taken.value.code == "already_exists"
        with pytest.raises(NotFoundError) as missing:
            await settle(files.watch("/none"))
        assert missing.value.code == "file_not_found"
        listed = [one["id"] for one in await settle(files.watches.list())]
        assert listed == [watch.id, "polled"]
        assert await settle(files.watches.stop("polled")) is True
        assert await settle(polled.stop()) is False
        assert await settle(polled.get_new_events()) == [] and polled.exit_reason == "stopped"
        await settle(watch.stop())
        assert told(await rest(watch)) == ["remove /workspace/a.py"] and watch.exit_reason == "stopped"
        assert await rest(watch) == [] and watch.exit_reason == "stopped"
        timed = await settle(files.watch("/workspace", timeout_ms=1))
        assert await rest(timed) == [] and timed.exit_reason == "timeout"

    drive(form, server.url, work, api_key=server.key)


@both
def test_a_pause_ends_the_reading_and_not_the_watch(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        files = (await mine(client, box)).files
        watch = await settle(files.watch("/workspace"))
        box.exec(": > before", check=True)
        assert told(await until(watch, "/workspace/before"))[0] == "create /workspace/before"
        reading = asyncio.ensure_future(rest(watch)) if form == "async" else None
        box.pause()
        read = await reading if reading else await rest(watch)
        assert (read, watch.exit_reason) == ([], "paused")
        assert await settle(watch.get_new_events(100)) == [] and watch.exit_reason == "paused"
        assert box.refresh().state == "paused", "reading wakes nothing"
        with pytest.raises(ConflictError) as paused:
            await settle(files.watches.list())
        assert paused.value.code == "sandbox_paused"
        box.wake()
        box.exec(": > after", check=True)
        assert told(await until(watch, "/workspace/after"))[0] == "create /workspace/after"

    drive(form, server.url, work, api_key=server.key)


@both
def test_what_is_not_told_is_said(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        files = (await mine(client, box)).files
        notices: list[dict[str, Any]] = []
        box.exec("mkdir -p many/{1..20}", check=True)
        watch = await settle(
            files.watch("/workspace", recursive=True, max_watches=5, batch_ms=3000, on_notice=notices.append)
        )
        # As one batch: more than is kept of one, and more bytes than are held for a late reader.
        box.exec("seq 12000 | xargs touch; sleep 4", check=True)
        seen = await settle(watch.get_new_events())
        kinds = {notice["k"] for notice in notices}
        assert next(notice for notice in notices if notice["k"] == "limit")["watches"] == 5
        assert kinds & {"overflow", "lost"} and seen, (len(seen), notices)

    drive(form, server.url, work, api_key=server.key)


@both
def test_on_a_bad_network_each_change_is_told_once(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        watch = await settle((await mine(client, box)).files.watch("/workspace", events=["create"], batch_ms=1))
        seen: list[str] = []
        for number in range(1, 41):
            box.exec(f": > {number}", check=True)
            if number % 4 == 0:
                seen += [event["path"] for event in await until(watch, f"/workspace/{number}")]
        assert seen == [f"/workspace/{number}" for number in range(1, 41)]
        await settle(watch.stop())
        assert await settle((await mine(client, box)).files.watches.list()) == []

    # Whose answer is a stream that goes on, of that the answer is not waited for by the network.
    faults = (LOSE_REQUEST, REFUSE, CUT, DELAY)
    with FaultyNetwork(server.url, every(2, faults)) as network:
        drive(form, network.url, work, api_key=server.key, max_retries=8)
        assert sum(network.done(fault) for fault in faults) > 3


@both
@pytest.mark.parametrize("fault", ALL)
def test_one_watch_is_started(server: Server, box: Sandbox, form: str, fault: str) -> None:
    async def work(client: Any) -> None:
        files = (await mine(client, box)).files
        watch = await settle(files.watch("/workspace"))
        assert [one["id"] for one in await settle(files.watches.list())] == [watch.id]

    def begins(request: Any) -> bool:
        return bool(request.method == "POST" and request.target.endswith("/files/watches"))

    with FaultyNetwork(server.url, first(fault, begins)) as network:
        drive(form, network.url, work, api_key=server.key)
        assert network.done(fault) == 1
