"""What a sandbox does at its ends, against a server that answers what each test wants."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from withruntime import (
    ConnectionError,
    Runtime,
    Sandbox,
)

from .forms import BOX, both, create, drive, me, settle
from .player import Answer, Player, Request, answer, drop, raw, refusal

pytestmark = pytest.mark.usefixtures("quick")


@both
@pytest.mark.parametrize(
    "keep, info, ends",
    [
        (False, {}, "DELETE"),
        (True, {}, "POST"),
        (False, {"reused": True}, "POST"),
        (True, {"state": "stopped"}, None),
    ],
)
def test_the_end_of_a_block(form: str, keep: bool, info: dict[str, Any], ends: Any) -> None:
    async def block(client: Any) -> None:
        box = await create(client, keep=keep, wait=False)
        if form == "async":
            async with box:
                pass
        else:
            with box:
                pass

    # What goes wrong at the end is nobody's news.
    with Player([answer({**BOX, **info}), refusal(500, "internal_error")]) as player:
        drive(form, player.url, block)
        last = player.requests[1:]
    assert [request.method for request in last] == ([ends] if ends else [])
    if ends == "POST":
        assert last[0].target.endswith(":stop") and "prefer" not in last[0].headers


def test_the_error_of_a_block_is_not_hidden() -> None:
    with Player([answer(BOX), drop()]) as player, Runtime("k", player.url) as client:
        with pytest.raises(ZeroDivisionError), client.sandboxes.create():
            _ = 1 / 0


@both
def test_keeping_alive_extends_what_is_short(form: str) -> None:
    import datetime

    ends = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=100)).isoformat()[:23] + "Z"
    extended = threading.Event()
    asked: list[int] = []

    def script(request: Request) -> Answer:
        if request.target.endswith(":extend"):
            asked.append(request.json["seconds"])
            extended.set()
        return answer({**BOX, "endsAt": ends})

    async def keep(client: Any) -> None:
        box = await settle(client.sandboxes.get(BOX["id"]))
        stop = box.keep_alive(margin_seconds=600)
        while not extended.is_set():
            await asyncio.sleep(0.01)
        stop()

    with Player(script) as player:
        drive(form, player.url, keep)
    assert len(asked) == 1 and 495 <= asked[0] <= 501


@both
def test_bulk_calls_go_on_after_a_failure(form: str) -> None:
    def script(request: Request) -> Answer:
        if request.method == "GET":
            assert "label=run%3Ax" in request.target and "limit=100" in request.target
            first = "cursor=" not in request.target
            data = [{"id": f"id-{n}", "state": "running"} for n in (range(3) if first else range(3, 5))]
            return answer({"data": data, "nextCursor": "c" if first else None})
        return refusal(409, "sandbox_in_use") if "id-1" in request.target else answer(BOX)

    with Player(script) as player:
        done = drive(form, player.url, lambda client: settle(client.sandboxes.stop_all(labels={"run": "x"})))
        targets = [request.target for request in player.requests]
    assert done["stopped"] == ["id-0", "id-2", "id-3", "id-4"]
    assert [(one["id"], one["error"].code) for one in done["failed"]] == [("id-1", "sandbox_in_use")]
    assert targets[1].endswith("cursor=c"), "every page is read before the first is stopped"


def test_a_forked_child_has_connections_of_its_own() -> None:
    with Player([answer({"orgId": "o"})]) as player, Runtime("k", player.url) as client:
        client.me()
        child = os.fork()
        if child == 0:
            os._exit(0 if client.me() == {"orgId": "o"} else 1)
        assert os.waitpid(child, 0)[1] == 0
        client.me()
        assert player.connections == 2 and len(player.requests) == 3


def test_a_session_reaches_its_sandbox_with_its_token() -> None:
    result = {"exitCode": 0, "stdout": "", "stderr": ""}
    with Player([answer(result)]) as player:
        Sandbox.from_session("rtsess_x", BOX["id"], api_url=player.url).exec("true")
        assert player.requests[0].headers["authorization"] == "Bearer rtsess_x"


def test_a_proxy_is_asked_for_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("sync", "async"):
        with Player([Answer((b"HTTP/1.1 200 Connection established\r\n\r\n",)), answer({"orgId": "o"})]) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//user:pw@"))
            assert drive(form, "http://127.0.0.1:9", me) == {"orgId": "o"}
            asked = proxy.requests[0]
            assert (asked.method, asked.target) == ("CONNECT", "127.0.0.1:9")
            assert asked.headers["proxy-authorization"] == "Basic dXNlcjpwdw=="
            assert "authorization" not in asked.headers, "the key is for the server alone"
        with Player([raw(b"HTTP/1.1 407 Who are you\r\n\r\n")]) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//user:pw@"))
            with pytest.raises(ConnectionError, match="407 Who are you") as told:
                drive(form, "http://127.0.0.1:9", me, max_retries=0)
            assert "pw" not in str(told.value).replace("http", "")
