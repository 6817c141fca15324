"""What only a real server shows, beyond the shared table."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from withruntime import (
    AsyncRuntime,
    AsyncSandbox,
    AuthenticationError,
    CommandError,
    NotFoundError,
    Runtime,
    RuntimeError,
    Sandbox,
    ServiceUnavailableError,
)

from .conftest import Server


def test_the_shared_client_needs_no_name(server: Server) -> None:
    # One client is shared by the process, so that it may have been made for another server before.
    import withruntime._sync.client as client

    client.default = type(client.default)(lambda: Runtime())
    with Sandbox.create() as box:
        assert Sandbox.connect(box.id).exec("echo hi").stdout == "hi\n"

    async def play() -> None:
        async with await AsyncSandbox.create() as other:
            assert (await (await AsyncSandbox.connect(other.id)).exec("echo ho")).stdout == "ho\n"

    asyncio.run(play())


def test_a_wrong_key_is_told(server: Server) -> None:
    with Runtime("rtcloud_wrong", server.url) as client, pytest.raises(AuthenticationError) as told:
        client.me()
    assert told.value.code == "unauthorized" and str(told.value.request_id).startswith("req_")


def test_what_is_not_served_says_so(runtime: Runtime) -> None:
    with pytest.raises(ServiceUnavailableError) as told:
        runtime.request("POST", "/v1/volumes", json={"sizeMiB": 1024})
    assert (told.value.status, told.value.code, told.value.retryable) == (501, "unavailable", False)
    assert told.value.hint


def test_any_route_can_be_reached(runtime: Runtime, box: Sandbox) -> None:
    label = next(f"{key}:{value}" for key, value in box.info["labels"].items())
    found = runtime.request("GET", "/v1/sandboxes", query={"label": [label], "limit": 1})
    assert found["data"][0]["id"] == box.id


def test_a_failed_check_says_what_the_command_said(box: Sandbox) -> None:
    with pytest.raises(CommandError) as told:
        box.exec("echo so far; echo cannot >&2; exit 9", check=True)
    error = told.value
    assert (error.exit_code, error.stdout, error.stderr, error.code) == (9, "so far\n", "cannot\n", "command_failed")
    assert "cannot" in str(error)


def test_a_full_memory_is_told(runtime: Runtime) -> None:
    with runtime.sandboxes.create(memory_mib=384) as box:
        command = ["python3", "-c", "held = [b'x' * (16 << 20) for _ in range(64)]"]
        result = box.exec(command)
        assert result.out_of_memory is not None and result.out_of_memory["code"] == "out_of_memory"
        with pytest.raises(CommandError) as told:
            box.exec(command, check=True)
        assert told.value.code == "out_of_memory" and not told.value.retryable


def test_output_is_heard_while_it_comes(box: Sandbox) -> None:
    heard: list[str] = []
    waiting = threading.Event()

    def hear(text: str) -> None:
        heard.append(text)
        waiting.set()

    def answer() -> None:
        waiting.wait(120)
        box.files.write("/workspace/go", "")

    thread = threading.Thread(target=answer)
    thread.start()
    done = box.exec("echo ready; until [ -e go ]; do sleep 0.05; done; echo went", on_stdout=hear, timeout_ms=300_000)
    thread.join()
    assert done.stdout == "ready\nwent\n" and heard[0] == "ready\n"


def test_a_cancelled_command_is_over(server: Server, box: Sandbox) -> None:
    async def play() -> None:
        async with AsyncRuntime() as client:
            same = await client.sandboxes.get(box.id)
            started = asyncio.Event()
            command = "trap 'echo told > told; exit 0' TERM; echo on; while :; do sleep 0.05; done"
            task = asyncio.ensure_future(same.exec(command, on_stdout=lambda text: started.set()))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            deadline = time.monotonic() + 120
            while not await same.files.exists("/workspace/told"):
                assert time.monotonic() < deadline

    asyncio.run(play())


def test_many_at_once(server: Server, box: Sandbox) -> None:
    async def play() -> list[str]:
        async with AsyncRuntime(max_connections=6) as client:
            same = await client.sandboxes.get(box.id)
            results = await asyncio.gather(*[same.exec(f"echo {n}") for n in range(20)])
            return [result.stdout for result in results]

    assert asyncio.run(play()) == [f"{n}\n" for n in range(20)]


def test_a_client_serves_threads(box: Sandbox) -> None:
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        answers[number] = box.exec(["echo", str(number)]).stdout

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number}\n" for number in range(12)}


def test_a_client_survives_its_event_loop(server: Server) -> None:
    client = AsyncRuntime()
    assert asyncio.run(client.me())["orgId"] == asyncio.run(client.me())["orgId"]


def test_bytes_of_a_process(box: Sandbox) -> None:
    process = box.spawn(["printf", "\\377\\000x"], output_encoding="base64")
    data = b"".join(event["data"] for event in process.output_bytes() if event["type"] == "stdout")
    assert data == b"\xff\x00x" and process.state == "exited" and process.exit_code == 0
    with pytest.raises(RuntimeError) as told:
        list(box.spawn("true").output_bytes())
    assert told.value.code == "binary_output_unavailable"


def test_much_input_is_read_at_the_processs_own_pace(box: Sandbox) -> None:
    counter = box.spawn("sleep 0.5; wc -c", stdin="pipe")
    counter.write(b"x" * 3_000_000, eof=True)
    assert counter.wait().stdout.strip() == "3000000"


def test_following_ends_and_the_process_does_not(box: Sandbox) -> None:
    process = box.spawn("echo on; exec sleep 600")
    seen: list[str] = []
    seconds = 1
    # What comes in that time is the machine's to say: twice the time, until it was enough.
    while not seen:
        with pytest.raises(RuntimeError) as told:
            for event in process.output(timeout_seconds=seconds):
                seen.append(event["type"])
        assert told.value.code == "request_timeout" and seen in ([], ["stdout"])
        seconds *= 2
    process.refresh()
    assert process.state == "running"
    process.kill()
    assert process.wait().exit_code == -15


def test_local_files_go_in_and_out(box: Sandbox, tmp_path: Path) -> None:
    local = tmp_path / "run.sh"
    local.write_bytes(b"#!/bin/sh\necho ran\n")
    local.chmod(0o755)
    box.files.upload(str(local), "/workspace/run.sh")
    assert box.exec(["./run.sh"]).stdout == "ran\n"
    box.exec("head -c 3000000 /dev/urandom > big; chmod 600 big", check=True)
    box.files.download("/workspace/big", str(tmp_path / "big"))
    about: Any = box.files.stat("/workspace/big")
    assert (tmp_path / "big").stat().st_size == about["size"] == 3_000_000
    assert (tmp_path / "big").stat().st_mode & 0o777 == 0o600
    with pytest.raises(NotFoundError):
        box.files.download("/workspace/none", str(tmp_path / "none"))


def test_leaving_a_stream_early_frees_its_connection(box: Sandbox) -> None:
    with Runtime(max_connections=1) as client:
        same = client.sandboxes.get(box.id)
        for _ in range(3):
            for event in same.exec_stream("echo on; sleep 600"):
                if event["type"] == "stdout":
                    break
        assert same.exec("echo free").stdout == "free\n"


def test_a_time_limit_can_be_kept_away(runtime: Runtime) -> None:
    with runtime.sandboxes.create(timeout_seconds=60, on_lease_end="stop") as box:
        before = box.info["endsAt"]
        stop = box.keep_alive(every_seconds=10, margin_seconds=3600)
        deadline = time.monotonic() + 120
        while box.info["endsAt"] == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        stop()
        assert str(box.info["endsAt"]) > str(before)
