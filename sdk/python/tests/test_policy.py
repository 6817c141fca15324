"""The retry rule, row by row, on a clock of our own."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from withruntime import RuntimeError
from withruntime._errors import OFF_CODES
from withruntime._policy import ROOM_CODES, Deadline, Retries


def failure(status: int, code: str = "request_failed", **more: Any) -> RuntimeError:
    return RuntimeError("no", status=status, code=code, **more)


def rule(timeout: Optional[float] = 300, room: float = 0.0, max_retries: int = 4, random: float = 0.5) -> Retries:
    return Retries(
        max_retries=max_retries,
        deadline=Deadline(timeout, 0.0),
        began=0.0,
        room_seconds=room,
        random=lambda: random,
    )


def waits(retries: Retries, error: RuntimeError, most: int = 50, **how: Any) -> list[float]:
    """All waits until it is raised, the clock moving with them."""
    now = 0.0
    found: list[float] = []
    while len(found) < most:
        wait = retries.after(error, now, **how)
        if wait is None:
            break
        found.append(wait.seconds)
        now += wait.seconds
    return found


@pytest.mark.parametrize("status", [0, 429, 502, 503, 504])
def test_failures_of_the_moment_are_tried_again_with_growing_waits(status: int) -> None:
    assert waits(rule(), failure(status)) == [0.25, 0.5, 1.0, 2.0]


@pytest.mark.parametrize("random, factor", [(0.0, 0.5), (1.0, 1.5)])
def test_waits_are_spread(random: float, factor: float) -> None:
    assert waits(rule(random=random, max_retries=7), failure(503)) == [
        seconds * factor for seconds in (0.25, 0.5, 1, 2, 4, 8, 8)
    ]


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 409, 410, 413, 422, 426, 500, 501])
def test_other_refusals_are_raised_at_once(status: int) -> None:
    assert waits(rule(), failure(status)) == []


def test_the_servers_word_beats_the_table() -> None:
    assert len(waits(rule(), failure(409, "host_moving", retryable=True))) == 4
    assert len(waits(rule(), failure(501, "unavailable", retryable=True))) == 4
    assert waits(rule(), failure(503, "busy", retryable=False)) == []
    assert waits(rule(room=120), failure(409, "no_capacity", retryable=False)) == []


@pytest.mark.parametrize("code", sorted(OFF_CODES))
@pytest.mark.parametrize("status", [501, 503])
def test_what_is_off_on_purpose_is_never_tried_again(code: str, status: int) -> None:
    error = failure(status, code)
    assert waits(rule(), error) == []
    assert not error.retryable


def test_the_servers_wait_is_slept_up_to_half_a_minute() -> None:
    assert waits(rule(), failure(503, retry_after_ms=1500)) == [1.5] * 4
    assert waits(rule(), failure(503, retry_after_ms=45_000)) == [30.0] * 4
    assert waits(rule(), failure(503, retry_after_ms=60_000)) == [30.0] * 4


def test_a_long_wait_is_raised_and_not_slept() -> None:
    error = failure(429, "rate_limited", retry_after_ms=60_001)
    assert waits(rule(), error) == []
    assert error.retryable and error.retry_after_ms == 60_001


def test_a_connection_that_did_not_open_is_tried_once_more_at_once() -> None:
    assert waits(rule(), failure(0, "connection_error"), unopened=True) == [0.0, 0.25, 0.5, 1.0, 2.0]


@pytest.mark.parametrize("code", ["guest_busy", "busy", "rate_limited"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_until_the_deadline(code: str, status: int) -> None:
    found = waits(rule(), failure(status, code))
    assert found[:5] == pytest.approx([0.25, 0.5, 1.0, 2.0, 2.0])
    assert len(found) == 50
    found = waits(rule(timeout=60), failure(status, code, retry_after_ms=5000), most=500)
    assert found[:3] == pytest.approx([5, 10, 20])
    assert 35 <= sum(found) < 60


def test_a_busy_server_is_asked_five_minutes_without_a_deadline() -> None:
    found = waits(rule(timeout=None), failure(503, "busy", retry_after_ms=20_000), most=500)
    assert found[0] == pytest.approx(20) and max(found) <= 33
    assert 260 < sum(found) < 300


def test_after_a_late_answer_only_a_busy_guest_is_asked_on() -> None:
    assert len(waits(rule(), failure(503, "guest_busy"), late=True)) == 50
    assert len(waits(rule(), failure(503, "busy"), late=True)) == 4


@pytest.mark.parametrize("code", sorted(ROOM_CODES))
def test_room_is_waited_for(code: str) -> None:
    retries = rule(room=20.0)
    found = waits(retries, failure(409, code))
    assert found == pytest.approx([0.5, 1, 2, 4, 8, 4.5])
    wait = rule(room=20.0).after(failure(409, code), 0.0)
    assert wait is not None and wait.for_room


def test_room_is_waited_for_as_the_server_says() -> None:
    assert waits(rule(room=10.0), failure(409, "no_capacity", retry_after_ms=3000)) == pytest.approx([3, 3, 3, 1])


@pytest.mark.parametrize("status, code", [(409, "no_capacity"), (429, "quota_exceeded"), (503, "no_capacity")])
def test_room_is_not_waited_for_where_it_cannot_come(status: int, code: str) -> None:
    assert waits(rule(room=0.0), failure(status, code)) == []
    assert waits(rule(room=20.0), failure(status, code, details={"field": "count"})) == []


def test_nothing_is_slept_that_the_deadline_would_cut() -> None:
    assert waits(rule(timeout=0.6), failure(503)) == [0.25]


@pytest.mark.parametrize(
    "error, retryable",
    [
        (failure(409, "no_capacity"), True),
        (failure(409, "no_credit_running_limit"), True),
        (failure(409, "no_credit_total_limit", details={"field": "count"}), False),
        (failure(429, "quota_exceeded"), False),
        (failure(429, "rate_limited"), True),
        (failure(0, "connection_error"), True),
        (failure(500, "internal_error"), False),
        (failure(404, "not_found"), False),
        (failure(404, "not_found", retryable=True), True),
    ],
)
def test_retryable_says_whether_later_may_be_better(error: RuntimeError, retryable: bool) -> None:
    assert error.retryable is retryable
