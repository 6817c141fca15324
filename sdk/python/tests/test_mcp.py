"""The server's tools, used by the protocol's own client: over HTTP and over `runtime mcp`, in both generations of the
protocol: the one that shakes hands and has sessions, and the one where each request says all.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import time
import uuid
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Awaitable, Callable, Optional
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from withruntime import AuthenticationError, Runtime, Sandbox

from .conftest import Server
from .faults import CUT, LOSE_ANSWER, LOSE_REQUEST, REFUSE, TWICE, FaultyNetwork, first

FORMS = ["http", "http-handshake", "stdio", "stdio-handshake"]
forms = pytest.mark.parametrize("form", FORMS)
Test = Callable[["Tools"], Awaitable[None]]


class Tools:
    """A connected client, and calls that look at how an answer is written."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> Any:
        """The answer of a call that is to succeed."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return self.read(result)

    async def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The error of a call that is not to."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.content
        error = self.read(result)["error"]
        assert isinstance(error, dict) and error["message"] and error["requestId"].startswith("req_")
        return error

    @staticmethod
    def read(result: Any) -> Any:
        [content] = result.content
        assert json.loads(content.text) == result.structured_content
        return result.structured_content


@asynccontextmanager
async def connected(form: str, url: str, key: str) -> AsyncIterator[Tools]:
    mode = "legacy" if form.endswith("handshake") else "auto"
    if form.startswith("stdio"):
        environment = {"RUNTIME_API_URL": url, "RUNTIME_API_KEY": key}
        program = StdioServerParameters(command=os.environ["RUNTIME_BIN"], args=["mcp"], env=environment)
        async with Client(program, mode=mode, read_timeout_seconds=60) as client:
            yield Tools(client)
        return
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=200, trust_env=False) as http_client:
        transport = streamable_http_client(f"{url}/mcp", http_client=http_client)
        async with Client(transport, mode=mode, read_timeout_seconds=60) as client:
            yield Tools(client)


def drive(form: str, url: str, key: str, test: Test) -> None:
    """Runs a test with a client of its form; it may take its time, and not for ever."""

    async def run() -> None:
        async with connected(form, url, key) as tools:
            await asyncio.wait_for(test(tools), 300)

    asyncio.run(run())


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 120
    while not await look():
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.05)


@forms
def test_the_tools_are_told(server: Server, form: str) -> None:
    async def look(tools: Tools) -> None:
        assert (tools.client.protocol_version >= "2026") == (not form.endswith("handshake"))
        assert "runtime_sandboxes_create" in (tools.client.instructions or "")
        listed = {tool.name: tool for tool in (await tools.client.list_tools()).tools}
        assert {"runtime_sandboxes_exec", "runtime_sandboxes_files_read", "runtime_account"} <= set(listed)
        for tool in listed.values():
            assert tool.description and tool.annotations is not None
            schema = tool.input_schema
            assert schema["type"] == "object" and schema["additionalProperties"] is False
            assert all(value["description"] for value in schema["properties"].values())
        assert listed["runtime_sandboxes_list"].annotations.read_only_hint is True  # type: ignore[union-attr]
        assert listed["runtime_sandboxes_manage"].annotations.destructive_hint is True  # type: ignore[union-attr]
        me = await tools.call("runtime_account", action="get")
        assert me["orgId"]

    drive(form, server.url, server.key, look)


@forms
def test_a_sandbox_lives_by_tools_alone(server: Server, form: str) -> None:
    name = f"mcp-{uuid.uuid4().hex}"

    async def live(tools: Tools) -> None:
        made = await tools.call("runtime_sandboxes_create", name=name, labels={"by": name}, getOrCreate=True)
        box = made["id"]
        assert made["state"] == "running" and made["idempotencyKey"]
        again = await tools.call("runtime_sandboxes_create", name=name, getOrCreate=True)
        assert again["id"] == box and again["reused"] is True
        found = await tools.call("runtime_sandboxes_list", label=f"by:{name}")
        assert [one["id"] for one in found["data"]] == [box]

        done = await tools.call("runtime_sandboxes_exec", id=box, command="echo out; echo err >&2; exit 3")
        assert (done["exitCode"], done["stdout"], done["stderr"]) == (3, "out\n", "err\n")
        done = await tools.call("runtime_sandboxes_exec", id=box, command=["printf", "%s", "$HOME"])
        assert done["stdout"] == "$HOME" and "outputCut" not in done
        done = await tools.call("runtime_sandboxes_exec", id=box, command="cat", stdin="in", env={"A": "b"}, cwd="/tmp")
        assert done["stdout"] == "in"
        done = await tools.call("runtime_sandboxes_exec", id=box, command="sleep 60", timeoutMs=200)
        assert done["timedOut"] is True

        await tools.call("runtime_sandboxes_files_write", id=box, path="a/b.txt", content="one\ntwo\nthree\n")
        await tools.call("runtime_sandboxes_files_write", id=box, path="/tmp/new/c.txt", content="over there")
        read = await tools.call("runtime_sandboxes_files_read", id=box, path="a/b.txt", startLine=2, endLine=2)
        assert (read["content"], read["encoding"]) == ("two\n", "utf8")
        await tools.call("runtime_sandboxes_files_manage", id=box, action="move", path="a/b.txt", to="c.txt")
        listed = await tools.call("runtime_sandboxes_files_list", id=box, glob="**/*.txt")
        assert [entry["path"] for entry in listed["data"]] == ["/workspace/c.txt"]
        stat = await tools.call("runtime_sandboxes_files_manage", id=box, action="stat", path="nothing")
        assert stat["exists"] is False

        watch = await tools.call("runtime_sandboxes_files_watch", id=box, action="start", path=".", include=["*.txt"])
        await tools.call("runtime_sandboxes_files_write", id=box, path="seen.txt", content="x")
        at = {"id": box, "watchId": watch["id"]}
        seen = await tools.call("runtime_sandboxes_files_watch", **at, action="read", cursor=0, waitMs=8000)
        assert [(one["type"], one["path"]) for one in seen["events"]] == [("create", "/workspace/seen.txt")]
        again = await tools.call("runtime_sandboxes_files_watch", **at, action="read", cursor=seen["nextCursor"])
        assert again["events"] == []
        listed = await tools.call("runtime_sandboxes_files_watch", id=box, action="list")
        assert [one["id"] for one in listed["data"]] == [watch["id"]]
        assert (await tools.call("runtime_sandboxes_files_watch", **at, action="stop"))["stopped"] is True

        started = await tools.call("runtime_sandboxes_exec", id=box, command="sleep 300", background=True)
        process = started["processId"]

        # A pause keeps the process; the next call wakes the sandbox.
        paused = await tools.call("runtime_sandboxes_manage", id=box, action="pause")
        assert paused["state"] == "paused"
        lifetime = await tools.call("runtime_sandboxes_inspect", id=box, what="lifetime")
        assert lifetime["state"] == "paused" and "memoryMiB" not in lifetime
        background = await tools.call("runtime_sandboxes_process", id=box, action="get", processId=process)
        assert background["state"] == "running"
        await tools.call("runtime_sandboxes_process", id=box, action="signal", processId=process, signal="SIGTERM")

        async def ended() -> bool:
            polled = await tools.call("runtime_sandboxes_process", id=box, action="read", processId=process, waitMs=500)
            return bool(polled["process"]["state"] != "running")

        await until(ended)
        stopped = await tools.call("runtime_sandboxes_manage", id=box, action="stop")
        assert stopped["state"] == "stopped"
        error = await tools.refused("runtime_sandboxes_exec", id=box, command="true")
        assert error["code"] == "sandbox_stopped"
        await tools.call("runtime_sandboxes_manage", id=box, action="restart")
        read = await tools.call("runtime_sandboxes_files_read", id=box, path="c.txt")
        assert read["content"] == "one\ntwo\nthree\n"
        deleted = await tools.call("runtime_sandboxes_manage", id=box, action="delete")
        assert deleted["status"] == "deleted"

    drive(form, server.url, server.key, live)


@pytest.mark.parametrize("form", ["http", "stdio-handshake"])
def test_copies_go_on_from_where_a_sandbox_stands(server: Server, form: str) -> None:
    name = f"mcp-{uuid.uuid4().hex}"

    async def fork(tools: Tools) -> None:
        box = (await tools.call("runtime_sandboxes_create", vcpu=1, memoryMiB=512, labels={"of": name}))["id"]
        started = await tools.call("runtime_sandboxes_exec", id=box, command="sleep 300", background=True)
        await tools.call("runtime_sandboxes_files_write", id=box, path="whose", content="source")
        asked: dict[str, Any] = {"id": box, "count": 2, "name": name, "labels": {"by": name}}
        forked = await tools.call("runtime_sandboxes_fork", **asked)
        copies = forked["sandboxes"]
        assert [(one["name"], one["state"]) for one in copies] == [(name, "running"), (f"{name}-1", "running")]
        again = await tools.call("runtime_sandboxes_fork", **asked, idempotencyKey=forked["idempotencyKey"])
        assert [one["id"] for one in again["sandboxes"]] == [one["id"] for one in copies]
        found = await tools.call("runtime_sandboxes_list", label=f"by:{name}")
        assert {one["id"] for one in found["data"]} == {one["id"] for one in copies}
        for one in copies:
            arguments = {"id": one["id"], "action": "get", "processId": started["processId"]}
            assert (await tools.call("runtime_sandboxes_process", **arguments))["state"] == "running"
            read = await tools.call("runtime_sandboxes_files_read", id=one["id"], path="whose")
            assert read["content"] == "source"
            await tools.call("runtime_sandboxes_files_write", id=one["id"], path="whose", content=one["id"])
        for whose, content in [(box, "source"), *((one["id"], one["id"]) for one in copies)]:
            read = await tools.call("runtime_sandboxes_files_read", id=whose, path="whose")
            assert read["content"] == content
        error = await tools.refused("runtime_sandboxes_fork", id=box, name=name)
        assert error["code"] == "name_taken"
        error = await tools.refused("runtime_sandboxes_fork", id=box, count=17, cuont=1)
        assert {issue["path"] for issue in error["details"]["issues"]} == {"count", "cuont"}
        for whose in [box, *(one["id"] for one in copies)]:
            await tools.call("runtime_sandboxes_manage", id=whose, action="delete")

    drive(form, server.url, server.key, fork)


@pytest.mark.parametrize("form", ["http-handshake", "stdio"])
def test_a_snapshot_is_kept_and_started_from(server: Server, form: str) -> None:
    name = f"mcp-{uuid.uuid4().hex}"

    async def keep(tools: Tools) -> None:
        box = (await tools.call("runtime_sandboxes_create", vcpu=1, memoryMiB=512))["id"]
        await tools.call("runtime_sandboxes_files_write", id=box, path="kept", content=name)
        taken = await tools.call(
            "runtime_snapshots", action="create", sandboxId=box, mode="disk", name=name, retentionDays=3
        )
        kept = taken["id"]
        assert (taken["state"], taken["mode"], taken["name"]) == ("ready", "disk", name)
        assert (taken["sourceSandboxId"], taken["retentionDays"]) == (box, 3) and taken["idempotencyKey"]
        await tools.call("runtime_sandboxes_manage", id=box, action="delete")
        filters: list[dict[str, Any]] = [{"sandboxId": box}, {"name": name}, {"sandboxId": box, "state": "ready"}]
        for chosen in filters:
            listed = await tools.call("runtime_snapshots", action="list", limit=1, **chosen)
            assert [one["id"] for one in listed["data"]] == [kept], chosen
        assert (await tools.call("runtime_snapshots", action="list", sandboxId=box, state="failed"))["data"] == []

        changed = await tools.call("runtime_snapshots", action="update", id=kept, labels={"a": "b"}, ifLabels={})
        assert (changed["labels"], changed["name"]) == ({"a": "b"}, name)
        error = await tools.refused("runtime_snapshots", action="update", id=kept, name="x", ifLabels={})
        assert error["code"] == "snapshot_metadata_changed"
        assert (await tools.call("runtime_snapshots", action="get", id=kept))["name"] == name

        made = await tools.call("runtime_sandboxes_create", snapshot=kept)
        read = await tools.call("runtime_sandboxes_files_read", id=made["id"], path="kept")
        assert read["content"] == name
        await tools.call("runtime_sandboxes_manage", id=made["id"], action="delete")

        await tools.call("runtime_snapshots", action="delete", id=kept)
        error = await tools.refused("runtime_snapshots", action="get", id=kept)
        assert error["code"] == "not_found" and "action list" in error["hint"]
        error = await tools.refused("runtime_snapshots", action="create", id=kept)
        assert {issue["path"] for issue in error["details"]["issues"]} == {"id", "sandboxId"}
        error = await tools.refused("runtime_snapshot", action="list")
        assert error["hint"] == "It is called runtime_snapshots now."

    drive(form, server.url, server.key, keep)


def test_what_a_sandbox_reaches_is_changed(server: Server, box: Sandbox) -> None:
    async def change(tools: Tools) -> None:
        command = "curl -s -i -x http://127.0.0.1:10800 http://a.example.com/"
        rules = await tools.call("runtime_sandboxes_network", id=box.id, action="get")
        assert rules["internet"] is True and rules["enforced"] is True and "idempotencyKey" not in rules
        off = await tools.call("runtime_sandboxes_network", id=box.id, action="set", internet=False)
        assert (off["internet"], off["enforced"]) == (False, True) and off["idempotencyKey"]
        done = await tools.call("runtime_sandboxes_exec", id=box.id, command=command)
        assert done["stdout"].startswith("HTTP/1.1 403") and "internet-off" in done["stdout"]
        some = await tools.call(
            "runtime_sandboxes_network", id=box.id, action="set", internet=True, allow=["*.example.org"],
            deny=["192.0.2.0/24"], connect=["db.example.com:5432"],
        )  # fmt: skip
        assert (some["allow"], some["deny"]) == (["*.example.org"], ["192.0.2.0/24"])
        done = await tools.call("runtime_sandboxes_exec", id=box.id, command=command)
        assert "rule-not-allowed" in done["stdout"]
        on = await tools.call("runtime_sandboxes_network", id=box.id, action="set", internet=True)
        assert (on["allow"], on["deny"], on["connect"]) == ([], [], []), "a list that is left out is emptied"

        error = await tools.refused("runtime_sandboxes_network", id=box.id, action="set", allow=["https://a.example"])
        assert {issue["path"] for issue in error["details"]["issues"]} == {"internet", "allow[0]"}
        error = await tools.refused("runtime_sandboxes_network", id=box.id, action="get", internet=True)
        assert "get takes: id" in error["hint"]

    drive("http", server.url, server.key, change)


@pytest.mark.parametrize("form", ["http", "stdio"])
def test_a_session_is_a_way_into_one_sandbox_and_not_to_tools(server: Server, box: Sandbox, form: str) -> None:
    async def make(tools: Tools) -> None:
        tool = "runtime_sandboxes_previews"
        made = await tools.call(tool, id=box.id, action="session_create", sessionSeconds=600)
        token, session = made["token"], made["id"]
        assert token.startswith("rtsess_") and (made["apiUrl"], made["sandboxId"]) == (server.url, box.id)
        key = made["idempotencyKey"]
        again = await tools.call(tool, id=box.id, action="session_create", sessionSeconds=600, idempotencyKey=key)
        assert (again["id"], again["token"]) == (session, None)
        listed = await tools.call(tool, id=box.id, action="session_list")
        assert [(one["id"], one["state"]) for one in listed["data"]] == [(session, "active")]
        assert token not in json.dumps(listed)

        def use() -> str:
            return Sandbox.from_session(token, box.id, made["apiUrl"]).exec("echo in").stdout

        assert await asyncio.to_thread(use) == "in\n"
        called = {"name": "runtime_sandboxes_inspect", "arguments": {"id": box.id}}
        for method, params in [("ping", {}), ("initialize", HELLO), ("tools/list", {}), ("tools/call", called)]:
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            status, _, text = await asyncio.to_thread(
                raw, server, "POST", message, {"authorization": f"Bearer {token}"}
            )  # fmt: skip
            assert (status, json.loads(text)["error"]["code"]) == (403, "forbidden"), method
        call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called})
        environment = {"RUNTIME_API_URL": server.url, "RUNTIME_API_KEY": token}
        told = json.loads((await asyncio.to_thread(bridge, environment, call)).stdout)
        assert told["result"]["structuredContent"]["error"]["code"] == "forbidden"

        revoked = await tools.call(tool, id=box.id, action="session_revoke", sessionId=session)
        assert revoked["state"] == "revoked"
        with pytest.raises(AuthenticationError):
            await asyncio.to_thread(use)
        error = await tools.refused(tool, id=box.id, action="session_revoke", sessionId=str(uuid.uuid4()))
        assert error["code"] == "not_found" and "session_list" in error["hint"]
        error = await tools.refused(tool, id=box.id, action="session_create", sessionSeconds=59, origins=["*"])
        assert error["details"]["issues"][0]["path"] == "sessionSeconds"
        error = await tools.refused(tool, id=box.id, action="session_create", origins=["*"])
        assert error["details"]["issues"][0]["path"] == "origins[0]"
        error = await tools.refused(tool, id=box.id, action="session_create", port=80)
        assert {issue["path"] for issue in error["details"]["issues"]} == {"port"}

    drive(form, server.url, server.key, make)


@pytest.mark.parametrize("form", ["http", "stdio"])
def test_a_port_gets_a_web_address(server: Server, box: Sandbox, form: str) -> None:
    async def share(tools: Tools) -> None:
        tool = "runtime_sandboxes_previews"
        made = await tools.call(tool, id=box.id, action="create", port=8000, ttlSeconds=600)
        assert made["urlWithToken"] == f"{made['url']}?runtime_preview_token={made['token']}"
        assert urlsplit(made["url"]).port == urlsplit(server.url).port
        listed = await tools.call(tool, id=box.id, action="list")
        assert [(one["port"], one["id"]) for one in listed["data"]] == [(8000, made["id"])]
        rotated = await tools.call(tool, id=box.id, action="rotate", port=8000)
        assert rotated["id"] == made["id"] and rotated["token"] != made["token"]
        error = await tools.refused(tool, id=box.id, action="create", port=8000, expiresAt="soon", embedOrigins=["x"])
        assert {issue["path"] for issue in error["details"]["issues"]} == {"expiresAt", "embedOrigins[0]"}
        error = await tools.refused(tool, id=box.id, action="delete")
        assert error["details"]["issues"][0]["path"] == "port"
        assert (await tools.call(tool, id=box.id, action="delete", port=8000))["deleted"] is True
        error = await tools.refused(tool, id=box.id, action="rotate", port=8000)
        assert error["code"] == "not_found" and "list" in error["hint"]

    drive(form, server.url, server.key, share)


def test_a_key_does_its_work_once(server: Server, box: Sandbox) -> None:
    async def twice(tools: Tools) -> None:
        key = f"k-{uuid.uuid4().hex}"
        arguments = {"id": box.id, "command": "echo x >> once; cat once", "idempotencyKey": key}
        done = await tools.call("runtime_sandboxes_exec", **arguments)
        again = await tools.call("runtime_sandboxes_exec", **arguments)
        assert (done["stdout"], again["stdout"], again["replayed"]) == ("x\n", "x\n", True)
        assert again["idempotencyKey"] == key
        error = await tools.refused("runtime_sandboxes_exec", id=box.id, command="true", idempotencyKey=key)
        assert error["code"] == "idempotency_key_reused"
        error = await tools.refused("runtime_sandboxes_exec", id=box.id, command="true", idempotencyKey="no spaces")
        assert error["details"]["issues"][0]["path"] == "idempotencyKey"

    drive("http", server.url, server.key, twice)


@pytest.mark.parametrize("form", ["http", "stdio-handshake"])
def test_refusals_teach(server: Server, box: Sandbox, form: str) -> None:
    async def learn(tools: Tools) -> None:
        error = await tools.refused("runtime_sandbox_exec", id=box.id, command="true")
        assert (error["code"], error["hint"]) == ("not_found", "It is called runtime_sandboxes_exec now.")
        error = await tools.refused("runtime_nothing")
        assert error["code"] == "not_found" and "runtime_sandboxes_create" in error["hint"]
        error = await tools.refused("runtime_jobs", action="list")
        assert error["code"] == "unavailable" and "tools/list" in error["hint"]
        error = await tools.refused("runtime_sandboxes_exec", command=7, shell="zsh")
        assert {issue["path"] for issue in error["details"]["issues"]} == {"id", "command", "shell"}
        error = await tools.refused("runtime_sandboxes_exec", id=box.id)
        assert error["details"]["issues"][0]["path"] == "command" and "ls" in error["hint"]
        error = await tools.refused("runtime_sandboxes_exec", id=str(uuid.uuid4()), command="true")
        assert error["code"] == "not_found" and "runtime_sandboxes_list" in error["hint"]
        error = await tools.refused("runtime_sandboxes_exec", id="../../v1/me", command="true")
        assert error["code"] == "not_found"
        error = await tools.refused("runtime_sandboxes_create", env={"no-dash": "x"}, vcpu=99)
        assert error["code"] == "invalid_request"
        error = await tools.refused("runtime_sandboxes_manage", id=box.id, action="stop", days=3)
        assert "stop takes: id" in error["hint"]
        error = await tools.refused("runtime_sandboxes_files_read", id=box.id, path="missing")
        assert error["code"] == "file_not_found"
        error = await tools.refused("runtime_sandboxes_files_write", id=box.id, path="x", contentBase64="%")
        assert error["details"]["issues"][0]["path"] == "contentBase64"

    drive(form, server.url, server.key, learn)


def test_a_paused_sandbox_that_may_not_wake_says_how(server: Server, runtime: Runtime) -> None:
    with runtime.sandboxes.create(auto_wake=False) as sandbox:

        async def call(tools: Tools) -> None:
            await tools.call("runtime_sandboxes_manage", id=sandbox.id, action="pause")
            error = await tools.refused("runtime_sandboxes_exec", id=sandbox.id, command="true")
            assert error["code"] == "sandbox_paused"
            woken = await tools.call("runtime_sandboxes_manage", id=sandbox.id, action="wake")
            assert woken["state"] == "running"
            done = await tools.call("runtime_sandboxes_exec", id=sandbox.id, command="echo here")
            assert done["stdout"] == "here\n"

        drive("http", server.url, server.key, call)


@pytest.mark.parametrize("form", ["http", "stdio"])
def test_what_is_too_long_is_cut_and_says_so(server: Server, box: Sandbox, form: str) -> None:
    async def flood(tools: Tools) -> None:
        done = await tools.call("runtime_sandboxes_exec", id=box.id, command="seq 1 3000000; yes e | head -c 9000 >&2")
        assert done["outputCut"] is True and len(done["stdout"]) < 16_100 and len(done["stderr"]) == 9000
        assert done["stdout"].startswith("1\n2\n") and done["stdout"].endswith("2999999\n3000000\n")
        assert "characters left out" in done["stdout"]

        await tools.call("runtime_sandboxes_exec", id=box.id, command="seq 1 100000 > numbers")
        read = await tools.call("runtime_sandboxes_files_read", id=box.id, path="numbers")
        assert read["contentCut"] is True and len(read["content"]) <= 64_000
        rest = await tools.call("runtime_sandboxes_files_read", id=box.id, path="numbers", startLine=read["nextLine"])
        assert rest["content"].startswith(f"{read['nextLine']}\n")

        await tools.call("runtime_sandboxes_exec", id=box.id, command="mkdir many; cd many; touch $(seq 1 400)")
        listed = await tools.call("runtime_sandboxes_files_list", id=box.id, path="many")
        assert listed["outputCut"] is True and 0 < len(listed["data"]) <= 200

        started = await tools.call("runtime_sandboxes_exec", id=box.id, command="seq 1 20000", background=True)
        text, cursor = "", 0
        while True:
            polled = await tools.call(
                "runtime_sandboxes_process", id=box.id, action="read", processId=started["processId"], cursor=cursor,
                waitMs=1000,
            )  # fmt: skip
            assert len(polled["stdout"]) <= 16_000
            text += polled["stdout"]
            if polled["nextCursor"] == cursor and polled["process"]["state"] != "running":
                break
            cursor = polled["nextCursor"]
        assert text == "".join(f"{n}\n" for n in range(1, 20_001))

    drive(form, server.url, server.key, flood)


@forms
def test_a_cancelled_call_ends_its_command(server: Server, box: Sandbox, form: str) -> None:
    async def cancel(tools: Tools) -> None:
        mark = uuid.uuid4().hex
        call = asyncio.create_task(tools.call("runtime_sandboxes_exec", id=box.id, command=f"echo {mark}; sleep 300"))

        async def state() -> Optional[str]:
            listed = await tools.call("runtime_sandboxes_process", id=box.id, action="list")
            return next((one["state"] for one in listed["data"] if mark in one["command"]), None)

        async def running() -> bool:
            return await state() == "running"

        async def ended() -> bool:
            return await state() not in (None, "running")

        await until(running)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(ended)
        # And the client goes on.
        done = await tools.call("runtime_sandboxes_exec", id=box.id, command="echo on")
        assert done["stdout"] == "on\n"

    drive(form, server.url, server.key, cancel)


def new_key(server: Server, *options: str) -> str:
    program = [os.environ["RUNTIME_BIN"], "keys", "create", "--name", "mcp-test", "--data-dir", str(server.directory)]
    return subprocess.run([*program, *options], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("form", ["http-handshake", "stdio"])
def test_two_keys_do_not_see_each_other(server: Server, form: str) -> None:
    mine, theirs = new_key(server), new_key(server)
    with Runtime(mine, server.url) as client, client.sandboxes.create() as sandbox:

        async def look(tools: Tools) -> None:
            found = await tools.call("runtime_sandboxes_list")
            assert found["data"] == []
            tries: list[tuple[str, dict[str, Any]]] = [
                ("runtime_sandboxes_list", {}),
                ("runtime_sandboxes_inspect", {}),
                ("runtime_sandboxes_exec", {"command": "true"}),
                ("runtime_sandboxes_files_read", {"path": "/etc/passwd"}),
                ("runtime_sandboxes_process", {"action": "list"}),
                ("runtime_sandboxes_fork", {}),
                ("runtime_sandboxes_network", {"action": "get"}),
                ("runtime_sandboxes_network", {"action": "set", "internet": False}),
                ("runtime_sandboxes_previews", {"action": "session_create"}),
                ("runtime_sandboxes_manage", {"action": "delete"}),
            ]
            for tool, arguments in tries:
                error = await tools.refused(tool, id=sandbox.id, **arguments)
                assert error["code"] == "not_found", tool
            error = await tools.refused("runtime_snapshots", action="create", sandboxId=sandbox.id)
            assert error["code"] == "not_found"

        drive(form, server.url, theirs, look)
        assert sandbox.exec("echo here").stdout == "here\n"


def test_another_client_cancels_nothing_of_mine(server: Server, box: Sandbox) -> None:
    """Requests are numbered by each client from nothing: the number alone must not name one."""
    _, session = post(server, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO})
    assert session

    async def run() -> dict[str, Any]:
        async with connected("http-handshake", server.url, server.key) as tools:
            return dict(await tools.call("runtime_sandboxes_exec", id=box.id, command="sleep 2; echo whole"))

    async def both() -> dict[str, Any]:
        task = asyncio.create_task(run())
        while not task.done():
            for number in range(6):
                cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
                await asyncio.to_thread(post, server, cancelled, {"mcp-session-id": session})
        return await task

    assert asyncio.run(both())["stdout"] == "whole\n"


def test_a_key_that_may_only_read_changes_nothing(server: Server, box: Sandbox) -> None:
    key = new_key(server, "--read-only")

    async def look(tools: Tools) -> None:
        found = await tools.call("runtime_sandboxes_list", id=box.id)
        assert [one["id"] for one in found["data"]] == [box.id]
        tries: list[tuple[str, dict[str, Any]]] = [
            ("runtime_sandboxes_create", {}),
            ("runtime_sandboxes_exec", {"id": box.id, "command": "true"}),
            ("runtime_sandboxes_manage", {"id": box.id, "action": "stop"}),
            ("runtime_sandboxes_fork", {"id": box.id}),
            ("runtime_sandboxes_network", {"id": box.id, "action": "set", "internet": False}),
            ("runtime_sandboxes_previews", {"id": box.id, "action": "session_create"}),
            ("runtime_sandboxes_previews", {"id": box.id, "action": "create", "port": 80}),
            ("runtime_snapshots", {"action": "create", "sandboxId": box.id}),
            ("runtime_sandboxes_files_read", {"id": box.id, "path": "/etc/passwd"}),
        ]
        for tool, arguments in tries:
            error = await tools.refused(tool, **arguments)
            assert error["code"] == "forbidden", tool

    drive("http", server.url, key, look)


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "hand", "version": "1"}}


def post(server: Server, body: Any, headers: Optional[dict[str, str]] = None) -> tuple[int, str]:
    """A request by hand: its status, and the session or the text of the answer."""
    status, answer, text = raw(server, "POST", body, headers)
    return status, answer.get("mcp-session-id", text)


def raw(server: Server, method: str, body: Any, headers: Optional[dict[str, str]] = None) -> tuple[int, Any, str]:
    target = urlsplit(server.url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port or 80, timeout=120)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"authorization": f"Bearer {server.key}", "content-type": "application/json", **(headers or {})}
    connection.request(method, "/mcp", data, {name: value for name, value in sent.items() if value})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers, text


def test_what_is_no_message_is_refused(server: Server) -> None:
    for body, code in [
        (b"{", -32700),
        (b"", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0"}', -32600),
    ]:
        status, _, text = raw(server, "POST", body)
        assert (status, json.loads(text)["error"]["code"]) == (400, code), body[:40]
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert raw(server, "POST", ping)[0] == 200
    status, headers, text = raw(server, "POST", ping, {"authorization": ""})
    assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="runtime"')
    assert json.loads(text)["error"]["code"] == "unauthorized"
    assert raw(server, "POST", ping, {"authorization": "Bearer rtcloud_nobody"})[0] == 401
    assert raw(server, "GET", b"")[0] == 405
    assert raw(server, "DELETE", b"")[0] == 405
    # It is refused by what it says of itself, before any of it has come.
    status, _, text = raw(server, "POST", b"", {"content-length": str(9 << 20)})
    assert (status, json.loads(text)["error"]["code"]) == (413, "request_too_large")
    odds: list[Any] = [{"name": 7}, {}, None, [], {"name": "runtime_account", "arguments": []}]
    for odd in odds:
        status, _, text = raw(server, "POST", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": odd})
        assert status < 500, text
    # And it still serves.
    assert raw(server, "POST", ping)[0] == 200


def bridge(environment: dict[str, str], *lines: str) -> subprocess.CompletedProcess[str]:
    """`runtime mcp` with lines for input, to its end."""
    around = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment}
    program = [os.environ["RUNTIME_BIN"], "mcp"]
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.run(program, input=text, env=around, capture_output=True, text=True, timeout=200)


def test_the_bridge_answers_each_line(server: Server) -> None:
    environment = {"RUNTIME_API_URL": server.url, "RUNTIME_API_KEY": server.key}
    done = bridge(
        environment, "{", "", "[]", '{"jsonrpc":"2.0","id":"a","method":"ping"}', '{"jsonrpc":"2.0","method":"x"}'
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["error"]["code"] for answer in answers if "error" in answer] == [-32700, -32600]
    assert [answer["id"] for answer in answers if "result" in answer] == ["a"]


def test_a_server_that_is_away_is_told_where_it_is_seen(server: Server) -> None:
    # A port that was free a moment ago.
    away = {"RUNTIME_API_URL": "http://127.0.0.1:9", "RUNTIME_API_KEY": server.key}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "runtime_account"}}
    done = bridge(away, json.dumps(call), '{"jsonrpc":"2.0","id":2,"method":"tools/list"}')
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert answers[1]["result"]["isError"] is True
    assert "runtime serve" in answers[1]["result"]["structuredContent"]["error"]["hint"]
    assert "cannot connect" in answers[2]["error"]["message"]
    wrong = bridge({**away, "RUNTIME_API_URL": server.url, "RUNTIME_API_KEY": "rtcloud_nobody"}, json.dumps(call))
    assert json.loads(wrong.stdout)["result"]["structuredContent"]["error"]["code"] == "unauthorized"
    none = bridge({"RUNTIME_API_URL": server.url})
    assert none.returncode == 1 and "RUNTIME_API_KEY" in none.stderr and none.stdout == ""


@pytest.mark.parametrize("form", ["stdio", "stdio-handshake"])
@pytest.mark.parametrize("fault", [LOSE_REQUEST, LOSE_ANSWER, REFUSE, CUT, TWICE])
def test_the_bridge_repeats_nothing_over_a_bad_line(server: Server, box: Sandbox, form: str, fault: str) -> None:
    async def run(tools: Tools) -> None:
        done = await tools.call("runtime_sandboxes_exec", id=box.id, command="echo x >> once; cat once; seq 1 100")
        assert done["stdout"] == "x\n" + "".join(f"{n}\n" for n in range(1, 101))

    with FaultyNetwork(server.url, first(fault, lambda request: b"tools/call" in request.body)) as network:
        drive(form, network.url, server.key, run)
        assert network.done(fault) == 1
    assert box.files.read_text("/workspace/once") == "x\n"
