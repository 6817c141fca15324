"""A real server for the tests: the program that `RUNTIME_BIN` names, with a data directory of its own.

`RUNTIME_TEST_DIR` says where that directory is made; it must lie in the pool of a machine that is set up.
`RUNTIME_TEST_ENGINE` names the engine that it runs, where that is not to be the server's own choice.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

import pytest

from withruntime import Runtime, Sandbox

POOL = Path(os.environ.get("RUNTIME_TEST_DIR") or "/var/lib/runtime/pool")
ENGINE = os.environ.get("RUNTIME_TEST_ENGINE") or "auto"


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    url: str
    key: str
    directory: Path


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests. It is stopped at the end, with all that it held."""
    program = os.environ.get("RUNTIME_BIN")
    if not program or not Path(program).is_file():
        pytest.fail("RUNTIME_BIN names no program; set it to a built `runtime`")
    directory = POOL / f"sdk-py-test-{os.getpid()}"
    directory.mkdir(mode=0o700)
    log = directory.parent / f"{directory.name}.log"
    process: Optional[subprocess.Popen[bytes]] = None
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [program, "serve", "--engine", ENGINE, "--data-dir", str(directory), "--listen", "127.0.0.1:0"],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        address, key = directory / "address", directory / "owner.key"
        deadline = time.monotonic() + 120
        while not all(one.exists() and one.read_text().strip() for one in (address, key)):
            assert process.poll() is None, f"the server ended:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"the server did not come up:\n{log.read_text()[-3000:]}"
            time.sleep(0.05)
        url = address.read_text().strip()
        running = Server(url if "://" in url else f"http://{url}", key.read_text().strip(), directory)
        yield running
        with Runtime(running.key, running.url) as client:
            for sandbox in client.sandboxes.list(include_stopped=True):
                client.sandboxes.delete(sandbox.id)
    finally:
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        remove(directory)
        log.unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """A data directory with the file systems in it; the root of one has inode 256."""
    folders = [Path(path) for path, _, _ in os.walk(directory, topdown=False)]
    for folder in folders:
        if folder.is_dir() and folder.stat().st_ino == 256:
            subprocess.run(["btrfs", "subvolume", "delete", str(folder)], check=False, stdout=subprocess.DEVNULL)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def surroundings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the machine's own keys, proxies or saved logins; one with a server is pointed at it."""
    for name in list(os.environ):
        if name.upper() in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") or name in ("RUNTIME_API_KEY", "RUNTIME_API_URL"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    if "server" in request.fixturenames:
        running: Server = request.getfixturevalue("server")
        monkeypatch.setenv("RUNTIME_API_URL", running.url)
        monkeypatch.setenv("RUNTIME_API_KEY", running.key)


@pytest.fixture
def runtime(server: Server) -> Iterator[Runtime]:
    """A client of the server."""
    with Runtime(server.key, server.url) as client:
        yield client


@pytest.fixture
def box(runtime: Runtime) -> Iterator[Sandbox]:
    """A sandbox for one test."""
    with runtime.sandboxes.create(labels={"test": uuid.uuid4().hex}) as sandbox:
        yield sandbox


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits are noted, not waited."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("withruntime._io_async.sleep", sleep)
    monkeypatch.setattr("withruntime._io_sync.sleep", slept.append)
    return slept
