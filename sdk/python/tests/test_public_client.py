"""The shared table, played by the public client: what ours answers is what programs out there expect.

`RUNTIME_PUBLIC_PYTHON` names an interpreter that has the public client installed, and not ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Server

PYTHON = os.environ.get("RUNTIME_PUBLIC_PYTHON")


@pytest.mark.skipif(not PYTHON, reason="RUNTIME_PUBLIC_PYTHON names no interpreter with the public client")
@pytest.mark.parametrize("form", ["--sync", "--async"])
def test_the_public_client_plays_the_same_table(server: Server, form: str) -> None:
    runner = Path(__file__).with_name("scenario_runner.py")
    env = {**os.environ, "NO_PROXY": "127.0.0.1", "RUNTIME_API_URL": server.url, "RUNTIME_API_KEY": server.key}
    done = subprocess.run([str(PYTHON), str(runner), form], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "ok " in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(not PYTHON, reason="RUNTIME_PUBLIC_PYTHON names no interpreter with the public client")
@pytest.mark.parametrize("form", ["--sync", "--async"])
def test_the_newer_products_answer_both_clients_alike(server: Server, form: str) -> None:
    program = Path(__file__).with_name("products.py")
    env = {**os.environ, "NO_PROXY": "127.0.0.1", "RUNTIME_API_URL": server.url, "RUNTIME_API_KEY": server.key}
    told = []
    for python in (sys.executable, str(PYTHON)):
        done = subprocess.run([python, str(program), form], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    ours, theirs = told
    assert list(ours) == list(theirs) and len(ours) > 35
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}
