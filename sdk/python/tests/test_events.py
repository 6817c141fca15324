"""Events out of lines, and the place in the output."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from withruntime import CommandResult, RuntimeError
from withruntime._events import Lines, Place, may_follow_on, stream_error, with_aliases
from withruntime._results import Collected


def out(data: str, offset: int, **more: Any) -> dict[str, Any]:
    return {"type": "stdout", "data": data, "offset": offset, **more}


def test_lines_are_events_once_they_are_whole() -> None:
    lines = Lines()
    assert lines.feed(b'\n{"type":"st') == []
    assert lines.feed(b'art"}\n\n  \n{"type":"exit"}') == [{"type": "start"}]
    assert lines.feed(b"\n") == [{"type": "exit"}]


@pytest.mark.parametrize("line", [b"hello\n", b"[1]\n", b'"x"\n', b'{"a":\n'])
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(RuntimeError) as told:
        Lines().feed(line)
    assert told.value.code == "stream_failed"


def test_output_in_order_passes() -> None:
    place = Place()
    assert place.accept(out("grün", 0)) == [out("grün", 0)]
    assert place.cursor == 5
    assert place.accept({"type": "stderr", "data": "x", "offset": 5}) == [{"type": "stderr", "data": "x", "offset": 5}]
    assert place.cursor == 6


def test_what_was_lost_is_told() -> None:
    place = Place(3)
    assert place.accept(out("x", 10)) == [{"type": "truncated", "droppedBytes": 7, "resumeAt": 10}, out("x", 10)]


def test_what_was_seen_is_not_told_again() -> None:
    place = Place(4)
    assert place.accept(out("abcd", 0)) == []
    assert place.accept(out("abcdef", 0)) == [out("ef", 4)]
    assert place.cursor == 6


def test_bytes_count_where_text_is_not_the_whole_truth() -> None:
    raw = b"\xff\xfe"
    place = Place()
    place.accept(out("\ufffd\ufffd", 0, base64=base64.b64encode(raw).decode()))
    assert place.cursor == 2
    again = base64.b64encode(b"\xfeab").decode()
    assert place.accept(out("\ufffdab", 1, base64=again)) == [out("ab", 2, base64=base64.b64encode(b"ab").decode())]


def test_the_servers_own_notice_moves_the_place() -> None:
    place = Place(5)
    notice = {"type": "truncated", "droppedBytes": 10, "resumeAt": 15}
    assert place.accept(notice) == [notice]
    assert place.accept(out("x", 15)) == [out("x", 15)]


def test_names_come_in_both_spellings() -> None:
    assert with_aliases({"type": "exit", "exitCode": 0, "timedOut": False}) == {
        "type": "exit",
        "exitCode": 0,
        "exit_code": 0,
        "timedOut": False,
        "timed_out": False,
    }


@pytest.mark.parametrize(
    "error, follow",
    [
        ({"status": 503, "code": "busy"}, True),
        ({"status": 429, "code": "rate_limited"}, True),
        ({"status": 500, "code": "internal_error"}, True),
        ({"status": 503, "code": "busy", "retryable": False}, False),
        ({"status": 404, "code": "not_found"}, False),
        ({"code": "strange"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_an_error_in_a_stream_is_the_end_or_it_is_not(error: Any, follow: bool) -> None:
    assert may_follow_on(stream_error({"type": "error", "error": error})) is follow


def test_a_result_is_collected_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("withruntime._results.KEPT_BYTES", 100)
    collected = Collected()
    for event in (
        {"type": "start", "processId": "p"},
        {"type": "stdout", "data": "a" * 99},
        {"type": "stdout", "data": "é"},
        {"type": "stdout", "data": "more"},
        {"type": "stderr", "data": "err"},
        {"type": "exit", "exitCode": 3, "timedOut": False, "durationMs": 5},
    ):
        collected.add(event)
    result = collected.result()
    assert result.stdout == "a" * 99 and result.stdout_truncated and not result.stderr_truncated
    assert (result.exit_code, result.stderr, result.process_id, result.duration_ms) == (3, "err", "p", 5)


def test_lost_output_never_passes_as_whole() -> None:
    collected = Collected()
    collected.add({"type": "truncated", "droppedBytes": 3, "resumeAt": 3})
    collected.add({"type": "exit", "exitCode": 0})
    assert collected.result().stdout_truncated and collected.result().stderr_truncated


def test_a_result_is_a_value() -> None:
    result = CommandResult.from_json({"exitCode": 0, "stdout": "x", "files": {"read": ["/a"], "written": []}})
    assert CommandResult.from_json(result.to_dict()) == result
    with pytest.raises(AttributeError):
        result.exit_code = 1  # type: ignore[misc]
