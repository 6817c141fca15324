"""Requests, attempts and answers, against a server that answers what each test wants."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from withruntime import (
    VERSION,
    AccountBlockedError,
    AuthenticationError,
    ConflictError,
    ConnectionError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    Runtime,
    RuntimeError,
    Sandbox,
    ServiceUnavailableError,
)

from .forms import both, drive, items, settle
from .player import Answer, Player, Request, answer, chunked, drop, events, raw, refusal

BOX = {"id": "8a1f9c2e-0d1b-4c3a-9e8f-7a6b5c4d3e2f", "state": "running"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits are noted, not waited."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("withruntime._io_async.sleep", sleep)
    monkeypatch.setattr("withruntime._io_sync.sleep", slept.append)
    return slept


async def me(client: Any) -> Any:
    return await settle(client.me())


async def create(client: Any, **fields: Any) -> Any:
    return await settle(client.sandboxes.create(**fields))


@both
def test_a_request_says_who_asks_for_what(form: str) -> None:
    with Player([answer(BOX)]) as player:
        drive(form, player.url, lambda client: create(client, memory_mib=512, name="x", env=None))
        request = player.requests[0]
    assert (request.method, request.target) == ("POST", "/v1/sandboxes")
    assert request.json == {"memoryMiB": 512, "name": "x"}
    assert request.headers["authorization"] == "Bearer rtcloud_test"
    assert request.headers["x-runtime-client"] == f"sdk-python/{VERSION}"
    assert request.headers["accept"] == "application/json"
    assert request.headers["prefer"] == "wait=60"
    assert len(request.headers["idempotency-key"]) == 36


@both
def test_a_get_has_no_key_and_no_body(form: str) -> None:
    with Player([answer({"orgId": "o"})]) as player:
        drive(form, player.url, me)
        assert player.keys == [None] and player.requests[0].body == b""


@both
@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_failure_is_sent_again_with_the_same_key(form: str, status: int, quick: list[float]) -> None:
    with Player([drop(), refusal(status, "odd"), answer(BOX)]) as player:
        drive(form, player.url, create)
        assert len(player.requests) == 3 and len(set(player.keys)) == 1 and player.keys[0]
        assert {request.body for request in player.requests} == {b"{}"}
    assert len(quick) == 2


@both
def test_the_last_failure_is_raised(form: str) -> None:
    with Player([drop()]) as player:
        with pytest.raises(ConnectionError) as told:
            drive(form, player.url, create)
        assert told.value.code == "connection_error" and told.value.status == 0
        assert told.value.idempotency_key == player.keys[0]
        assert len(player.requests) == 5
    with Player([refusal(503, "host_unavailable")]) as player:
        with pytest.raises(ServiceUnavailableError):
            drive(form, player.url, me, max_retries=1)
        assert len(player.requests) == 2


@both
def test_a_server_that_is_not_there_is_told_with_its_address(form: str, quick: list[float]) -> None:
    with Player([]) as player:
        url = player.url
    with pytest.raises(ConnectionError, match=url.replace(".", r"\.")):
        drive(form, url, me)
    assert len(quick) == 4, "the first resend is at once, then four waits"


@both
@pytest.mark.parametrize(
    "status, code, kind",
    [
        (400, "invalid_request", InvalidRequestError),
        (413, "file_too_large", InvalidRequestError),
        (422, "idempotency_key_reused", InvalidRequestError),
        (401, "unauthorized", AuthenticationError),
        (403, "forbidden", PermissionDeniedError),
        (404, "not_found", NotFoundError),
        (409, "name_taken", ConflictError),
        (500, "internal_error", ServiceUnavailableError),
        (501, "unavailable", ServiceUnavailableError),
        (402, "account_blocked", AccountBlockedError),
        (402, "payment_required", RuntimeError),
        (302, "moved", RuntimeError),
    ],
)
def test_a_refusal_is_an_exception_by_its_status(form: str, status: int, code: str, kind: type) -> None:
    refused = refusal(status, code, hint="Do this.", details={"field": "x"})
    with Player([refused]) as player:
        with pytest.raises(RuntimeError) as told:
            drive(form, player.url, me)
        assert len(player.requests) == 1
    error = told.value
    assert type(error) is kind
    assert (error.code, error.status, error.hint, error.request_id) == (code, status, "Do this.", "req_test")
    assert error.details == {"field": "x"}
    assert str(error) == f"[{code}] {code}.\nHint: Do this.\nRequest: req_test"


@both
def test_a_refusal_that_is_no_json_is_shown(form: str) -> None:
    with Player([answer(b"<html>teapot</html>" + b"x" * 1000, 418)]) as player, pytest.raises(RuntimeError) as told:
        drive(form, player.url, me)
    assert told.value.message.startswith("<html>teapot") and len(told.value.message) == 500


@both
def test_a_long_wait_is_told_and_not_slept(form: str, quick: list[float]) -> None:
    with Player([refusal(429, "rate_limited", {"retry-after": "3600"})]) as player:
        with pytest.raises(RateLimitError) as told:
            drive(form, player.url, me)
    assert told.value.retry_after_ms == 3_600_000 and told.value.retryable and quick == []


@both
def test_room_is_waited_for_with_the_same_key(form: str, quick: list[float]) -> None:
    waited: list[tuple[str, float]] = []
    script = [refusal(409, "no_capacity"), refusal(429, "quota_exceeded"), answer(BOX)]
    with Player(script) as player:
        note = lambda error, seconds: waited.append((error.code, seconds))  # noqa: E731
        drive(form, player.url, lambda client: create(client, on_capacity_wait=note))
        assert len(player.requests) == 3 and len(set(player.keys)) == 1
    assert [code for code, _ in waited] == ["no_capacity", "quota_exceeded"]
    assert [seconds for _, seconds in waited] == quick


@both
@pytest.mark.parametrize("how", [{"wait_for_capacity": 0}, {}])
def test_room_is_not_waited_for_where_nobody_wants_to(form: str, how: dict[str, Any], quick: list[float]) -> None:
    with Player([refusal(409, "no_capacity")]) as player:
        with pytest.raises(ConflictError):
            drive(form, player.url, lambda client: create(client, **how), wait_for_capacity=0 if not how else 120)
        assert len(player.requests) == 1 and quick == []


@both
def test_a_late_answer_is_read_behind_its_blanks(form: str) -> None:
    late = {"runtime-late-answer": "true"}
    with Player([chunked(b" ", b"\n  ", json.dumps(BOX).encode(), headers=late)]) as player:
        box = drive(form, player.url, create)
    assert box.id == BOX["id"]


@both
def test_a_late_refusal_has_its_own_status(form: str) -> None:
    body = json.dumps({"error": {"code": "time_limit_too_short", "status": 409, "message": "m", "requestId": "r"}})
    with Player([chunked(b"  ", body.encode(), headers={"runtime-late-answer": "true"})]) as player:
        with pytest.raises(ConflictError) as told:
            drive(form, player.url, create)
        assert told.value.code == "time_limit_too_short" and len(player.requests) == 1


@both
def test_only_a_late_answer_can_be_a_refusal_with_200(form: str) -> None:
    with Player([answer({"error": {"code": "x", "status": 409}})]) as player:
        assert drive(form, player.url, me) == {"error": {"code": "x", "status": 409}}
    with Player([chunked(b'{"error":{"status":409},"id":"x"}', headers={"runtime-late-answer": "true"})]) as player:
        assert drive(form, player.url, me)["id"] == "x"


@both
def test_a_late_answer_that_is_no_json_is_a_bad_gateway(form: str) -> None:
    with Player([chunked(b" oops", headers={"runtime-late-answer": "true"})]) as player:
        with pytest.raises(ServiceUnavailableError) as told:
            drive(form, player.url, me)
        assert told.value.status == 502 and len(player.requests) == 5


@both
def test_an_answer_that_breaks_off_is_asked_for_again(form: str) -> None:
    with Player([chunked(b'{"id":', whole=False), answer(BOX)]) as player:
        drive(form, player.url, create)
        assert len(player.requests) == 2 and len(set(player.keys)) == 1


@both
def test_a_silent_server_is_asked_again_with_the_same_key(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form_module = "_async" if form == "async" else "_sync"
    monkeypatch.setattr(f"withruntime.{form_module}._transport.ATTEMPT_SECONDS", 0.2)
    silent = Answer((b"",), gate=None)
    with Player([silent, answer(BOX)]) as player:
        drive(form, player.url, create)
        assert len(player.requests) == 2 and len(set(player.keys)) == 1


@both
def test_a_call_has_a_deadline(form: str) -> None:
    began = time.monotonic()
    with Player([Answer((b"",))]) as player, pytest.raises(RuntimeError) as told:
        drive(form, player.url, create, timeout=0.3)
    assert told.value.code == "request_timeout" and told.value.idempotency_key
    assert time.monotonic() - began < 5


@both
def test_connections_are_kept_and_a_dead_one_is_replaced_unnoticed(form: str, quick: list[float]) -> None:
    script = [answer({"n": 1}), answer({"n": 2}), Answer(answer({"n": 3}).parts, close=True), answer({"n": 4})]

    async def four(client: Any) -> list[Any]:
        return [(await settle(client.me()))["n"] for _ in range(4)]

    with Player(script) as player:
        assert drive(form, player.url, four) == [1, 2, 3, 4]
        assert player.connections == 2 and quick == []


@both
@pytest.mark.parametrize(
    "bytes_", [b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"x" * 200_000, b"\x00\xff" * 10]
)
def test_what_is_no_http_is_a_failure_and_no_crash(form: str, bytes_: bytes) -> None:
    with Player([raw(bytes_)]) as player, pytest.raises(ConnectionError):
        drive(form, player.url, me)


@both
def test_a_place_is_waited_for_and_told(form: str) -> None:
    queued: list[int] = []
    gate = threading.Event()

    async def three(client: Any) -> None:
        if form == "async":
            tasks = [asyncio.ensure_future(client.me()) for _ in range(3)]
            while len(queued) < 2:
                await asyncio.sleep(0.01)
            gate.set()
            await asyncio.gather(*tasks)
            return
        threads = [threading.Thread(target=client.me) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(queued) < 2:
            await asyncio.sleep(0.01)
        gate.set()
        for thread in threads:
            thread.join()

    with Player([Answer((b"", *answer({}).parts), gate=gate)]) as player:
        drive(form, player.url, three, max_connections=1, on_queued=queued.append)
        assert len(player.requests) == 3 and player.connections == 1
    assert queued == [1, 2]


@both
def test_an_unknown_field_is_named_with_the_likely_one(form: str) -> None:
    with Player([]) as player:
        with pytest.raises(TypeError, match=r"create\(\) got .* 'memroy_mib'.* 'memory_mib'"):
            drive(form, player.url, lambda client: create(client, memroy_mib=1))
        assert player.requests == []


@both
def test_a_start_that_takes_long_is_waited_for(form: str) -> None:
    starting = {**BOX, "state": "starting"}
    with Player([answer(starting), answer(BOX)]) as player:
        assert drive(form, player.url, create).state == "running"
        assert player.requests[1].target.endswith("?waitFor=running&timeoutSeconds=60")
    stopped = {**BOX, "state": "stopped", "stopReason": "startup_failed"}
    with Player([answer(starting), answer(stopped)]) as player, pytest.raises(RuntimeError) as told:
        drive(form, player.url, create)
    assert told.value.code == "start_failed" and "startup_failed" in told.value.message
    with Player([answer(starting)]) as player:
        assert drive(form, player.url, lambda client: create(client, wait=False)).state == "starting"
        assert "prefer" not in player.requests[0].headers and len(player.requests) == 1


# --- streams ---


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


# --- files ---


def content(data: bytes, length: int, digest: bytes = b"") -> Answer:
    headers = {"x-content-length": str(length)}
    if digest:
        headers["x-content-sha256"] = hashlib.sha256(digest).hexdigest()
    return answer(data, headers=headers)


@both
def test_a_short_read_is_done_again(form: str) -> None:
    async def read(client: Any) -> Any:
        return await settle((await settle(client.sandboxes.get(BOX["id"]))).files.read("/workspace/x"))

    cut = chunked(b"ab", headers={"x-content-length": "4"}, whole=False)
    with Player([answer(BOX), cut, content(b"abXd", 4, b"abcd"), content(b"abcd", 4, b"abcd")]) as player:
        assert drive(form, player.url, read) == b"abcd"
        assert len(player.requests) == 4
    with Player([answer(BOX), content(b"abc", 4)]) as player:
        with pytest.raises(RuntimeError) as told:
            drive(form, player.url, read)
        assert len(player.requests) == 4
    assert told.value.code == "download_incomplete" and told.value.details == {"received": 3, "expected": 4}


@both
def test_a_short_stream_is_an_error_at_its_end(form: str) -> None:
    got: list[bytes] = []

    async def read(client: Any) -> None:
        files = (await settle(client.sandboxes.get(BOX["id"]))).files
        if form == "async":
            async for piece in files.read_stream("/workspace/x"):
                got.append(piece)
        else:
            got.extend(iter_noting(files.read_stream("/workspace/x"), got))

    def iter_noting(pieces: Any, into: list[bytes]) -> list[bytes]:
        for piece in pieces:
            into.append(piece)
        return []

    with Player([answer(BOX), chunked(b"ab", headers={"x-content-length": "4"}, whole=False)]) as player:
        with pytest.raises(RuntimeError) as told:
            drive(form, player.url, read)
        assert len(player.requests) == 2, "a stream is never begun again"
    assert b"".join(got) == b"ab" and told.value.code == "download_incomplete"


@both
def test_a_download_that_fails_leaves_nothing(form: str, tmp_path: Path) -> None:
    async def download(client: Any) -> None:
        files = (await settle(client.sandboxes.get(BOX["id"]))).files
        await settle(files.download("/workspace/x", tmp_path / "x"))

    about = answer({"exists": True, "type": "file", "mode": "0640", "path": "/workspace/x"})
    with Player([answer(BOX), about, content(b"abc", 4)]) as player, pytest.raises(RuntimeError):
        drive(form, player.url, download)
    assert list(tmp_path.iterdir()) == [] or [p.name for p in tmp_path.iterdir()] == ["config"]
    with Player([answer(BOX), about, content(b"abc", 4), content(b"abcd", 4)]) as player:
        drive(form, player.url, download)
    assert (tmp_path / "x").read_bytes() == b"abcd" and (tmp_path / "x").stat().st_mode & 0o777 == 0o640


@both
@pytest.mark.parametrize("fails", [False, True])
def test_a_large_file_goes_in_parts_or_not_at_all(form: str, fails: bool) -> None:
    data = bytes(range(256)) * 10_000
    parts: dict[int, bytes] = {}
    done: list[str] = []
    lock = threading.Lock()

    def script(request: Request) -> Answer:
        path, _, query = request.target.partition("?")
        if path.endswith("/uploads"):
            assert request.json == {
                "path": "/workspace/big",
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "mode": "755",
            }
            return answer({"uploadId": "u1", "chunkBytes": 1048576, "mode": "755"})
        if query.startswith("offset="):
            offset = int(query[7:])
            if fails and offset:
                return refusal(409, "disk_full")
            with lock:
                parts[offset] = request.body
            return answer({"received": len(request.body)})
        if "/uploads/u1" in path:
            done.append(path.rpartition(":")[2])
            return answer({})
        return answer(BOX)

    async def write(client: Any) -> Any:
        files = (await settle(client.sandboxes.get(BOX["id"]))).files
        return await settle(files.write("/workspace/big", data, 0o755))

    with Player(script) as player:
        if fails:
            with pytest.raises(ConflictError):
                drive(form, player.url, write)
            assert done == ["abort"]
            return
        assert drive(form, player.url, write) == {"path": "/workspace/big", "size": len(data)}
        assert len(set(player.keys[1:])) == len(player.keys[1:]), "each part is a change of its own"
    assert done == ["commit"]
    assert b"".join(parts[offset] for offset in sorted(parts)) == data


@both
@pytest.mark.parametrize("mode", [-1, 0o1000, True])
def test_a_mode_is_a_number_of_permissions(form: str, mode: int) -> None:
    async def write(client: Any) -> None:
        files = (await settle(client.sandboxes.get(BOX["id"]))).files
        await settle(files.write("/workspace/x", b"", mode))

    with Player([answer(BOX)]) as player, pytest.raises(ValueError):
        drive(form, player.url, write)


# --- life ---


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
