"""Files of a sandbox. Paths are absolute; what is done is done as the sandbox's user."""

from __future__ import annotations

import builtins
import hashlib
import os
import stat as stat_module
import uuid
from typing import Any, AsyncIterator, Optional, Union, cast

from .. import _archive
from .. import _io_async as io
from .._api_types import FileEntry, FileStat, FileWritten
from .._call import BYTES, Call, encode
from .._errors import NotFoundError, RuntimeError
from .._fields import given
from .._source import PART_BYTES, Source
from .._wire import segment
from ._transport import AsyncAnswer, AsyncTransport, Cut
from .archives import AsyncArchives
from .watches import AsyncWatch, AsyncWatches

_PARTS_AT_ONCE = 8
_READS = 3


class AsyncFiles(AsyncArchives):
    """``sandbox.files``."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        super().__init__(transport, sandbox_id)
        #: Its watches.
        self.watches = AsyncWatches(transport, sandbox_id)

    async def watch(self, path: str, **options: Any) -> AsyncWatch:
        """Watches a folder or a file, as ``watches.start`` does, with the same options."""
        return await self.watches.start(path, **options)

    async def read(self, path: str) -> bytes:
        """A file's bytes, any size, in memory.

        What comes is checked against the length, and for a small file the SHA-256, that the server announces. A
        short read is done again, twice.

        Raises:
            NotFoundError: ``file_not_found``.
            ConflictError: ``is_a_directory``.
            RuntimeError: ``download_incomplete``, with ``details["received"]`` and ``details["expected"]``, in bytes.
        """
        for attempt in range(1, _READS + 1):
            answer = await self._content(path)
            check = _Check(answer)
            parts = []
            try:
                async for part in self._parts(answer, check):
                    parts.append(part)
                check.finish(path)
            except RuntimeError as error:
                if error.code != "download_incomplete" or attempt == _READS:
                    raise
            else:
                return b"".join(parts)
        raise AssertionError("the last read returns or raises")

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """A file as text.

        Raises:
            UnicodeDecodeError: It is not in that encoding.
        """
        return (await self.read(path)).decode(encoding)

    async def read_stream(self, path: str) -> AsyncIterator[bytes]:
        """A file's bytes in pieces as they come, any size.

        Raises:
            RuntimeError: ``download_incomplete`` at the end, where it fell short. What came before is right as far
                as it goes.
        """
        answer = await self._content(path)
        check = _Check(answer)
        parts = self._parts(answer, check)
        try:
            async for part in parts:
                yield part
        finally:
            await parts.aclose()
        check.finish(path)

    async def write(self, path: str, data: Union[str, bytes], mode: Optional[int] = None) -> FileWritten:
        """Writes a file whole or not at all.

        Under ``/workspace`` missing folders are made and any size is taken, in parts of 1 MiB from there on;
        elsewhere the folder must exist and 1 MiB is the most.

        Args:
            path: Where.
            data: Text (written as UTF-8) or bytes.
            mode: Its permissions, like ``0o755``; 0o644 if left out.

        Raises:
            NotFoundError: ``file_not_found``: the folder is missing.
            PermissionDeniedError: The sandbox's user may not.
            ConflictError: ``is_a_directory``, ``disk_full``.
        """
        raw = data.encode() if isinstance(data, str) else bytes(data)
        octal = None if mode is None else _octal(mode)
        return await self._write(path, Source.of_bytes(raw), octal)

    async def list(
        self,
        path: str = "/workspace",
        *,
        depth: Optional[int] = None,
        glob: Optional[str] = None,
        hidden: Optional[bool] = None,
        limit: Optional[int] = None,
    ) -> builtins.list[FileEntry]:
        """What is in a folder, sorted by path. Links are told, not followed.

        Args:
            path: The folder.
            depth: Levels below it; 1 if left out, all of them with `glob`.
            glob: Matched against the path below `path`: ``*.py`` for its own files, ``**/*.py`` for all.
            hidden: Also names that begin with a dot.
            limit: At most so many.

        Raises:
            NotFoundError: ``file_not_found``.
            ConflictError: ``not_a_directory``.
        """
        query = (("path", path), ("depth", depth), ("glob", glob), ("hidden", hidden), ("limit", limit))
        answer = await self._transport.json(Call("GET", self._root + "/files/list", query=query))
        return cast("builtins.list[FileEntry]", answer["data"])

    async def glob(self, pattern: str, root: str = "/workspace") -> builtins.list[FileEntry]:
        """The files below `root` that match, at any depth the pattern reaches."""
        return await self.list(root, glob=pattern)

    async def stat(self, path: str) -> FileStat:
        """What is at a path; ``{"exists": False, "path": …}`` where nothing is. A link is told, not followed."""
        answer = await self._transport.json(Call("GET", self._root + "/files/stat", query=(("path", path),)))
        return cast(FileStat, answer)

    async def exists(self, path: str) -> bool:
        """Whether anything is at a path."""
        return bool((await self.stat(path)).get("exists"))

    async def mkdir(self, path: str, parents: bool = True) -> None:
        """Makes a folder.

        Args:
            path: The folder.
            parents: Make missing folders above it too, and be content where it exists.

        Raises:
            ConflictError: ``already_exists``.
        """
        await self._change("mkdir", {"path": path, "parents": parents})

    async def remove(self, path: str, recursive: bool = False) -> bool:
        """Removes a file, or a folder with `recursive`. False where nothing was.

        Raises:
            ConflictError: ``directory_not_empty``.
        """
        answer = await self._change("remove", {"path": path, "recursive": recursive})
        return bool(answer.get("removed"))

    async def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Gives a file or folder another path.

        Raises:
            NotFoundError: ``file_not_found``.
            ConflictError: ``already_exists``, without `overwrite`.
        """
        await self._change("rename", {"from": source, "to": target, "overwrite": overwrite})

    async def upload(
        self, local_path: Union[str, os.PathLike[str]], remote_path: str, *, user: str = "sandbox"
    ) -> None:
        """Copies a local file in, with its permissions; or a folder, as `unarchive` does.

        Of a folder its files, folders and links go, with their permissions; it is joined with what is there.

        Args:
            local_path: The file or folder here.
            remote_path: What it is called there; of a folder, where its content goes.
            user: Who unpacks a folder: ``sandbox`` or ``root``.

        Raises:
            OSError: The local file cannot be read.
            ValueError: A single file as ``root``.
            RuntimeError: As `write` or `unarchive`.
        """
        local = os.fspath(local_path)
        if await io.aside(lambda: os.path.isdir(local)):
            packed = await io.aside(lambda: _archive.pack(local))
            try:
                await self._send_archive(remote_path, Source.of_file(packed), True, user, None)
            finally:
                packed.close()
            return
        if user != "sandbox":
            raise ValueError("a single file is written by the sandbox's own user; only a folder can be root's")
        file = await io.aside(lambda: open(local, "rb"))  # noqa: SIM115 - closed below
        try:
            mode = stat_module.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777
            await self._write(remote_path, Source.of_file(file), _octal(mode))
        finally:
            file.close()

    async def download(
        self, remote_path: str, local_path: Union[str, os.PathLike[str]], *, user: str = "sandbox"
    ) -> None:
        """Copies a file out, any size, with its permissions; or a folder, as `archive` does.

        What is here appears only once it is whole. A folder is joined with one that is there.

        Args:
            remote_path: The file or folder there.
            local_path: What it is called here; of a folder, where its content goes.
            user: Who reads: ``sandbox``; or ``root``, for folders.

        Raises:
            NotFoundError: ``file_not_found``.
            OSError: The local file cannot be written.
            RuntimeError: ``download_incomplete``; ``unsafe_archive``: something in the folder leads out of it.
        """
        final = os.fspath(local_path)
        if user != "sandbox":
            return await self._download_folder(remote_path, final, user)
        about: Any = await self.stat(remote_path)
        if not about.get("exists"):
            raise NotFoundError(f"There is no file {remote_path}.", code="file_not_found", status=404)
        if about.get("type") == "directory":
            return await self._download_folder(remote_path, final, user)
        partial = f"{final}.{uuid.uuid4().hex[:8]}.part"
        try:
            for attempt in range(1, _READS + 1):
                try:
                    await self._download(remote_path, partial)
                    break
                except RuntimeError as error:
                    if error.code != "download_incomplete" or attempt == _READS:
                        raise
            mode = int(about.get("mode") or "644", 8) & 0o777
            if about.get("type") == "file":
                await io.aside(lambda: os.chmod(partial, mode))
            await io.aside(lambda: os.replace(partial, final))
        except BaseException:
            if os.path.exists(partial):
                os.unlink(partial)
            raise

    async def _download(self, remote_path: str, partial: str) -> None:
        file = await io.aside(lambda: open(partial, "wb"))  # noqa: SIM115 - closed below, in a thread
        try:
            async for part in self.read_stream(remote_path):
                await io.aside(lambda part=part: file.write(part))  # type: ignore[misc]
        finally:
            await io.aside(file.close)

    async def _content(self, path: str) -> AsyncAnswer:
        call = Call("GET", self._root + "/files/content", query=(("path", path),), accept=BYTES)
        return await self._transport.open(call)

    async def _parts(self, answer: AsyncAnswer, check: _Check) -> io.Pieces:
        """The parts of a body, counted; ends early where it broke off, for the count to tell."""
        try:
            while True:
                part = await answer.part()
                if not part:
                    return
                check.add(part)
                yield part
        except Cut:
            check.cut = True
        finally:
            answer.close()

    async def _change(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._transport.json(Call("POST", f"{self._root}/files:{verb}", body=encode(body)))
        return cast("dict[str, Any]", answer)

    async def _write(self, path: str, source: Source, octal: Optional[str]) -> FileWritten:
        if source.size > PART_BYTES:
            return await self._write_parts(path, source, octal)
        call = Call(
            "PUT",
            self._root + "/files/content",
            query=(("path", path), ("mode", octal)),
            body=await io.aside(lambda: source.part(0, source.size)),
            content_type=BYTES,
        )
        return cast(FileWritten, await self._transport.json(call))

    async def _write_parts(self, path: str, source: Source, octal: Optional[str]) -> FileWritten:
        """Announces a large file, sends its parts in parallel, and has it put in place; or takes all back."""
        digest = await io.aside(source.sha256)
        announced = given(path=path, size=source.size, sha256=digest, mode=octal)
        begun = await self._transport.json(Call("POST", self._root + "/uploads", body=encode(announced)))
        upload = f"{self._root}/uploads/{segment(str(begun['uploadId']))}"
        size = begun.get("chunkBytes")
        if not isinstance(size, int) or not 0 < size <= PART_BYTES:
            size = PART_BYTES

        async def send(offset: int) -> None:
            part = await io.aside(lambda: source.part(offset, size))
            call = Call("PUT", upload, query=(("offset", offset),), body=part, content_type=BYTES)
            await self._transport.json(call)

        try:
            for outcome in await io.each(send, range(0, source.size, size), _PARTS_AT_ONCE):
                if isinstance(outcome, Exception):
                    raise outcome
            await self._transport.json(Call("POST", upload + ":commit", body=b"{}"))
        except BaseException:
            await self._abort(upload)
            raise
        if octal is not None and begun.get("mode") != octal:
            await self._change("chmod", {"path": path, "mode": octal})
        return FileWritten(path=path, size=source.size)


class _Check:
    """Whether a download is what the server said it would be."""

    def __init__(self, answer: AsyncAnswer) -> None:
        length = answer.headers.get("x-content-length")
        self._expected = int(length) if length is not None and length.isdigit() else None
        self._sha256 = answer.headers.get("x-content-sha256")
        self._digest = hashlib.sha256() if self._sha256 else None
        self._received = 0
        self.cut = False

    def add(self, part: bytes) -> None:
        self._received += len(part)
        if self._digest is not None:
            self._digest.update(part)

    def finish(self, path: str) -> None:
        wrong = self._digest is not None and self._digest.hexdigest() != self._sha256
        if self.cut or wrong or (self._expected is not None and self._received != self._expected):
            raise RuntimeError(
                f"{path} did not come whole: {self._received} of {self._expected} bytes.",
                code="download_incomplete",
                details={"received": self._received, "expected": self._expected},
            )


def _octal(mode: int) -> str:
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise ValueError("mode is a number like 0o644, at most 0o777")
    return f"{mode:03o}"
