"""What an agent can do with a sandbox: the four functions behind `withruntime.tools`."""

from __future__ import annotations

import posixpath
from typing import Any, Optional

from .._errors import NotFoundError, RuntimeError
from .sandbox import AsyncSandbox


class AsyncSandboxTools:
    """A sandbox's commands and files, bounded so that no answer floods a model's context."""

    def __init__(self, sandbox: AsyncSandbox, root: str, timeout_seconds: int, max_output_chars: int) -> None:
        self._sandbox = sandbox
        self._root = root
        self._timeout_seconds = timeout_seconds
        self._max = max_output_chars

    async def exec(
        self, command: str, cwd: Optional[str] = None, timeout_seconds: Optional[int] = None
    ) -> dict[str, Any]:
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        result = await self._sandbox.exec(
            command, cwd=self._path(cwd or "."), timeout_ms=max(1, min(86_400, seconds)) * 1000
        )
        answer: dict[str, Any] = {
            "exit_code": result.exit_code,
            "stdout": self._clip(result.stdout, result.stdout_truncated),
            "stderr": self._clip(result.stderr, result.stderr_truncated),
        }
        if result.timed_out:
            answer["timed_out"] = True
        if result.out_of_memory is not None:
            answer["out_of_memory"] = result.out_of_memory.get("message")
        return answer

    async def read_file(self, path: str) -> str:
        full = self._path(path)
        pieces: list[bytes] = []
        size = 0
        # A character is at most four bytes: what is beyond can never be shown.
        limit = self._max * 4 + 4
        stream = self._sandbox.files.read_stream(full)
        async for piece in stream:
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                break
        text = b"".join(pieces)[:limit].decode("utf-8", "replace")
        return self._clip(text, False)

    async def write_file(self, path: str, content: str) -> str:
        full = self._path(path)
        try:
            await self._sandbox.files.write(full, content)
        except NotFoundError:
            # Outside the workspace folders are not made by themselves.
            await self._sandbox.files.mkdir(posixpath.dirname(full))
            await self._sandbox.files.write(full, content)
        return f"Wrote {len(content.encode('utf-8', 'surrogatepass'))} bytes to {full}."

    async def list_files(self, path: str = ".", depth: int = 1) -> list[dict[str, Any]]:
        full = self._path(path)
        entries = await self._sandbox.files.list(full, depth=max(1, depth), hidden=True, limit=1000)
        listing: list[dict[str, Any]] = []
        left = self._max
        for entry in entries:
            item = {"path": entry["path"], "type": entry["type"], "size": entry["size"]}
            left -= len(str(item))
            if left < 0:
                listing.append({"note": f"{len(entries) - len(listing)} more entries are left out"})
                break
            listing.append(item)
        return listing

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        work = {
            "runtime_exec": self.exec,
            "runtime_read_file": self.read_file,
            "runtime_write_file": self.write_file,
            "runtime_list_files": self.list_files,
        }.get(name)
        if work is None:
            return {"error": f"There is no tool {name!r}."}
        try:
            return await work(**arguments)  # type: ignore[operator]
        except TypeError as error:
            return {"error": f"The arguments of {name} do not fit: {error}"}
        except RuntimeError as error:
            return {"error": str(error), "code": error.code}

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._root, path))

    def _clip(self, text: str, cut: bool) -> str:
        """At most so many characters: the beginning and the end, which says most, with a note between."""
        if len(text) <= self._max:
            return text + ("\n[the rest of the output was not kept]" if cut else "")
        head = self._max // 2
        tail = self._max - head
        left_out = len(text) - self._max
        return f"{text[:head]}\n[{left_out} characters left out]\n{text[len(text) - tail :]}"
