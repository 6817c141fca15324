# Written by scripts/derive_sync.py from _async/processes.py: do not edit.
"""Processes of a sandbox: what they write, what they read, how they end."""

from __future__ import annotations

import base64
from typing import Any, Iterator, Optional, Union

from .. import _io_sync as io
from .._api_types import ProcessInfo
from .._call import Call, encode
from .._errors import RuntimeError
from .._results import Collected, CommandResult, TracedFiles, raw_bytes
from ._output import Follower, process_path
from ._transport import Transport

_WRITE_BYTES = 1024 * 1024


class Process:
    """A process in a sandbox. It goes on when the program that started it is gone, until the sandbox stops."""

    def __init__(self, transport: Transport, sandbox_id: str, info: ProcessInfo) -> None:
        self._transport = transport
        self.sandbox_id = sandbox_id
        self.info = info
        self._path = process_path(sandbox_id, info["id"])
        self._input = int(info.get("stdinOffset") or 0)
        self._lock = io.Lock()

    @property
    def id(self) -> str:
        """Its id, for ``sandbox.process(id)``."""
        return self.info["id"]

    @property
    def command(self) -> Optional[str]:
        """Its command line as the sandbox tells it, cut at 256 characters."""
        return self.info.get("command")

    @property
    def user(self) -> Optional[str]:
        """``sandbox`` or ``root``."""
        return self.info.get("user")

    @property
    def state(self) -> Optional[str]:
        """As of the last answer: ``running``, ``exited``, ``killed``, ``timed_out`` or ``unknown``."""
        return self.info.get("state")

    @property
    def exit_code(self) -> Optional[int]:
        """As of the last answer: None while it runs, negative if a signal ended it."""
        return self.info.get("exitCode")

    @property
    def out_of_memory(self) -> Optional[dict[str, Any]]:
        """As of the last answer: set if it was killed because the sandbox's memory was full."""
        memory = self.info.get("outOfMemory")
        return dict(memory) if memory else None

    def refresh(self) -> ProcessInfo:
        """Reads it again and answers its record."""
        info: ProcessInfo = self._transport.json(Call("GET", self._path))
        self.info = info
        return info

    def output(
        self, cursor: int = 0, *, timeout_seconds: Optional[float] = None
    ) -> Iterator[dict[str, Any]]:
        """Its output from a byte position on, to its end.

        A connection that breaks is taken up again where it was. Events are dicts with camelCase keys and a
        snake_case name beside each: ``stdout`` and ``stderr`` (``data``, ``offset``, ``base64`` where the bytes are
        not UTF-8), ``truncated`` (``dropped_bytes``, ``resume_at``: output that is gone), and last ``exit``
        (``exit_code``, ``state``, ``timed_out``, ``duration_ms``).

        Args:
            cursor: Where to begin, in bytes of both streams together.
            timeout_seconds: How long to follow at most; the process itself is not touched.

        Raises:
            ConnectionError: It cannot be followed any more.
            RuntimeError: ``request_timeout`` when `timeout_seconds` are over.
        """
        events = Follower(self._transport, self.sandbox_id, self.id, cursor, timeout_seconds).read()
        try:
            for event in events:
                if event.get("type") == "exit":
                    self._ended(event)
                yield event
        finally:
            events.close()

    def output_bytes(
        self, cursor: int = 0, *, timeout_seconds: Optional[float] = None
    ) -> Iterator[dict[str, Any]]:
        """`output`, with the exact bytes of each piece in ``data``; for ``spawn(output_encoding="base64")``.

        Raises:
            RuntimeError: ``binary_output_unavailable``: the process was spawned with another encoding;
                ``invalid_process_output``: what came is no base64.
        """
        if self.info.get("outputEncoding") != "base64":
            raise RuntimeError(
                "The exact bytes of this process are not kept.",
                code="binary_output_unavailable",
                hint='Spawn it with output_encoding="base64".',
            )
        events = Follower(self._transport, self.sandbox_id, self.id, cursor, timeout_seconds).read()
        try:
            for event in events:
                if event.get("type") in ("stdout", "stderr"):
                    raw = raw_bytes(event)
                    if raw is None:
                        raise RuntimeError("A piece of output is no base64.", code="invalid_process_output")
                    event = {**event, "data": raw}
                elif event.get("type") == "exit":
                    self._ended(event)
                yield event
        finally:
            events.close()

    def wait(self) -> CommandResult:
        """Waits until it ends; its result, with the output that is still kept (the last 1 MiB).

        Raises:
            ConnectionError: It cannot be followed any more; it may still run.
        """
        collected = Collected()
        collected.add({"type": "start", "processId": self.id})
        for event in self.output():
            collected.add(event)
        return collected.result()

    def write(self, data: Union[str, bytes], eof: bool = False) -> None:
        """Sends input. What was sent twice because a connection broke is read once.

        Args:
            data: Text or bytes, any size.
            eof: Close its input afterwards.

        Raises:
            InvalidRequestError: Its input is closed, or it was spawned without ``stdin="pipe"``.
        """
        raw = data.encode() if isinstance(data, str) else bytes(data)
        with self._lock:
            self._write(raw, eof)

    def _write(self, raw: bytes, eof: bool) -> None:
        size = _WRITE_BYTES
        while raw or eof:
            piece = raw[:size]
            last = len(piece) == len(raw)
            body = {"base64": base64.b64encode(piece).decode(), "offset": self._input, "eof": eof and last}
            answer = self._transport.json(Call("POST", self._path + ":write", body=encode(body)))
            reached = answer.get("offset") if isinstance(answer, dict) else None
            if not isinstance(reached, int) or not self._input <= reached <= self._input + len(piece):
                raise RuntimeError(
                    "The answer to the input tells a place that is not in it.", code="invalid_process_output"
                )
            taken = reached - self._input
            self._input = reached
            raw = raw[taken:]
            if last and taken == len(piece):
                return
            if not taken:
                # Its input is full: it reads on at its own pace.
                io.sleep(0.1)
                size = 64 * 1024

    def kill(self, signal: str = "SIGTERM") -> None:
        """Sends a signal to it and all it started.

        Args:
            signal: ``SIGTERM``, ``SIGKILL``, ``SIGINT``, ``SIGHUP``, ``SIGQUIT``, ``SIGUSR1`` or ``SIGUSR2``.
        """
        self._transport.json(Call("POST", self._path + ":signal", body=encode({"signal": signal})))

    def resize(self, cols: int, rows: int) -> None:
        """Tells its terminal a new size, in characters."""
        self._transport.json(Call("POST", self._path + ":resize", body=encode({"cols": cols, "rows": rows})))

    def files(self) -> TracedFiles:
        """The files it read and wrote, if it was spawned with ``trace_files=True``.

        Raises:
            ConflictError: ``process_running``: it has not ended.
        """
        traced = TracedFiles.from_json(self._transport.json(Call("GET", self._path + "/files")))
        return traced if traced is not None else TracedFiles([], [])

    def _ended(self, event: dict[str, Any]) -> None:
        info: dict[str, Any] = dict(self.info)
        for name in ("state", "exitCode", "outOfMemory"):
            if name in event:
                info[name] = event[name]
        self.info = info  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, state={self.state or ''!r})"
