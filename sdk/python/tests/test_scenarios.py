"""The shared table, played with both forms of the client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .conftest import Server
from .scenario_runner import Skipped, play, scenarios

TABLE = scenarios()


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("scenario", [s for _, s in TABLE], ids=[name for name, _ in TABLE])
def test_scenario(server: Server, scenario: dict[str, Any], form: str) -> None:
    try:
        asyncio.run(play(scenario, form == "async"))
    except Skipped as feature:
        pytest.skip(f"the server does not serve it: {feature}")
