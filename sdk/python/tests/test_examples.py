"""The published programs, byte for byte, in a directory of their own.

They lie beside the clone, or where `RUNTIME_EXAMPLES` says.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from withruntime import Runtime, RuntimeError

from .conftest import Server

EXAMPLES = Path(os.environ.get("RUNTIME_EXAMPLES") or Path(__file__).resolve().parents[4] / "shared" / "examples")
PATTERNS = sorted((Path(__file__).resolve().parents[3] / "examples" / "python").glob("*.py"))
README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

published = pytest.mark.skipif(not EXAMPLES.is_dir(), reason=f"there are no published programs in {EXAMPLES}")


def run(program: Path, server: Server) -> str:
    """What a program prints, run alone where nothing of this repository is in reach."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RUNTIME_", "PYTHON")) and "PROXY" not in name.upper()
    }
    env.update(RUNTIME_API_URL=server.url, RUNTIME_API_KEY=server.key)
    done = subprocess.run(
        [sys.executable, program.name], cwd=program.parent, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def namespace(program: Path) -> dict[str, Any]:
    """A program's names, after it has run once in this process."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(program.read_text(), str(program), "exec"), names)
    return names


@published
def test_one_turn_of_a_conversation(server: Server, runtime: Runtime, tmp_path: Path) -> None:
    program = Path(shutil.copy(EXAMPLES / "block1.py", tmp_path))
    for _ in range(2):
        assert ast.literal_eval(run(program, server)) == {"ok": True, "output": "45\n", "timed_out": False}
    found = runtime.sandboxes.list(name="chat-c-42").data
    assert len(found) == 1 and found[0].info["labels"] == {"app": "chat"}
    assert found[0].info["idlePauseSeconds"] == 120
    put_to_rest(found[0])
    assert ast.literal_eval(run(program, server)) == {"ok": True, "output": "45\n", "timed_out": False}
    assert [one.id for one in runtime.sandboxes.list(name="chat-c-42")] == [found[0].id]
    found[0].delete()


def put_to_rest(box: Any) -> None:
    """Paused, where the server serves that; else stopped, from which the same call brings it back too."""
    try:
        box.pause()
    except RuntimeError as error:
        if error.code != "unavailable":
            raise
        box.stop()


@published
def test_one_job_for_one_event(server: Server, runtime: Runtime, tmp_path: Path) -> None:
    program = Path(shutil.copy(EXAMPLES / "block2.py", tmp_path))
    printed = ast.literal_eval(run(program, server))
    assert printed["exit_code"] == 0 and printed["tail"].startswith("3.")
    on_job = namespace(program)["on_job"]
    event = uuid.uuid4().hex
    assert on_job(event, "echo done") == {"exit_code": 0, "tail": "done\n"}
    with pytest.raises(RuntimeError) as told:
        on_job(event, "echo done")
    assert told.value.code == "start_failed"
    assert len(runtime.sandboxes.list(labels={"app": "jobs", "event": event}).data) == 1
    done = runtime.sandboxes.stop_all(labels={"app": "jobs"})
    assert len(done["stopped"]) >= 2 and done["failed"] == []
    runtime.sandboxes.delete_all(labels={"app": "jobs"})


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_readme_runs(server: Server, tmp_path: Path, number: int) -> None:
    program = tmp_path / "block.py"
    program.write_text(BLOCKS[number])
    printed = run(program, server)
    expected = (
        "0 45\n",
        "True still here",
        "1\n2\n3\nhello\n",
        "['ready', 'first'] ['ready']\nready\n",
        "hello from inside\n",
        "example.com refused rule-not-allowed\nin\n",
        "http://8000-",
        "stdout one",
        "'stdout': 'hi\\n'",
    )
    assert len(BLOCKS) == len(expected) and expected[number] in printed


def test_there_are_patterns() -> None:
    assert len(PATTERNS) >= 3


@pytest.mark.parametrize("program", PATTERNS, ids=[path.stem for path in PATTERNS])
def test_a_pattern_prints_what_it_says(server: Server, runtime: Runtime, tmp_path: Path, program: Path) -> None:
    told = ast.get_docstring(ast.parse(program.read_text())) or ""
    wanted = "".join(f"{line[4:]}\n" for line in told.splitlines() if line.startswith("    "))
    before = {one.id for one in runtime.sandboxes.list()}
    assert run(Path(shutil.copy(program, tmp_path)), server) == wanted
    assert {one.id for one in runtime.sandboxes.list()} == before, "a program cleans up after itself"
