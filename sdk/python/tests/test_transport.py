"""Requests, attempts and answers, against a server that answers what each test wants."""

from __future__ import annotations

import asyncio
import json
import threading
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
    RuntimeError,
    ServiceUnavailableError,
)

from .forms import BOX, both, create, drive, me, settle
from .player import Answer, Player, answer, chunked, drop, raw, refusal

pytestmark = pytest.mark.usefixtures("quick")


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
        # On a slow machine the second answer may come too late as well.
        assert len(player.requests) >= 2 and len(set(player.keys)) == 1


@both
def test_a_call_has_a_deadline(form: str) -> None:
    with Player([Answer((b"",))]) as player, pytest.raises(RuntimeError) as told:
        drive(form, player.url, create, timeout=0.3)
    assert told.value.code == "request_timeout" and told.value.idempotency_key


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
