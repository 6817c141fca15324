"""Output as it comes, over connections that do not last."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from withruntime import (
    ConnectionError,
    NotFoundError,
    RuntimeError,
)

from .forms import BOX, both, drive, items, settle
from .player import Answer, Player, Request, answer, chunked, drop, events, refusal

pytestmark = pytest.mark.usefixtures("quick")


def line(stream: str, data: str, offset: int) -> dict[str, Any]:
    return {"type": stream, "data": data, "offset": offset}


START = {"type": "start", "processId": "p1"}
EXIT = {"type": "exit", "exitCode": 0, "state": "exited", "timedOut": False, "durationMs": 5}


async def stream(client: Any) -> list[dict[str, Any]]:
    box = await settle(client.sandboxes.get(BOX["id"]))
    return await items(box.exec_stream("x"))


@both
def test_a_stream_that_breaks_goes_on_where_it_was(form: str) -> None:
    script = [
        answer(BOX),
        events(START, line("stdout", "grün", 0), whole=False),
        refusal(503, "host_unavailable"),
        drop(),
        events(line("stdout", "n", 4), line("stderr", "!", 5), {"type": "continue", "processId": "p1", "cursor": 6}),
        events(line("stdout", "late", 20), EXIT),
    ]
    with Player(script) as player:
        got = drive(form, player.url, stream)
        targets = [request.target.partition("?")[2] for request in player.requests[2:]]
    assert targets == ["cursor=5&follow=true"] * 3 + ["cursor=6&follow=true"]
    assert [event["type"] for event in got] == ["start", "stdout", "stderr", "truncated", "stdout", "exit"]
    assert got[0]["process_id"] == "p1"
    assert got[3]["dropped_bytes"] == 14 and got[3]["resumeAt"] == 20
    assert got[-1]["exit_code"] == 0


@both
def test_an_error_in_a_stream_is_followed_on_or_raised(form: str) -> None:
    busy = {"type": "error", "error": {"code": "guest_busy", "status": 503, "message": "m"}, "cursor": 3}
    gone = {"type": "error", "error": {"code": "not_found", "status": 404, "message": "m"}, "cursor": 3}
    with Player([answer(BOX), events(START, busy), events(EXIT)]) as player:
        drive(form, player.url, stream)
        assert "cursor=3" in player.requests[2].target
    with Player([answer(BOX), events(START, gone)]) as player, pytest.raises(NotFoundError):
        drive(form, player.url, stream)


@both
def test_a_stream_that_never_says_anything_is_given_up(form: str) -> None:
    with Player([answer(BOX), events(START), events()]) as player:
        with pytest.raises(ConnectionError):
            drive(form, player.url, stream)
        assert len(player.requests) == 6, "the exec, and four bodies with nothing in them"


@both
@pytest.mark.parametrize("first", [chunked(whole=False), events(), events(line("stdout", "x", 0))])
def test_a_stream_must_begin_with_its_process(form: str, first: Answer) -> None:
    with Player([answer(BOX), first]) as player, pytest.raises(RuntimeError) as told:
        drive(form, player.url, stream)
    assert told.value.code in ("connection_error", "stream_failed")


@both
def test_following_has_a_time_of_its_own(form: str) -> None:
    async def follow(client: Any) -> Any:
        process = await settle((await settle(client.sandboxes.get(BOX["id"]))).process("p1"))
        return await items(process.output(7, timeout_seconds=0.3))

    quiet = Answer(chunked(b"\n").parts[:2], gate=None)
    with Player([answer(BOX), answer({"id": "p1"}), quiet]) as player, pytest.raises(RuntimeError) as told:
        drive(form, player.url, follow)
    assert told.value.code == "request_timeout" and told.value.details == {"cursor": 7}


@both
def test_who_stops_waiting_stops_the_command(form: str) -> None:
    signals: list[Any] = []
    gate = threading.Event()

    def script(request: Request) -> Answer:
        if request.target.endswith(":signal"):
            signals.append(request.json)
            return answer({})
        if request.target.endswith(":exec"):
            started = chunked(json.dumps(START).encode() + b"\n" + json.dumps(line("stdout", "x", 0)).encode() + b"\n")
            return Answer((started.parts[0] + started.parts[1], b""), gate=gate)
        return answer(BOX)

    async def run(client: Any) -> None:
        box = await settle(client.sandboxes.get(BOX["id"]))
        if form == "sync":

            def interrupt(text: str) -> None:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                box.exec("x", on_stdout=interrupt)
            return
        seen = asyncio.Event()
        task = asyncio.ensure_future(box.exec("x", on_stdout=lambda text: seen.set()))
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Player(script) as player:
        drive(form, player.url, run)
    gate.set()
    assert signals == [{"signal": "SIGTERM"}]


@both
def test_input_is_sent_on_from_where_it_was_taken(form: str) -> None:
    taken: list[tuple[int, bytes, bool]] = []

    def script(request: Request) -> Answer:
        import base64

        if not request.target.endswith(":write"):
            return answer(BOX if request.method == "GET" and "processes" not in request.target else {"id": "p1"})
        told = request.json
        data = base64.b64decode(told["base64"])
        taken.append((told["offset"], data, told["eof"]))
        return answer({"offset": told["offset"] + min(len(data), 3 if len(taken) != 2 else 0)})

    async def write(client: Any) -> None:
        process = await settle((await settle(client.sandboxes.get(BOX["id"]))).process("p1"))
        await settle(process.write("abcdefg", eof=True))

    with Player(script) as player:
        drive(form, player.url, write)
    assert taken == [(0, b"abcdefg", True), (3, b"defg", True), (3, b"defg", True), (6, b"g", True)]
