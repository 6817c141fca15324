"""A sandbox as tools of a model."""

from __future__ import annotations

import inspect
import json
from typing import Any, Optional

import pytest

from withruntime import AsyncRuntime, NotFoundError, Sandbox
from withruntime.tools import anthropic_tools, call_tool, openai_tools, sandbox_tools

from .conftest import Server
from .forms import settle

NAMES = ["runtime_exec", "runtime_read_file", "runtime_write_file", "runtime_list_files"]


def test_definitions_fit_the_functions() -> None:
    functions = sandbox_tools(Sandbox.from_session("rtsess_x", "y", "http://127.0.0.1:1"))
    assert [function.__name__ for function in functions] == NAMES
    for function, openai, anthropic in zip(functions, openai_tools(), anthropic_tools()):
        parameters = inspect.signature(function).parameters
        schema = anthropic["input_schema"]
        assert openai == {
            "type": "function",
            "function": {"name": function.__name__, "description": anthropic["description"], "parameters": schema},
        }
        assert list(schema["properties"]) == list(parameters)
        assert schema["required"] == [name for name, p in parameters.items() if p.default is inspect.Parameter.empty]
        assert all(value["description"] for value in schema["properties"].values())
        assert anthropic["description"] in str(inspect.getdoc(function))
        json.dumps(anthropic)
    assert functions[0].__annotations__["cwd"] == Optional[str]


def test_the_four_tools(box: Sandbox) -> None:
    run, read, write, listing = sandbox_tools(box, max_output_chars=100)
    assert write("notes/a.txt", "grün\n") == "Wrote 6 bytes to /workspace/notes/a.txt."
    assert read("notes/a.txt") == "grün\n"
    assert run("cat a.txt; exit 3", cwd="notes") == {"exit_code": 3, "stdout": "grün\n", "stderr": ""}
    assert listing("notes") == [{"path": "/workspace/notes/a.txt", "type": "file", "size": 6}]
    assert run("sleep 100", timeout_seconds=1)["timed_out"] is True
    assert write("/tmp/deep/er/x", "x").endswith("/tmp/deep/er/x.")
    flood = run("yes | head -c 100000")["stdout"]
    assert len(flood) < 200 and "characters left out" in flood
    box.files.write("/workspace/big", "x" * 1_000_000)
    assert len(read("big")) < 200
    with pytest.raises(NotFoundError):
        read("none")


def test_a_call_of_a_model_is_answered_whatever_it_asks(box: Sandbox) -> None:
    assert call_tool(box, "runtime_exec", '{"command": "echo hi"}')["stdout"] == "hi\n"
    assert call_tool(box, "runtime_read_file", {"path": "none"})["code"] == "file_not_found"
    for name, arguments in (
        ("runtime_exec", {}),
        ("runtime_exec", "no json"),
        ("runtime_exec", {"command": "true", "shell": "zsh"}),
        ("runtime_fly", {}),
        ("runtime_list_files", "[]"),
    ):
        answer = call_tool(box, name, arguments)
        assert "error" in answer or isinstance(answer, list), (name, arguments)
        json.dumps(answer)


def test_asynchronous_ones_are_awaited(server: Server, box: Sandbox) -> None:
    import asyncio

    async def play() -> Any:
        async with AsyncRuntime() as client:
            same = await client.sandboxes.get(box.id)
            run, *_ = sandbox_tools(same)
            assert inspect.iscoroutinefunction(run)
            return await run("echo hi"), await settle(call_tool(same, "runtime_exec", {"command": "echo ho"}))

    first, second = asyncio.run(play())
    assert (first["stdout"], second["stdout"]) == ("hi\n", "ho\n")
