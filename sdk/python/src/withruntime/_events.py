"""The place in a process's output, and what an event means there.

Output of both streams is one sequence of bytes, and every piece tells where it begins. So a reader that was cut off
can ask to go on from its place, see what was lost between, and drop what it has seen before.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

from ._errors import ConnectionError, RuntimeError
from ._results import raw_bytes

#: Longest line of a stream that is kept; the server's are far shorter.
LINE_LIMIT = 16 * 1024 * 1024
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


class Lines:
    """Newline-delimited JSON out of pieces of bytes. Blank lines are the server's way to show it is there."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The events that are complete now. An unfinished last line is never an event."""
        self._rest += data
        events: list[dict[str, Any]] = []
        while True:
            end = self._rest.find(b"\n", self._searched)
            if end < 0:
                self._searched = len(self._rest)
                if self._searched > LINE_LIMIT:
                    raise RuntimeError("A line of the stream has no end.", code="stream_failed")
                return events
            line = bytes(self._rest[:end]).strip()
            del self._rest[: end + 1]
            self._searched = 0
            if line:
                events.append(_event(line))


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise RuntimeError("A line of the stream is no JSON.", code="stream_failed") from error
    if not isinstance(event, dict):
        raise RuntimeError("A line of the stream is no event.", code="stream_failed")
    return event


class Place:
    """How much of a process's output was seen."""

    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor

    def accept(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """What to hand on for an event: itself, only its new part, or a notice of what was lost before it."""
        kind = event.get("type")
        if kind == "truncated":
            self.cursor = max(self.cursor, _position(event.get("resumeAt"), self.cursor))
            return [event]
        if kind not in ("stdout", "stderr"):
            return [event]
        raw = raw_bytes(event)
        if raw is None:
            raw = str(event.get("data") or "").encode("utf-8", "surrogatepass")
        offset = _position(event.get("offset"), self.cursor)
        end = offset + len(raw)
        handed: list[dict[str, Any]] = []
        if offset > self.cursor:
            handed.append({"type": "truncated", "droppedBytes": offset - self.cursor, "resumeAt": offset})
        elif offset < self.cursor:
            if end <= self.cursor:
                return []
            raw = raw[self.cursor - offset :]
            event = {**event, "data": raw.decode("utf-8", "replace"), "offset": self.cursor}
            if "base64" in event:
                import base64

                event["base64"] = base64.b64encode(raw).decode()
        self.cursor = end
        handed.append(event)
        return handed


def _position(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def next_cursor(event: Mapping[str, Any], place: Place) -> int:
    """Where a `continue` or `error` event says to go on, never behind what was seen."""
    return max(place.cursor, _position(event.get("cursor"), place.cursor))


def with_aliases(event: dict[str, Any]) -> dict[str, Any]:
    """The event with a snake_case name beside each camelCase one."""
    return {**event, **{_HUMP.sub(lambda m: "_" + m[1].lower(), name): value for name, value in event.items()}}


def stream_error(event: Mapping[str, Any]) -> RuntimeError:
    """The exception for an `error` event; its status decides whether the output is followed on."""
    from ._errors import error_from_answer

    told = event.get("error")
    told = told if isinstance(told, Mapping) else {}
    status = told.get("status")
    status = status if isinstance(status, int) and not isinstance(status, bool) else 0
    error = error_from_answer(status, {"error": dict(told)})
    if error.code == "request_failed":
        error.code = "stream_failed"
    return error


def may_follow_on(error: RuntimeError) -> bool:
    """Whether output can be asked for again after this: the connection failed, or the server for the moment."""
    if isinstance(error, ConnectionError):
        return True
    return error.server_says_retryable is not False and (error.status == 429 or error.status >= 500)
