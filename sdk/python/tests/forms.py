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


#: A sandbox's record, as far as a handle needs one.
BOX = {"id": "8a1f9c2e-0d1b-4c3a-9e8f-7a6b5c4d3e2f", "state": "running"}


async def me(client: Any) -> Any:
    return await settle(client.me())


async def create(client: Any, **fields: Any) -> Any:
    return await settle(client.sandboxes.create(**fields))


__all__ = ["BOX", "both", "create", "drive", "items", "me", "settle"]
