"""What the Python client costs: its size, its import, and a call, against a bare HTTP client in the same run.

    RUNTIME_API_URL=… RUNTIME_API_KEY=… python bench/clients/python.py

Needs `withruntime` of this repository installed. Prints a table; of times the median, with the middle half behind.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable
from urllib.parse import urlsplit

import withruntime

CALLS = 400
IMPORTS = 15


def spread(times: list[float]) -> str:
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle * 1e3:8.2f} ms  ({low * 1e3:.2f} to {high * 1e3:.2f})"


def times_of(work: Callable[[], object], count: int) -> list[float]:
    for _ in range(20):
        work()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return times


def start_of(code: str) -> list[float]:
    """How long an interpreter takes that does this and ends."""
    times = []
    for _ in range(IMPORTS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - began)
    return times


def bare() -> Callable[[], object]:
    """GET /v1/me with the standard library alone, on one connection, the JSON parsed."""
    origin = urlsplit(os.environ["RUNTIME_API_URL"])
    connection = http.client.HTTPConnection(str(origin.hostname), origin.port)
    headers = {"Authorization": "Bearer " + os.environ["RUNTIME_API_KEY"], "Accept": "application/json"}

    def call() -> object:
        connection.request("GET", "/v1/me", headers=headers)
        return json.loads(connection.getresponse().read())

    return call


async def asynchronous() -> list[float]:
    async with withruntime.AsyncRuntime() as runtime:
        for _ in range(20):
            await runtime.me()
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            await runtime.me()
            times.append(time.perf_counter() - began)
        return times


def main() -> None:
    folder = Path(str(withruntime.__file__)).parent
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".py", ".typed")]
    print(f"size of the package    {sum(path.stat().st_size for path in files) / 1024:8.0f} KiB in {len(files)} files")
    print(f"interpreter alone      {spread(start_of('pass'))}")
    print(f"... importing asyncio, http.client, ssl {spread(start_of('import asyncio, http.client, ssl, json'))}")
    print(f"... importing withruntime {spread(start_of('import withruntime'))}")
    with withruntime.Runtime() as runtime:
        print(f"GET /v1/me, bare       {spread(times_of(bare(), CALLS))}")
        print(f"GET /v1/me, Runtime    {spread(times_of(runtime.me, CALLS))}")
    print(f"GET /v1/me, AsyncRuntime {spread(asyncio.run(asynchronous()))}")


if __name__ == "__main__":
    main()
