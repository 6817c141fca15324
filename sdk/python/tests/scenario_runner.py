"""Plays the scenarios of `sdk/scenarios` with whatever `withruntime` is installed, ours or the public one.

    RUNTIME_API_URL=… RUNTIME_API_KEY=… python scenario_runner.py [--async] [part of a name…]

Prints a line for each scenario; exits with how many failed.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import re
import sys
import uuid
from pathlib import Path
from typing import Any, Awaitable, Callable, Union

import withruntime

TABLES = Path(__file__).resolve().parents[2] / "scenarios"

#: Arguments whose spelling in Python is not the wire's in snake_case.
SPELLING = {"memoryMiB": "memory_mib", "diskMiB": "disk_mib"}
#: What a client calls its own: the type of the error it must be raised as.
UNAVAILABLE = "unavailable"


class Skipped(Exception):
    """The server does not serve what a scenario needs."""


def scenarios() -> list[tuple[str, dict[str, Any]]]:
    """All scenarios, by `file: name`."""
    found = []
    for path in sorted(TABLES.glob("*.json")):
        for scenario in json.loads(path.read_text())["scenarios"]:
            found.append((f"{path.stem}: {scenario['name']}", scenario))
    return found


def snake(name: str) -> str:
    return SPELLING.get(name) or re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m[1].lower(), name)


async def settle(value: Any) -> Any:
    """The value, awaited if it is to be: one player serves both clients."""
    return await value if inspect.isawaitable(value) else value


async def items(value: Any) -> list[Any]:
    """All items of an iterator of either kind."""
    if hasattr(value, "__aiter__"):
        return [item async for item in value]
    return list(value)


class Player:
    """Plays one scenario with one client."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.run = uuid.uuid4().hex[:12]
        self.saved: dict[str, Any] = {}
        self.handles: dict[str, Any] = {}
        self.made: list[str] = []

    async def play(self, scenario: dict[str, Any]) -> None:
        try:
            for number, step in enumerate(scenario["steps"], 1):
                try:
                    await self.step(step)
                except AssertionError as error:
                    raise AssertionError(f"step {number} ({step['call']}): {error}") from error
        finally:
            for one in set(self.made):
                try:
                    await settle(self.client.sandboxes.delete(one))
                except withruntime.RuntimeError as error:
                    if error.status != 404:
                        raise

    async def step(self, step: dict[str, Any]) -> None:
        arguments = self.fill(step.get("with") or {})
        try:
            handle, result = await self.call(step["call"], self.handles.get(step.get("on", "")), arguments)
        except withruntime.RuntimeError as error:
            if step.get("needs") and error.code == UNAVAILABLE:
                raise Skipped(step["needs"]) from error
            if "fails" not in step:
                raise AssertionError(f"was refused: {error}") from error
            told = {
                "code": error.code,
                "status": error.status,
                "retryable": error.retryable,
                "details": error.details or {},
            }
            self.match(step["fails"], told, "error")
            return
        assert "fails" not in step, f"was to be refused with {step['fails']}, and answered {str(result)[:300]}"
        if "as" in step:
            self.saved[step["as"]] = result
            self.handles[step["as"]] = handle
        if "expect" in step:
            self.match(step["expect"], result, "result")

    async def call(self, call: str, on: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
        """The handle to go on with, if any, and the result in the table's form."""
        if call == "me":
            return None, await settle(self.client.me())
        if call == "limits.get":
            return None, await settle(self.client.limits.get())
        if call.startswith("sandboxes."):
            return await self.sandboxes(call[len("sandboxes.") :], arguments)
        if call.startswith("snapshots."):
            return None, await self.snapshots(call[len("snapshots.") :], arguments)
        if call.startswith("session."):
            token = arguments.pop("token")
            kind = withruntime.AsyncSandbox if inspect.iscoroutinefunction(on.refresh) else withruntime.Sandbox
            return await self.call(call[len("session.") :], kind.from_session(token, on.id), arguments)
        if call.startswith(("network.", "sessions.")):
            of, verb = call.split(".")
            named = {snake(name): value for name, value in arguments.items()}
            # The id of a session goes by its place, not by a name.
            ids = [named.pop("id")] if "id" in named else []
            result = await settle(getattr(getattr(on, of), verb)(*ids, **named))
            return None, {"data": await items(result)} if verb == "list" else result
        if call.startswith("files."):
            return None, await self.files(on.files, call[len("files.") :], arguments)
        named = {snake(name): value for name, value in arguments.items()}
        play: Callable[..., Awaitable[tuple[Any, Any]]] = getattr(self, "on_" + snake(call))
        return await play(on, named)

    async def sandboxes(self, call: str, arguments: dict[str, Any]) -> tuple[Any, Any]:
        all_of = self.client.sandboxes
        named = {snake(name): value for name, value in arguments.items()}
        if call == "list":
            found = await items(await settle(all_of.list(**named)))
            return None, {"data": [one.info for one in found]}
        if call in ("stopAll", "deleteAll"):
            done = await settle(getattr(all_of, snake(call))(**named))
            return None, {name: len(value) for name, value in done.items()}
        if call == "get":
            box = await settle(all_of.get(named["id"]))
        elif call == "getOrCreate":
            box = await settle(all_of.get_or_create(named.pop("name"), **named))
        else:
            box = await settle(all_of.create(**named))
        if call != "get":
            self.made.append(box.id)
        return box, box.info

    async def files(self, files: Any, call: str, arguments: dict[str, Any]) -> Any:
        named = {snake(name): value for name, value in arguments.items()}
        if call == "readStream":
            return encoded(b"".join(await items(files.read_stream(named["path"]))))
        if call == "write":
            mode = int(named["mode"], 8) if "mode" in named else None
            await settle(files.write(named["path"], decoded(named["data"]), mode))
            return None
        if call == "unarchive":
            await settle(files.unarchive(named["path"], as_bytes(named["data"])))
            return None
        result = await settle(getattr(files, snake(call))(**named))
        if call in ("read", "archive"):
            return encoded(result)
        return {"data": result} if call in ("list", "glob") else result

    async def snapshots(self, call: str, arguments: dict[str, Any]) -> Any:
        all_of = self.client.snapshots
        if call == "list":
            named = {snake(name): value for name, value in arguments.items()}
            return {"data": await items(await settle(all_of.list(**named)))}
        return await settle(getattr(all_of, call)(arguments["id"]))

    async def on_snapshot(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        return None, await settle(box.snapshot(**named))

    async def on_fork(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        copy = await settle(box.fork(**named))
        self.made.append(copy.id)
        return copy, copy.info

    async def on_terminal(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        typed = named.pop("typed", None)
        opened = await settle(box.terminal(**named))
        if typed is not None:
            await settle(opened.write(typed))
        output = b""
        while (piece := await settle(opened.recv())) is not None:
            output += piece
        await settle(opened.close())
        return None, {"output": output.decode(), "exitCode": opened.exit_code, "processId": opened.process_id}

    async def on_exec(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        called = {"stdout": "", "stderr": ""}
        if named.pop("callbacks", False):
            for stream in called:
                named[f"on_{stream}"] = lambda text, stream=stream: called.update({stream: called[stream] + text})
        if "stdin" in named:
            named["stdin"] = decoded(named["stdin"])
        result = (await settle(box.exec(named.pop("command"), **named))).to_dict()
        return None, {**result, "called": called}

    async def on_exec_stream(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        return None, joined(await items(box.exec_stream(named.pop("command"), **named)))

    async def on_spawn(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        process = await settle(box.spawn(named.pop("command"), **named))
        return process, await settle(process.refresh()) if process.state != "running" else info_of(process)

    async def on_process(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        process = await settle(box.process(named["id"]))
        return process, info_of(process)

    async def on_processes(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        return None, {"data": await settle(box.processes())}

    async def on_write(self, process: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        await settle(process.write(decoded(named["data"]), named.get("eof", False)))
        return None, None

    async def on_kill(self, process: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        await settle(process.kill(**named))
        return None, None

    async def on_wait(self, process: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        return None, (await settle(process.wait())).to_dict()

    async def on_output(self, process: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        return None, joined(await items(process.output(**named)), named.get("cursor", 0))

    async def on_refresh(self, on: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        await settle(on.refresh())
        return None, info_of(on)

    async def on_block(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        if hasattr(box, "__aenter__"):
            async with box:
                pass
        else:
            with box:
                pass
        return None, None

    async def on_delete(self, box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        return None, await settle(box.delete())

    def __getattr__(self, name: str) -> Any:
        """What is left are verbs of a sandbox that answer the sandbox."""
        if not name.startswith("on_"):
            raise AttributeError(name)

        async def verb(box: Any, named: dict[str, Any]) -> tuple[Any, Any]:
            await settle(getattr(box, name[3:])(**named))
            return None, box.info

        return verb

    def fill(self, value: Any) -> Any:
        """Arguments with what is known now put in."""
        if isinstance(value, str):
            return value.replace("${run}", self.run)
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict):
            if "$from" in value:
                return self.earlier(value["$from"])
            if "$repeat" in value:
                return value["$repeat"][0] * value["$repeat"][1]
            return {self.fill(key): self.fill(item) for key, item in value.items()}
        return value

    def earlier(self, path: str) -> Any:
        name, *keys = path.split(".")
        value = self.saved[name]
        for key in keys:
            value = value[key]
        return value

    def match(self, wanted: Any, got: Any, where: str) -> None:
        if isinstance(wanted, dict):
            rules = [key for key in wanted if key.startswith("$")]
            if rules:
                self.rule(rules[0], wanted[rules[0]], got, where)
                return
            assert isinstance(got, dict), f"{where} is no object: {got!r:.300}"
            for key, value in wanted.items():
                self.match(value, got.get(key), f"{where}.{key}")
        elif isinstance(wanted, list):
            assert isinstance(got, list) and len(got) == len(wanted), f"{where} is {got!r:.300}, not {wanted!r:.300}"
            for number, value in enumerate(wanted):
                self.match(value, got[number], f"{where}[{number}]")
        else:
            wanted = self.fill(wanted)
            same = got == wanted and isinstance(got, bool) == isinstance(wanted, bool)
            assert same, f"{where} is {got!r:.300}, not {wanted!r:.300}"

    def rule(self, rule: str, value: Any, got: Any, where: str) -> None:
        if rule == "$from":
            assert got == self.earlier(value), f"{where} is {got!r:.300}, not that of {value}"
        elif rule == "$type":
            assert kind_of(got) == value, f"{where} is {got!r:.300}, no {value}"
        elif rule == "$matches":
            assert isinstance(got, str) and re.search(value, got), f"{where} is {got!r:.300}, not like {value}"
        elif rule == "$length":
            assert len(got) == value, f"{where} has length {len(got)}, not {value}"
        elif rule == "$contains":
            assert any(self.matches(value, item) for item in got) or (isinstance(got, str) and value in got), (
                f"{where} has no {value!r:.300} in {got!r:.1000}"
            )
        elif rule == "$not":
            assert not self.matches(value, got), f"{where} is {got!r:.300}"
        elif rule == "$absent":
            assert got is None, f"{where} is there: {got!r:.300}"
        else:
            raise KeyError(f"nobody knows the rule {rule}")

    def matches(self, wanted: Any, got: Any) -> bool:
        try:
            self.match(wanted, got, "")
        except AssertionError:
            return False
        return True


def info_of(handle: Any) -> dict[str, Any]:
    """A handle's record. The public client keeps that of a process to itself, but for some of it."""
    info = getattr(handle, "info", None) or getattr(handle, "_info", None)
    assert isinstance(info, dict), f"{handle!r} has no record"
    return info


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    kinds: list[tuple[Union[type, tuple[type, ...]], str]] = [
        (bool, "boolean"), (str, "string"), ((int, float), "number"), (dict, "object"), (list, "array"),
    ]  # fmt: skip
    return next(name for kind, name in kinds if isinstance(value, kind))


def decoded(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def as_bytes(value: Any) -> bytes:
    data = decoded(value)
    return data.encode() if isinstance(data, str) else bytes(data)


def encoded(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def joined(events: list[dict[str, Any]], cursor: int = 0) -> dict[str, Any]:
    text = {"stdout": "", "stderr": ""}
    whole = True
    for event in events:
        if event["type"] in text:
            whole = whole and event["offset"] == cursor
            cursor = event["offset"] + len(event["data"].encode())
            text[event["type"]] += event["data"]
        elif event["type"] == "truncated":
            whole = False
    last = events[-1]
    return {
        **text,
        "first": events[0]["type"],
        "last": last["type"],
        "exitCode": last.get("exitCode"),
        "timedOut": last.get("timedOut"),
        "whole": whole,
    }


async def play(scenario: dict[str, Any], asynchronous: bool) -> None:
    """Plays one scenario with a client of its own."""
    if asynchronous:
        async with withruntime.AsyncRuntime() as client:
            await Player(client).play(scenario)
    else:
        with withruntime.Runtime() as client:
            await Player(client).play(scenario)


def main() -> int:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    failed = 0
    for name, scenario in scenarios():
        if words and not any(word in name for word in words):
            continue
        try:
            asyncio.run(play(scenario, "--async" in sys.argv))
            print(f"ok {name}", flush=True)
        except Skipped as feature:
            print(f"skipped {name}: {feature} is not served", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
