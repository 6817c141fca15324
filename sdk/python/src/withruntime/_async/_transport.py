"""Calls become requests here: connections, attempts, late answers. When to try again is `_policy`'s word."""

from __future__ import annotations

import json
import os
import ssl
import threading
from typing import Any, Awaitable, Callable, Optional, Sequence

from .. import _io_async as io
from .._call import ANSWER_LIMIT, Call
from .._config import Origin, choose_proxy, find_key, tls_context
from .._errors import ConnectionError, RuntimeError, error_from_answer
from .._policy import ATTEMPT_SECONDS, Deadline, Retries
from .._slots import Slots
from .._version import __version__
from .._wire import Head, ReadTimeout, WireError, request_head, target
from .._ws import check_upgrade, new_key, upgrade_headers
from ._connection import AsyncConnection
from ._websocket import AsyncWebSocket

_IDLE_KEPT = 8
_ERROR_LIMIT = 1024 * 1024
#: Seconds a stream may be silent; a server has something to say well before.
STREAM_SILENCE = 180.0


class Cut(Exception):
    """The body of an answer ended before its end, or came to a halt."""


class _Failure(Exception):
    """An attempt that came to nothing, as the retry rule wants to know it."""

    def __init__(self, error: RuntimeError, *, late: bool = False, unopened: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.late = late
        self.unopened = unopened


class AsyncAnswer:
    """A successful answer whose body is still to be read. Close it, or the connection stays taken."""

    def __init__(self, head: Head, connection: AsyncConnection, release: Callable[[bool], None]) -> None:
        self.headers = head.headers
        self._connection = connection
        self._release = release
        self._open = True

    async def part(self, timeout: Optional[float] = STREAM_SILENCE) -> bytes:
        """The next bytes; `b""` at the end. Raises `Cut`."""
        if not self._open:
            return b""
        try:
            return await self._connection.part(timeout)
        except (OSError, WireError, ReadTimeout) as error:
            self.close()
            raise Cut(str(error) or "nothing came for too long") from error
        except BaseException:
            self.close()
            raise

    async def whole(self, limit: int, left: Callable[[], Optional[float]]) -> bytes:
        """All of the body."""
        parts: list[bytes] = []
        size = 0
        while True:
            data = await self.part(left())
            if not data:
                return b"".join(parts)
            size += len(data)
            if size > limit:
                raise RuntimeError(f"The answer is larger than {limit} bytes.", code="response_too_large")
            parts.append(data)

    def close(self) -> None:
        """Gives the connection back, or closes it where something is left to read. Safe to call again."""
        if self._open:
            self._open = False
            self._release(self._connection.reusable())


class AsyncTransport:
    """Connections to one server, with one key."""

    def __init__(
        self,
        *,
        origin: Origin,
        api_key: Optional[str],
        timeout: Optional[float],
        max_retries: int,
        max_connections: int,
        wait_for_capacity: float,
        on_queued: Optional[Callable[[int], None]],
    ) -> None:
        self.origin = origin
        self.wait_for_capacity = wait_for_capacity
        self._api_key = api_key
        self._key: Optional[str] = None
        self._timeout = timeout
        self._max_retries = max_retries
        self._on_queued = on_queued
        self._proxy = choose_proxy(origin)
        self._tls: Optional[ssl.SSLContext] = None
        self._slots = Slots(max_connections)
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._idle: list[AsyncConnection] = []
        self._pid = os.getpid()

    async def json(self, call: Call) -> Any:
        """Sends a call and answers the JSON of its success.

        Raises:
            RuntimeError: It was refused, or there was no answer in time.
        """
        return await self._carry(call, self._answered)

    async def open(self, call: Call) -> AsyncAnswer:
        """Sends a call and answers once its success begins; the body is the caller's to read."""
        answer: AsyncAnswer = await self._carry(call, self._begun)
        return answer

    async def upgrade(self, call: Call) -> AsyncWebSocket:
        """Opens a WebSocket. It takes no place of a call: it may last."""
        socket: AsyncWebSocket = await self._carry(call, self._upgraded)
        return socket

    def close(self) -> None:
        """Closes the connections that wait for work."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        # A client nobody closed, as the shared one, leaves nothing open. One whose making failed has nothing.
        if hasattr(self, "_idle"):
            self.close()

    async def _carry(self, call: Call, once: Callable[[Call, Optional[str], Deadline], Awaitable[Any]]) -> Any:
        began = io.now()
        deadline = Deadline(self._timeout if call.seconds is None else call.seconds, began)
        retries = Retries(
            max_retries=self._max_retries if call.patient else 0,
            deadline=deadline,
            began=began,
            room_seconds=call.room_seconds,
        )
        key = call.key_to_send()
        while True:
            try:
                return await once(call, key, deadline)
            except _Failure as failure:
                error = failure.error
                wait = retries.after(error, io.now(), late=failure.late, unopened=failure.unopened)
                if wait is None or not call.patient:
                    raise error from failure.__cause__
            if wait.for_room:
                deadline.lengthen(wait.seconds)
                if call.on_room_wait is not None:
                    await io.tell(call.on_room_wait, error, wait.seconds)
            if wait.seconds > 0:
                await io.sleep(wait.seconds)

    async def _answered(self, call: Call, key: Optional[str], deadline: Deadline) -> Any:
        answer = await self._attempt(self._request(call, key), key, deadline, stream=False)
        return await self._value(answer, key, deadline)

    async def _begun(self, call: Call, key: Optional[str], deadline: Deadline) -> AsyncAnswer:
        return await self._attempt(self._request(call, key), key, deadline, stream=True)

    async def _upgraded(self, call: Call, key: Optional[str], deadline: Deadline) -> AsyncWebSocket:
        secret = new_key()
        request = self._request(call, key, upgrade_headers(secret))
        connection = await self._connect(key, deadline)
        try:
            head = await self._exchange(connection, request, key, deadline, used=False)
            if head.status != 101:
                raise await self._refusal(
                    AsyncAnswer(head, connection, lambda _: connection.close()), head, key, deadline
                )
            try:
                check_upgrade(head, secret)
                return AsyncWebSocket(*connection.detach())
            except WireError as error:
                raise ConnectionError(str(error)) from error
        except BaseException:
            connection.close()
            raise

    def _request(self, call: Call, key: Optional[str], upgrade: Sequence[tuple[str, str]] = ()) -> bytes:
        if self._key is None:
            self._key = find_key(self._api_key, self.origin)
        headers = [
            ("Host", self.origin.authority),
            ("Authorization", f"Bearer {self._key}"),
            ("Accept", call.accept),
            ("Accept-Encoding", "identity"),
            ("User-Agent", f"runtime-sdk-python/{__version__}"),
            ("X-Runtime-Client", f"sdk-python/{__version__}"),
        ]
        if key is not None:
            headers.append(("Idempotency-Key", key))
        headers += upgrade
        if call.prefer_wait is not None:
            headers.append(("Prefer", f"wait={call.prefer_wait}"))
        body = call.body or b""
        if call.body is not None:
            headers.append(("Content-Type", call.content_type))
        if call.method != "GET":
            headers.append(("Content-Length", str(len(body))))
        return request_head(call.method, target(call.path, call.pairs()), headers) + body

    async def _attempt(self, request: bytes, key: Optional[str], deadline: Deadline, stream: bool) -> AsyncAnswer:
        """One request, one answer of success. Anything else is raised, with the place given back."""
        await self._take_place(stream, key, deadline)
        connection: Optional[AsyncConnection] = None
        try:
            connection = self._idle_connection()
            used = connection is not None
            if connection is None:
                connection = await self._connect(key, deadline)
            head = await self._exchange(connection, request, key, deadline, used)
        except BaseException:
            if connection is not None:
                connection.close()
            self._slots.give_back(stream)
            raise
        kept = connection

        def release(reusable: bool) -> None:
            self._put_away(kept, reusable)
            self._slots.give_back(stream)

        answer = AsyncAnswer(head, kept, release)
        if 200 <= head.status < 300:
            return answer
        raise await self._refusal(answer, head, key, deadline)

    async def _exchange(
        self, connection: AsyncConnection, request: bytes, key: Optional[str], deadline: Deadline, used: bool
    ) -> Head:
        try:
            left = _shorter(ATTEMPT_SECONDS, deadline.left(io.now()))
            try:
                await connection.send(request, left)
            except OSError:
                # A server that refuses early may have answered before it closed.
                return await connection.head(1.0)
            return await connection.head(_shorter(ATTEMPT_SECONDS, deadline.left(io.now())))
        except ReadTimeout as error:
            if deadline.left(io.now()) == 0.0:
                raise _deadline_passed(key) from error
            silent = ConnectionError("The server gave no answer in time.", idempotency_key=key)
            raise _Failure(silent) from error
        except (OSError, WireError) as error:
            if used and not connection.answering:
                # It was closed while it lay idle, and with it likely the others.
                self.close()
            lost = ConnectionError(f"The connection to {self.origin.text} was lost: {error}", idempotency_key=key)
            raise _Failure(lost, unopened=used and not connection.answering) from error

    async def _connect(self, key: Optional[str], deadline: Deadline) -> AsyncConnection:
        if self.origin.tls and self._tls is None:
            self._tls = tls_context()
        left = _shorter(30.0, deadline.left(io.now()))
        try:
            return AsyncConnection(await io.open_stream(self.origin, self._proxy, self._tls, left))
        except io.OpenError as error:
            if deadline.left(io.now()) == 0.0:
                raise _deadline_passed(key) from error
            hint = "Is the server running there? RUNTIME_API_URL or base_url= names it."
            unreachable = ConnectionError(str(error), idempotency_key=key, hint=hint)
            raise _Failure(unreachable, unopened=True) from error

    async def _refusal(self, answer: AsyncAnswer, head: Head, key: Optional[str], deadline: Deadline) -> Exception:
        try:
            body = await answer.whole(_ERROR_LIMIT, lambda: _shorter(30.0, deadline.left(io.now())))
        except (Cut, RuntimeError):
            body = b""
        finally:
            answer.close()
        return _Failure(
            error_from_answer(
                head.status, _parsed(body), idempotency_key=key, retry_after=head.headers.get("retry-after")
            )
        )

    async def _value(self, answer: AsyncAnswer, key: Optional[str], deadline: Deadline) -> Any:
        """The JSON of an answer. One that began before its outcome was known may still be a refusal."""
        late = answer.headers.get("runtime-late-answer", "").lower() == "true"
        try:
            body = await answer.whole(ANSWER_LIMIT, lambda: deadline.left(io.now()))
        except Cut as error:
            if deadline.left(io.now()) == 0.0:
                raise _deadline_passed(key) from error
            cut = ConnectionError(f"The answer broke off: {error}", idempotency_key=key)
            raise _Failure(cut, late=late) from error
        finally:
            answer.close()
        value = _parsed(body)
        if isinstance(value, bytes):
            if not value.strip() and not late:
                return {}
            told = error_from_answer(502, b"The answer is no JSON.", idempotency_key=key)
            raise _Failure(told, late=late)
        if late and isinstance(value, dict) and list(value) == ["error"]:
            told_error = value["error"] if isinstance(value["error"], dict) else {}
            status = told_error.get("status")
            if not isinstance(status, int) or isinstance(status, bool):
                status = 502
            raise _Failure(error_from_answer(status, value, idempotency_key=key), late=True)
        return value

    def _after_fork(self) -> None:
        """A forked child has the parent's connections in its hands; bytes of both on one would be nobody's."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._slots = Slots(self._max_connections)
        self._idle = []

    async def _take_place(self, stream: bool, key: Optional[str], deadline: Deadline) -> None:
        if self._pid != os.getpid():
            self._after_fork()
        waiter = io.Waiter()
        place = self._slots.take(stream, waiter)
        if not place:
            return
        try:
            if self._on_queued is not None:
                self._on_queued(place)
            if await waiter.wait(deadline.left(io.now())):
                return
        except BaseException:
            self._slots.give_up(waiter, stream)
            raise
        self._slots.give_up(waiter, stream)
        raise _deadline_passed(key, "waiting for one of its connections")

    def _idle_connection(self) -> Optional[AsyncConnection]:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or connection.idle():
                return connection
            connection.close()

    def _put_away(self, connection: AsyncConnection, reusable: bool) -> None:
        if reusable:
            with self._lock:
                if len(self._idle) < _IDLE_KEPT:
                    self._idle.append(connection)
                    return
        connection.close()


def _shorter(limit: float, left: Optional[float]) -> float:
    return limit if left is None else min(limit, left)


def _deadline_passed(key: Optional[str], doing: str = "waiting for its answer") -> RuntimeError:
    return RuntimeError(
        f"The call's time was up while {doing}.",
        code="request_timeout",
        hint="It may have been done all the same; the same call with this idempotency key never does it twice."
        if key
        else None,
        idempotency_key=key,
    )


def _parsed(body: bytes) -> Any:
    """The JSON value, or the bytes where there is none. White space before it is the server's way of waiting."""
    try:
        return json.loads(body)
    except ValueError:
        return body
