# Written by scripts/derive_sync.py from _async/terminal.py: do not edit.
"""A terminal in a sandbox: what is typed goes in, what would be on the screen comes out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Optional, Union

from ._websocket import WebSocket, refusal, told_by

if TYPE_CHECKING:
    from typing_extensions import Self

_WRITE_BYTES = 256 * 1024


class Terminal:
    """A terminal that is open. ``with`` closes it at the end of the block.

    Attributes:
        process_id: The process in it, as ``sandbox.process(id)`` takes it.
        exit_code: Once it has ended: the exit code, or None where there is none.
    """

    def __init__(self, socket: WebSocket, process_id: Optional[str]) -> None:
        self._socket = socket
        self._over = False
        self.process_id = process_id
        self.exit_code: Optional[int] = None

    def recv(self) -> Optional[bytes]:
        """What it showed since, as it comes; None once the process has ended or the terminal was closed.

        Raises:
            ConnectionError: The connection was lost; the process may still run.
        """
        while not self._over:
            message = self._socket.recv()
            if isinstance(message, bytes):
                return message
            if message is None:
                self._over = True
            else:
                self._hear(told_by(message))
        return None

    def _hear(self, told: dict[str, Any]) -> None:
        if told.get("type") == "error":
            self._over = True
            self._socket.close()
            raise refusal(told)
        if told.get("type") == "exit":
            code = told.get("exitCode")
            self.exit_code = code if isinstance(code, int) else None
            self._over = True
            self._socket.close()

    def write(self, data: Union[str, bytes]) -> None:
        """Types text or bytes.

        Raises:
            ConnectionError: It is closed, or the connection was lost.
        """
        raw = data.encode() if isinstance(data, str) else bytes(data)
        for start in range(0, len(raw), _WRITE_BYTES):
            self._socket.send(raw[start : start + _WRITE_BYTES])

    def resize(self, cols: int, rows: int) -> None:
        """Tells it a new size, in characters.

        Raises:
            ConnectionError: It is closed, or the connection was lost.
        """
        self._socket.send(json.dumps({"type": "resize", "cols": cols, "rows": rows}))

    def close(self) -> None:
        """Closes it. A shell that it started is hung up; a process it only showed goes on."""
        self._over = True
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(process_id={self.process_id!r})"
