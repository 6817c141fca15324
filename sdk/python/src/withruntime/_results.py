"""What a command did, as values."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

#: Bytes of each stream that a result collected from a stream of output keeps; what comes after is dropped. Large, since
#: programs look at the end of what a long command said; bounded, since what a sandbox says is not to be trusted.
KEPT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class TracedFiles:
    """The files a command opened that ran with ``trace_files=True``.

    Attributes:
        read: Every file and folder it read: absolute paths, sorted, links resolved, folders end in ``/``.
        written: Every file it wrote.
        truncated: Paths are missing from the lists.
    """

    read: list[str]
    written: list[str]
    truncated: bool = False

    @classmethod
    def from_json(cls, data: Optional[Mapping[str, Any]]) -> Optional[TracedFiles]:
        """From the API's form; None stays None."""
        if not isinstance(data, Mapping):
            return None
        return cls(list(data.get("read") or ()), list(data.get("written") or ()), bool(data.get("truncated")))

    def to_dict(self) -> dict[str, Any]:
        """The API's form."""
        return {"read": self.read, "written": self.written, "truncated": self.truncated}


@dataclass(frozen=True)
class CommandResult:
    """What a command did.

    Attributes:
        exit_code: Its exit code; negative for the signal that ended it; None where there is none.
        stdout: What it wrote, as UTF-8; other bytes became U+FFFD.
        stderr: Likewise.
        timed_out: Its time was up: it was killed, and the output so far is here.
        stdout_truncated: The end of `stdout` is missing: 64 KiB are kept, 64 MiB of a command that was streamed.
        stderr_truncated: Likewise of `stderr`.
        duration_ms: Milliseconds it ran, or None.
        process_id: The id it had among the sandbox's processes, or None.
        replayed: The answer to an earlier call with the same idempotency key; nothing ran now.
        out_of_memory: Set where the sandbox's memory was full and it, or what it started, was killed: ``code``,
            ``processesKilled``, ``memoryMiB``, ``message``, ``hint``.
        files: The files it opened, if it ran with ``trace_files=True``.
    """

    exit_code: Optional[int]
    stdout: str
    stderr: str
    timed_out: bool = False
    stdout_truncated: bool = field(default=False, repr=False)
    stderr_truncated: bool = field(default=False, repr=False)
    duration_ms: Optional[int] = field(default=None, repr=False)
    process_id: Optional[str] = field(default=None, repr=False)
    replayed: bool = field(default=False, repr=False)
    out_of_memory: Optional[dict[str, Any]] = field(default=None, repr=False)
    files: Optional[TracedFiles] = field(default=None, repr=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CommandResult:
        """From the API's form."""
        memory = data.get("outOfMemory")
        return cls(
            exit_code=data.get("exitCode"),
            stdout=data.get("stdout") or "",
            stderr=data.get("stderr") or "",
            timed_out=bool(data.get("timedOut")),
            stdout_truncated=bool(data.get("stdoutTruncated")),
            stderr_truncated=bool(data.get("stderrTruncated")),
            duration_ms=data.get("durationMs"),
            process_id=data.get("processId"),
            replayed=bool(data.get("replayed")),
            out_of_memory=dict(memory) if isinstance(memory, Mapping) else None,
            files=TracedFiles.from_json(data.get("files")),
        )

    def to_dict(self) -> dict[str, Any]:
        """The API's form; what is absent in most results is left out."""
        form: dict[str, Any] = {
            "exitCode": self.exit_code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "timedOut": self.timed_out,
            "stdoutTruncated": self.stdout_truncated,
            "stderrTruncated": self.stderr_truncated,
            "durationMs": self.duration_ms,
            "processId": self.process_id,
        }
        if self.replayed:
            form["replayed"] = True
        if self.out_of_memory is not None:
            form["outOfMemory"] = self.out_of_memory
        if self.files is not None:
            form["files"] = self.files.to_dict()
        return form


class Collected:
    """Gathers the events of a command into its result, keeping a bounded beginning of each stream."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._kept = {"stdout": 0, "stderr": 0}
        self._cut = {"stdout": False, "stderr": False}
        self._process_id: Optional[str] = None
        self._replayed = False
        self._exit: Mapping[str, Any] = {}

    @property
    def process_id(self) -> Optional[str]:
        """Known from the first event on."""
        return self._process_id

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "start":
            self._process_id = event.get("processId")
            self._replayed = bool(event.get("replayed"))
        elif kind in ("stdout", "stderr"):
            self._keep(str(kind), str(event.get("data") or ""))
        elif kind == "truncated":
            # Which stream lost it is not known: neither may pass as whole.
            self._cut = {"stdout": True, "stderr": True}
        elif kind == "exit":
            self._exit = event

    def _keep(self, stream: str, text: str) -> None:
        size = len(text.encode("utf-8", "surrogatepass"))
        room = KEPT_BYTES - self._kept[stream]
        if size > room:
            self._cut[stream] = True
            text = text.encode("utf-8", "surrogatepass")[:room].decode("utf-8", "ignore")
            size = room
        if size:
            self._parts[stream].append(text)
            self._kept[stream] += size

    def result(self) -> CommandResult:
        """Once the exit event was added."""
        return CommandResult.from_json(
            {
                **self._exit,
                "stdout": "".join(self._parts["stdout"]),
                "stderr": "".join(self._parts["stderr"]),
                "stdoutTruncated": self._cut["stdout"],
                "stderrTruncated": self._cut["stderr"],
                "processId": self._process_id,
                "replayed": self._replayed,
            }
        )


def raw_bytes(event: Mapping[str, Any]) -> Optional[bytes]:
    """The exact bytes of an output event; None where they are not told or are no base64."""
    encoded = event.get("base64")
    if not isinstance(encoded, str):
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
