"""One call to the API, before it becomes bytes."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional, Union

from ._errors import RuntimeError

#: Largest JSON answer that is read.
ANSWER_LIMIT = 64 * 1024 * 1024

JSON = "application/json"
BYTES = "application/octet-stream"
EVENTS = "application/x-ndjson"

CapacityCallback = Callable[[RuntimeError, float], Any]
Query = Iterable[tuple[str, Union[str, int, bool, None]]]


@dataclass(frozen=True)
class Call:
    """What to ask, and how patiently.

    Attributes:
        path: Percent-encoded.
        query: Pairs; None is left out, booleans become `true` and `false`.
        body: The bytes to send, or None.
        content_type: What they are.
        accept: What is wanted.
        prefer_wait: Seconds the server may hold the answer until things have settled.
        key: The idempotency key; made once for all attempts where it is None and one is due.
        room_seconds: How long to wait for room for a sandbox.
        on_room_wait: Told of the refusal and the wait, before each one.
        patient: Whether failures are retried at all.
        seconds: How long it may take, if that is less than the client allows.
    """

    method: str
    path: str
    query: Query = ()
    body: Optional[bytes] = None
    content_type: str = JSON
    accept: str = JSON
    prefer_wait: Optional[int] = None
    key: Optional[str] = None
    room_seconds: float = 0.0
    on_room_wait: Optional[CapacityCallback] = None
    patient: bool = True
    seconds: Optional[float] = None

    def pairs(self) -> list[tuple[str, str]]:
        """The query as text."""
        pairs = []
        for name, value in self.query:
            if value is None:
                continue
            text = ("true" if value else "false") if isinstance(value, bool) else str(value)
            pairs.append((name, text))
        return pairs

    def key_to_send(self) -> Optional[str]:
        """The idempotency key of all its attempts; a GET has none."""
        if self.method == "GET":
            return None
        return self.key or str(uuid.uuid4())


def encode(value: Any) -> bytes:
    """JSON as bytes.

    Raises:
        TypeError, ValueError: It cannot be JSON.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )
