"""Over a network that loses, cuts, delays and doubles: nothing is done twice, no output is lost, nothing hangs."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from withruntime import Runtime

from .conftest import Server
from .faults import ALL, CUT, LOSE_ANSWER, LOSE_REQUEST, REFUSE, TWICE, FaultyNetwork, every, first
from .forms import both, drive, items, settle


def posts(word: str) -> Any:
    return lambda request: request.method == "POST" and word in request.target


@both
@pytest.mark.parametrize("fault", ALL)
def test_one_create_makes_one_sandbox(server: Server, form: str, fault: str) -> None:
    label = {"run": uuid.uuid4().hex}

    async def create(client: Any) -> None:
        box = await settle(client.sandboxes.create(labels=label))
        found = [one.id for one in await items(await settle(client.sandboxes.list(labels=label)))]
        await settle(box.delete())
        assert found == [box.id]

    with FaultyNetwork(server.url, first(fault, lambda request: request.target == "/v1/sandboxes")) as network:
        drive(form, network.url, create, api_key=server.key)
        assert network.done(fault) == 1
        keys = {request.key for _, request in network.seen if request.target == "/v1/sandboxes" and request.key}
        assert len(keys) == 1


@both
@pytest.mark.parametrize("fault", ALL)
def test_one_command_runs_once_and_its_output_is_whole(server: Server, box: Any, form: str, fault: str) -> None:
    async def run(client: Any) -> None:
        same = await settle(client.sandboxes.get(box.id))
        done = await settle(same.exec("echo x >> once; seq 1 200; echo end >&2"))
        assert done.stdout == "".join(f"{n}\n" for n in range(1, 201)) and done.stderr == "end\n"

    with FaultyNetwork(server.url, first(fault, posts(":exec"))) as network:
        drive(form, network.url, run, api_key=server.key)
        assert network.done(fault) == 1
    assert box.files.read_text("/workspace/once") == "x\n"


@both
@pytest.mark.parametrize("fault", ALL)
def test_one_process_is_started_and_one_pause_is_made(server: Server, box: Any, form: str, fault: str) -> None:
    async def run(client: Any) -> None:
        same = await settle(client.sandboxes.get(box.id))
        started = await settle(same.spawn(["sleep", "600"]))
        await settle(same.pause())
        await settle(same.wake())
        assert [one["id"] for one in await settle(same.processes()) if one["state"] == "running"] == [started.id]

    plan = first(fault, lambda request: request.target.endswith(("/processes", ":pause", ":wake")), 3)
    with FaultyNetwork(server.url, plan) as network:
        drive(form, network.url, run, api_key=server.key)
        assert network.done(fault) == 3


@both
@pytest.mark.parametrize("times", [1, 3])
def test_a_stream_that_is_cut_again_and_again_comes_whole(server: Server, box: Any, form: str, times: int) -> None:
    command = "echo x >> once; for i in $(seq 1 60); do echo line $i; sleep 0.01; done; exit 7"

    async def run(client: Any) -> None:
        same = await settle(client.sandboxes.get(box.id))
        events = await items(same.exec_stream(command))
        assert [event["type"] for event in events if event["type"] == "truncated"] == []
        text = "".join(event["data"] for event in events if event["type"] == "stdout")
        assert text == "".join(f"line {n}\n" for n in range(1, 61))
        assert events[-1]["exit_code"] == 7

    with FaultyNetwork(server.url, first(CUT, lambda request: "/output" in request.target, times)) as network:
        drive(form, network.url, run, api_key=server.key)
    assert box.files.read_text("/workspace/once") == "x\n"


@both
@pytest.mark.parametrize("fault", [LOSE_REQUEST, LOSE_ANSWER, REFUSE, TWICE])
def test_input_is_read_once(server: Server, box: Any, form: str, fault: str) -> None:
    async def run(client: Any) -> None:
        same = await settle(client.sandboxes.get(box.id))
        reader = await settle(same.spawn("cat", stdin="pipe"))
        for word in ("one\n", "two\n", "three\n"):
            await settle(reader.write(word))
        await settle(reader.write("", eof=True))
        assert (await settle(reader.wait())).stdout == "one\ntwo\nthree\n"

    with FaultyNetwork(server.url, first(fault, posts(":write"), 2)) as network:
        drive(form, network.url, run, api_key=server.key)
        assert network.done(fault) == 2


@both
def test_files_come_and_go_whole(server: Server, box: Any, form: str) -> None:
    data = bytes(range(256)) * 3000

    async def run(client: Any) -> None:
        files = (await settle(client.sandboxes.get(box.id))).files
        await settle(files.write("/workspace/data", data))
        assert await settle(files.read("/workspace/data")) == data

    for fault in ALL:
        with FaultyNetwork(server.url, first(fault, lambda request: "/content" in request.target)) as network:
            drive(form, network.url, run, api_key=server.key)
        with FaultyNetwork(
            server.url, first(fault, lambda request: request.method == "GET" and "/content" in request.target)
        ) as network:
            drive(form, network.url, run, api_key=server.key)


@both
def test_a_bad_day(server: Server, form: str) -> None:
    """Every third request meets something else, and a whole session comes out as on a good one."""

    async def day(client: Any) -> None:
        box = await settle(client.sandboxes.get_or_create(f"day-{uuid.uuid4().hex}"))
        for number in range(10):
            await settle(box.exec(f"echo {number} >> log"))
        await settle(box.files.write("/workspace/more", "more\n"))
        await settle(box.exec("cat more >> log"))
        await settle(box.stop())
        await settle(box.restart())
        assert await settle(box.files.read_text("/workspace/log")) == "".join(f"{n}\n" for n in range(10)) + "more\n"
        await settle(box.delete())

    with FaultyNetwork(server.url, every(3, ALL)) as network:
        drive(form, network.url, day, api_key=server.key)
        assert all(network.done(fault) for fault in ALL)


def test_the_server_goes_on_alone(server: Server, runtime: Runtime) -> None:
    """What was asked over a line that died is found by its key over a good one."""
    key, label = f"k-{uuid.uuid4().hex}", {"run": uuid.uuid4().hex}
    with FaultyNetwork(server.url, lambda request: LOSE_ANSWER) as network:
        with Runtime(server.key, network.url, max_retries=0) as broken:
            with pytest.raises(Exception, match="lost"):
                broken.sandboxes.create(labels=label, idempotency_key=key)
    box = runtime.sandboxes.create(labels=label, idempotency_key=key)
    assert [one.id for one in runtime.sandboxes.list(labels=label)] == [box.id]
    assert box.info.get("replayed") is True
    box.delete()
