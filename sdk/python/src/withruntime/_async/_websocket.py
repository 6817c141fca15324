"""One WebSocket to the server: messages out, messages in. Sending and receiving may go on at the same time."""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Deque, Optional, Union

from .. import _io_async as io
from .._errors import ConnectionError, RuntimeError, error_from_answer
from .._wire import ReadTimeout, WireError
from .._ws import BINARY, CLOSE, PING, PONG, TEXT, Message, Messages, frame

#: Seconds until the first message must have come; a sandbox may have to be woken for it.
FIRST_SECONDS = 125.0
_GOODBYE_SECONDS = 2.0


class AsyncWebSocket:
    """An upgraded connection. One task or thread receives; any may send."""

    def __init__(self, stream: io.Stream, unread: bytes) -> None:
        self._stream = io.duplex(stream)
        self._messages = Messages()
        self._come: Deque[Message] = deque(self._messages.feed(unread))
        self._sending = io.Lock()
        self._ended = False

    async def recv(self, timeout: Optional[float] = None) -> Union[str, bytes, None]:
        """The next message; None once the server has closed.

        Raises:
            ConnectionError: It broke off, or nothing came in time.
        """
        try:
            while True:
                while self._come:
                    message = self._come.popleft()
                    if message.kind == TEXT:
                        return message.data.decode("utf-8", "replace")
                    if message.kind == BINARY:
                        return message.data
                    if message.kind == PING:
                        await self._send(PONG, message.data)
                    elif message.kind == CLOSE:
                        if not self._ended:
                            self._ended = True
                            await self._send(CLOSE, message.data[:2])
                        self._stream.close()
                if self._ended:
                    return None
                data = await self._stream.read(timeout)
                if not data:
                    if self._ended:
                        return None
                    raise WireError("the server is gone")
                self._come.extend(self._messages.feed(data))
        except (OSError, WireError, ReadTimeout) as error:
            if self._ended:
                return None
            self._stream.close()
            why = str(error) or ("nothing came in time" if isinstance(error, ReadTimeout) else type(error).__name__)
            raise ConnectionError(f"The connection was lost: {why}") from error

    async def send(self, data: Union[str, bytes]) -> None:
        """Sends one message: text as text, bytes as bytes.

        Raises:
            ConnectionError: It is closed, or was lost.
        """
        kind, raw = (TEXT, data.encode()) if isinstance(data, str) else (BINARY, data)
        if self._ended:
            raise ConnectionError("The connection is closed.")
        try:
            await self._send(kind, raw)
        except OSError as error:
            raise ConnectionError(f"The connection was lost: {error}") from error

    async def close(self) -> None:
        """Says goodbye and closes. Safe to call again."""
        if not self._ended:
            self._ended = True
            try:
                await self._send(CLOSE, (1000).to_bytes(2, "big"), _GOODBYE_SECONDS)
            except (OSError, ReadTimeout):
                # Gone already, which is what was wanted.
                pass
        self._stream.close()

    async def _send(self, kind: int, data: bytes, timeout: Optional[float] = None) -> None:
        async with self._sending:
            await self._stream.write(frame(kind, data), timeout)

    async def ready(self, what: str) -> dict[str, Any]:
        """The first message, in which the server says that it is ready, or why not.

        Args:
            what: `terminal` or `tunnel`, for the code of a refusal.
        """
        try:
            first = await self.recv(FIRST_SECONDS)
            told = told_by(first) if isinstance(first, str) else {}
            if told.get("type") == "ready":
                return told
            if told.get("type") == "error":
                raise refused(told, f"{what}_refused")
            raise RuntimeError(f"The server opened no {what}.", code=f"{what}_refused")
        except BaseException:
            await self.close()
            raise


def told_by(text: str) -> dict[str, Any]:
    """The JSON object in a text message; an empty one where there is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def refused(told: dict[str, Any], code: str) -> RuntimeError:
    """The exception for a message that refuses to open: its own code is among the details."""
    error = refusal(told)
    error.details = {**(error.details or {}), "code": error.code}
    error.code = code
    return error


def refusal(told: dict[str, Any]) -> RuntimeError:
    """The exception for a message of type `error`."""
    error = told.get("error")
    error = error if isinstance(error, dict) else {}
    status = error.get("status")
    status = status if isinstance(status, int) and not isinstance(status, bool) else 0
    return error_from_answer(status, {"error": error})
