"""What the life of a sandbox takes on the engine that a server runs, through the Python client and its default time limits.

    RUNTIME_API_URL=… RUNTIME_API_KEY=… python bench/clients/engine.py --data-dir DIR [--samples 10]

Runs on the machine of the server, whose data directory tells when a paused memory is on the disk. Prints the median and the
longest of each step, in milliseconds, with the engine and the load that there was.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Callable

from withruntime import Runtime, Sandbox

SHAPE = {"vcpu": 1, "memory_mib": 512}
PATIENCE = 120.0


class Times:
    """What was measured, in the order in which it was first met."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}

    def of(self, name: str, work: Callable[[], object]) -> object:
        began = time.perf_counter()
        result = work()
        self.found.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
        return result


def run(box: Sandbox, command: str) -> Callable[[], object]:
    return lambda: box.exec(command, check=True, timeout_ms=int(PATIENCE * 1e3))


def life(runtime: Runtime, data: Path, times: Times) -> None:
    box = times.of("create, a size that has a template", lambda: runtime.sandboxes.create(**SHAPE))
    assert isinstance(box, Sandbox)
    try:
        times.of("first command, `true`", run(box, "true"))
        times.of("first `python3 -c pass`", run(box, "python3 -c pass"))
        for _ in range(5):
            times.of("`true`, again", run(box, "true"))
            times.of("`python3 -c pass`, again", run(box, "python3 -c pass"))
        times.of("write and read a file", lambda: (box.files.write("/workspace/f", "x"), box.files.read("/workspace/f")))
        times.of("python3: import json, http.client, ssl, asyncio", run(box, "python3 -c 'import json,http.client,ssl,asyncio'"))
        times.of("python3: a loop of a million", run(box, "python3 -c 'for i in range(10**6): pass'"))
        times.of("node -e 0", run(box, "node -e 0"))
        times.of("python3 -m venv --without-pip", run(box, "python3 -m venv --without-pip /tmp/venv"))
        times.of("200 processes one after the other", run(box, "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done"))
        times.of("pause", box.pause)
        times.of("wake, its memory still there", box.wake)
        box.pause()
        there = data / "sandboxes" / box.id.replace("-", "")
        times.of("memory on the disk after a pause", lambda: gone(there))
        times.of("wake from the disk", box.wake)
        times.of("first command after it", run(box, "true"))
        copies = times.of("fork of 4", lambda: box.fork(4))
        assert isinstance(copies, list)
        for copy in copies:
            copy.delete()
        times.of("stop", box.stop)
        times.of("restart on its disk", box.restart)
        times.of("first command after a restart", run(box, "true"))
    finally:
        times.of("delete", box.delete)


def gone(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while path.exists():
        assert time.monotonic() < end, f"{path} is still there"
        time.sleep(0.005)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data-dir", type=Path, default=Path("/var/lib/runtime"))
    options.add_argument("--samples", type=int, default=10)
    asked = options.parse_args()
    times = Times()
    with Runtime() as runtime:
        health = runtime.request("GET", "/health")
        # Each a size of its own, of which there is no template yet.
        for number in range(3):
            shape = {**SHAPE, "memory_mib": 640 + 128 * number}
            box = times.of("create, the first of its size", lambda shape=shape: runtime.sandboxes.create(**shape))
            assert isinstance(box, Sandbox)
            box.delete()
        # The second of a size makes its template.
        for _ in range(2):
            box = times.of("create, first and second of a size", lambda: runtime.sandboxes.create(**SHAPE))
            assert isinstance(box, Sandbox)
            box.delete()
        for _ in range(asked.samples):
            life(runtime, asked.data_dir, times)
    print(f"{health}; load {' '.join(f'{one:.1f}' for one in os.getloadavg())} on {os.cpu_count()} cores")
    for name, found in times.found.items():
        print(f"{name:52} {statistics.median(found):8.0f} {max(found):8.0f}   ({len(found)})")


if __name__ == "__main__":
    main()
