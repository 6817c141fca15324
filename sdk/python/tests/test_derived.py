"""What is written by a script is what the script writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.mark.parametrize("script", ["derive_sync.py", "api_types.py"])
def test_committed_files_are_fresh(script: str) -> None:
    done = subprocess.run([sys.executable, SCRIPTS / script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_asynchronous_is_left_in_the_synchronous_client() -> None:
    for path in (SCRIPTS.parent / "src" / "withruntime" / "_sync").glob("*.py"):
        code = path.read_text().split("\n", 1)[1]
        for word in ("async ", "await ", "asyncio", "Async"):
            assert word not in code, f"{path.name} still says {word!r}"
