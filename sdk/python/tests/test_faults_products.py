"""The same bad network, under snapshots, forks, sessions, folders and files in parts."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from .conftest import Server
from .faults import ALL, FaultyNetwork, every, first
from .forms import both, drive, items, settle


def target(*ends: str) -> Any:
    return lambda request: request.method != "GET" and request.target.split("?")[0].endswith(ends)


@both
@pytest.mark.parametrize("fault", ALL)
def test_one_snapshot_and_one_fork_are_made(server: Server, box: Any, form: str, fault: str) -> None:
    label = {"run": uuid.uuid4().hex}

    async def work(client: Any) -> None:
        mine = await settle(client.sandboxes.get(box.id))
        taken = await settle(mine.snapshot(labels=label, mode="disk"))
        found = await items(await settle(client.snapshots.list(sandbox_id=box.id)))
        assert [one["id"] for one in found] == [taken["id"]]
        await settle(client.snapshots.delete(taken["id"]))
        copies = await settle(mine.fork(2, labels=label))
        there = {one.id for one in await items(await settle(client.sandboxes.list(labels=label)))}
        for copy in copies:
            await settle(copy.delete())
        assert there == {copy.id for copy in copies}
        assert (await settle(mine.refresh())).state == "running"

    with FaultyNetwork(server.url, first(fault, target(":snapshot", ":fork"), 2)) as network:
        drive(form, network.url, work, api_key=server.key)
        assert network.done(fault) == 2


@both
@pytest.mark.parametrize("fault", ALL)
def test_one_session_lives_and_its_token_is_known(server: Server, box: Any, form: str, fault: str) -> None:
    async def work(client: Any) -> None:
        mine = await settle(client.sandboxes.get(box.id))
        session = await settle(mine.sessions.create())
        assert session["token"]
        active = [one["id"] for one in await settle(mine.sessions.list()) if one["state"] == "active"]
        assert active == [session["id"]]

    with FaultyNetwork(server.url, first(fault, target("/sessions"))) as network:
        drive(form, network.url, work, api_key=server.key)
        assert network.done(fault) == 1


@both
def test_folders_and_large_files_come_and_go_whole(server: Server, box: Any, form: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(5_000_000))
    (source / "small").write_text("x")

    async def work(client: Any) -> None:
        files = (await settle(client.sandboxes.get(box.id))).files
        await settle(files.upload(source, "/workspace/folder"))
        await settle(files.upload(source / "large", "/workspace/large"))
        await settle(files.download("/workspace/folder", tmp_path / "out"))
        assert (tmp_path / "out" / "large").read_bytes() == (source / "large").read_bytes()
        assert await settle(files.read("/workspace/large")) == (source / "large").read_bytes()

    # Every other request meets something else: those of one part, and of many.
    with FaultyNetwork(server.url, every(2, ALL)) as network:
        drive(form, network.url, work, api_key=server.key, max_retries=8)
        assert sum(network.done(fault) for fault in ALL) > 5
    assert box.exec("cmp folder/large large && ls folder").stdout == "large\nsmall\n"
