"""Whole folders, out of a sandbox and into it, as tar."""

from __future__ import annotations

from typing import Optional, Sequence, Union

from .. import _archive
from .. import _io_async as io
from .._call import BYTES, Call, encode
from .._errors import RuntimeError
from .._source import PART_BYTES, Source
from .._wire import segment
from ._transport import AsyncTransport, Cut

_READS = 3


class AsyncArchives:
    """The part of ``sandbox.files`` that moves folders."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._root = f"/v1/sandboxes/{segment(sandbox_id)}"

    async def archive(
        self,
        path: str,
        *,
        gzip: bool = True,
        user: str = "sandbox",
        exclude: Optional[Sequence[str]] = None,
    ) -> bytes:
        """A folder as a tar archive, in memory; its entries are relative to the folder.

        Args:
            path: The folder.
            gzip: Compressed.
            user: Who reads it: ``sandbox`` or ``root``.
            exclude: Paths below the folder that are left out, with all that is in them.

        Raises:
            NotFoundError: ``file_not_found``.
            ConflictError: ``not_a_directory``; ``transfer_limit``: too many at once.
            RuntimeError: ``download_incomplete``: it was cut, three times.
        """
        for attempt in range(1, _READS + 1):
            parts: list[bytes] = []
            pieces = self._archive(path, gzip, user, exclude)
            try:
                async for piece in pieces:
                    parts.append(piece)
                return b"".join(parts)
            except RuntimeError as error:
                if error.code != "download_incomplete" or attempt == _READS:
                    raise
            finally:
                await pieces.aclose()
        raise AssertionError("the last read returns or raises")

    async def unarchive(
        self,
        path: str,
        data: bytes,
        *,
        gzip: Optional[bool] = None,
        user: str = "sandbox",
        idempotency_key: Optional[str] = None,
    ) -> None:
        """Unpacks a tar archive, compressed or not, into a folder, which is made, or joined with what is there.

        Nothing of it lands outside of the folder. What is above 1 MiB goes in parts.

        Args:
            path: The folder.
            data: The archive.
            gzip: Whether it is compressed; seen from its first bytes if left out.
            user: Who unpacks it: ``sandbox`` or ``root``.
            idempotency_key: For calls that are to be one.

        Raises:
            InvalidRequestError: ``invalid_archive``.
            ConflictError: ``transfer_limit``: too many at once; ``disk_full``.
        """
        compressed = data[:2] == b"\x1f\x8b" if gzip is None else gzip
        await self._send_archive(path, Source.of_bytes(data), compressed, user, idempotency_key)

    async def _send_archive(self, path: str, source: Source, gzip: bool, user: str, key: Optional[str]) -> None:
        if source.size <= PART_BYTES:
            call = Call(
                "PUT",
                self._root + "/files/archive",
                query=(("path", path), ("user", user)),
                body=await io.aside(lambda: source.part(0, source.size)),
                content_type=BYTES,
                key=key,
            )
            await self._transport.json(call)
            return
        uploads = self._root + "/files/archive/uploads"
        announced = encode({"path": path, "gzip": gzip, "user": user})
        begun = await self._transport.json(Call("POST", uploads, body=announced, key=key))
        upload = f"{uploads}/{segment(str(begun['uploadId']))}"
        size = begun.get("chunkBytes")
        try:
            if not isinstance(size, int) or not 0 < size <= PART_BYTES:
                raise RuntimeError("The server takes no parts that could be sent.", code="invalid_request")
            # One after the other: they are unpacked as they come.
            for offset in range(0, source.size, size):
                part = await io.aside(lambda offset=offset: source.part(offset, size))  # type: ignore[misc]
                call = Call("PUT", upload, query=(("offset", offset),), body=part, content_type=BYTES)
                await self._transport.json(call)
            await self._transport.json(Call("POST", upload + ":commit", body=b"{}"))
        except BaseException:
            await self._abort(upload)
            raise

    async def _download_folder(self, path: str, local: str, user: str) -> None:
        import tempfile

        with tempfile.TemporaryFile() as file:
            for attempt in range(1, _READS + 1):
                file.seek(0)
                file.truncate()
                pieces = self._archive(path, True, user, None)
                try:
                    async for piece in pieces:
                        await io.aside(lambda piece=piece: file.write(piece))  # type: ignore[misc]
                    break
                except RuntimeError as error:
                    if error.code != "download_incomplete" or attempt == _READS:
                        raise
                finally:
                    await pieces.aclose()
            file.seek(0)
            await io.aside(lambda: _archive.unpack(file, local))

    async def _archive(self, path: str, gzip: bool, user: str, exclude: Optional[Sequence[str]]) -> io.Pieces:
        """The pieces of an archive. One that ends early is an error."""
        query: list[tuple[str, Union[str, bool]]] = [("path", path), ("gzip", gzip), ("user", user)]
        query += [("exclude", one) for one in exclude or ()]
        answer = await self._transport.open(Call("GET", self._root + "/files/archive", query=query, accept=BYTES))
        received = 0
        try:
            while True:
                piece = await answer.part()
                if not piece:
                    break
                received += len(piece)
                yield piece
        except Cut as cut:
            raise RuntimeError(
                f"The archive of {path} did not come whole: {cut}",
                code="download_incomplete",
                hint="Try again. If it ends in the same way, something in the folder cannot be read by its user.",
                details={"received": received},
            ) from cut
        finally:
            answer.close()
        length = answer.headers.get("x-content-length")
        if length is not None and length.isdigit() and int(length) != received:
            raise RuntimeError(
                f"The archive of {path} did not come whole: {received} of {length} bytes.",
                code="download_incomplete",
                details={"received": received, "expected": int(length)},
            )

    async def _abort(self, upload: str) -> None:
        """Takes an upload back that failed."""
        try:
            await self._transport.json(Call("POST", upload + ":abort", body=b"{}"))
        except Exception:
            # What went wrong first is what the caller hears; parts that stay are swept by the server.
            pass
