"""One test for both forms of the client: written with `await settle(...)`, which a plain value passes through."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, TypeVar

import pytest

from withruntime import AsyncRuntime, Runtime

from .scenario_runner import items, settle

T = TypeVar("T")

both = pytest.mark.parametrize("form", ["sync", "async"])


def drive(form: str, url: str, work: Callable[[Any], Awaitable[T]], **options: Any) -> T:
    """Runs `work` with a client of that form. A key is there unless another is given."""
    options = {"api_key": "rtcloud_test", **options}

    async def run() -> T:
        if form == "async":
            async with AsyncRuntime(base_url=url, **options) as client:
                return await work(client)
        with Runtime(base_url=url, **options) as blocking:
            return await work(blocking)

    return asyncio.run(run())


__all__ = ["both", "drive", "items", "settle"]
