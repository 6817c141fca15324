"""A sandbox as tools for a model: run a command, read, write and list files.

Most agent frameworks take plain functions and read name, annotations and docstring::

    agent = Agent(tools=sandbox_tools(sandbox))

Those that call a model's API themselves take definitions, and hand each call back::

    tools = openai_tools()          # or anthropic_tools()
    ...
    answer = call_tool(sandbox, name, arguments)
"""

from __future__ import annotations

import inspect
import json
from typing import Any, Callable, Optional, Union

from ._async._tools import AsyncSandboxTools
from ._async.sandbox import AsyncSandbox
from ._sync._tools import SandboxTools
from ._sync.sandbox import Sandbox

WORKSPACE = "/workspace"
DEFAULT_TIMEOUT_SECONDS = 300
DEFAULT_MAX_OUTPUT_CHARS = 20_000

_DOCS = {
    "runtime_exec": """Run a shell command in the sandbox; answers its exit code, stdout and stderr.

    Args:
        command: A line for bash, like `pytest -q` or `pip install requests`.
        cwd: The directory to run in; relative to {root}, which is the default.
        timeout_seconds: Seconds until it is stopped and reported as timed out.
    """,
    "runtime_read_file": """Read a text file of the sandbox.

    Args:
        path: The file; relative to {root}.
    """,
    "runtime_write_file": """Write a text file in the sandbox, new or over an old one, making folders as needed.

    Args:
        path: The file; relative to {root}.
        content: All of its new content.
    """,
    "runtime_list_files": """List a folder of the sandbox: path, type and size of each entry.

    Args:
        path: The folder; relative to {root}, which is the default.
        depth: Levels below it; 1 for its own entries only.
    """,
}

_PARAMETERS: dict[str, dict[str, Any]] = {
    "runtime_exec": {
        "command": {"type": "string"},
        "cwd": {"type": "string"},
        "timeout_seconds": {"type": "integer", "minimum": 1},
    },
    "runtime_read_file": {"path": {"type": "string"}},
    "runtime_write_file": {"path": {"type": "string"}, "content": {"type": "string"}},
    "runtime_list_files": {"path": {"type": "string"}, "depth": {"type": "integer", "minimum": 1}},
}
_REQUIRED = {
    "runtime_exec": ["command"],
    "runtime_read_file": ["path"],
    "runtime_write_file": ["path", "content"],
    "runtime_list_files": [],
}


def sandbox_tools(
    sandbox: Union[Sandbox, AsyncSandbox],
    *,
    root: str = WORKSPACE,
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
    max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
) -> list[Callable[..., Any]]:
    """``runtime_exec``, ``runtime_read_file``, ``runtime_write_file`` and ``runtime_list_files`` for a sandbox.

    Functions for a :class:`Sandbox`, coroutine functions for an :class:`AsyncSandbox`. They raise what the sandbox's
    own calls raise.

    Args:
        sandbox: Where they work.
        root: What relative paths are below.
        timeout_seconds: The time limit of a command that names none.
        max_output_chars: Characters of each text answered; the middle is left out.
    """
    if isinstance(sandbox, AsyncSandbox):
        made = _async_functions(AsyncSandboxTools(sandbox, root, timeout_seconds, max_output_chars))
    else:
        made = _sync_functions(SandboxTools(sandbox, root, timeout_seconds, max_output_chars))
    for function in made:
        function.__qualname__ = function.__name__
        function.__doc__ = inspect.cleandoc(_DOCS[function.__name__].format(root=root))
    return made


def openai_tools(*, root: str = WORKSPACE) -> list[dict[str, Any]]:
    """The definitions in the form of OpenAI's chat completions (and of those who took it over)."""
    return [
        {"type": "function", "function": {**_named(name, root), "parameters": _schema(name, root)}} for name in _DOCS
    ]


def anthropic_tools(*, root: str = WORKSPACE) -> list[dict[str, Any]]:
    """The definitions in the form of Anthropic's messages."""
    return [{**_named(name, root), "input_schema": _schema(name, root)} for name in _DOCS]


def call_tool(
    sandbox: Union[Sandbox, AsyncSandbox],
    name: str,
    arguments: Union[str, dict[str, Any], None],
    *,
    root: str = WORKSPACE,
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
    max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
) -> Any:
    """Does what a model asked for: a value that can be JSON, or for an :class:`AsyncSandbox` an awaitable of it.

    What goes wrong in the sandbox, and arguments that do not fit, are answered as ``{"error": …}``, for the model to
    read.

    Args:
        sandbox: Where to work.
        name: The tool's name.
        arguments: As the model gave them: a dict, or its JSON.
        root: As in `sandbox_tools`.
        timeout_seconds: As in `sandbox_tools`.
        max_output_chars: As in `sandbox_tools`.
    """
    given = _arguments(arguments)
    if isinstance(sandbox, AsyncSandbox):
        return AsyncSandboxTools(sandbox, root, timeout_seconds, max_output_chars).call(name, given)
    return SandboxTools(sandbox, root, timeout_seconds, max_output_chars).call(name, given)


def _arguments(arguments: Union[str, dict[str, Any], None]) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return {"arguments that are no JSON": True}
    return arguments if isinstance(arguments, dict) else {}


def _named(name: str, root: str) -> dict[str, Any]:
    return {"name": name, "description": inspect.cleandoc(_DOCS[name].format(root=root)).split("\n\n")[0]}


def _schema(name: str, root: str) -> dict[str, Any]:
    told = dict(
        line.strip().split(": ", 1) for line in _DOCS[name].format(root=root).split("Args:")[1].strip().splitlines()
    )
    properties = {key: {**value, "description": told[key]} for key, value in _PARAMETERS[name].items()}
    return {"type": "object", "properties": properties, "required": _REQUIRED[name], "additionalProperties": False}


def _sync_functions(tools: SandboxTools) -> list[Callable[..., Any]]:
    def runtime_exec(command: str, cwd: Optional[str] = None, timeout_seconds: Optional[int] = None) -> dict[str, Any]:
        return tools.exec(command, cwd, timeout_seconds)

    def runtime_read_file(path: str) -> str:
        return tools.read_file(path)

    def runtime_write_file(path: str, content: str) -> str:
        return tools.write_file(path, content)

    def runtime_list_files(path: str = ".", depth: int = 1) -> list[dict[str, Any]]:
        return tools.list_files(path, depth)

    return _resolved(runtime_exec, runtime_read_file, runtime_write_file, runtime_list_files)


def _async_functions(tools: AsyncSandboxTools) -> list[Callable[..., Any]]:
    async def runtime_exec(
        command: str, cwd: Optional[str] = None, timeout_seconds: Optional[int] = None
    ) -> dict[str, Any]:
        return await tools.exec(command, cwd, timeout_seconds)

    async def runtime_read_file(path: str) -> str:
        return await tools.read_file(path)

    async def runtime_write_file(path: str, content: str) -> str:
        return await tools.write_file(path, content)

    async def runtime_list_files(path: str = ".", depth: int = 1) -> list[dict[str, Any]]:
        return await tools.list_files(path, depth)

    return _resolved(runtime_exec, runtime_read_file, runtime_write_file, runtime_list_files)


def _resolved(*functions: Callable[..., Any]) -> list[Callable[..., Any]]:
    """With annotations as types: frameworks read them, and not all resolve text."""
    for function in functions:
        function.__annotations__ = {
            name: eval(text, globals())  # noqa: S307 - our own annotations, a few lines above
            for name, text in function.__annotations__.items()
        }
    return list(functions)
