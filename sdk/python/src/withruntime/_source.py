"""Bytes to be sent in parts: those of a file that may be large, or some that are in memory already."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import IO, Callable

#: What one request may carry; what is larger goes in parts of this size.
PART_BYTES = 1024 * 1024


class Source:
    """So many bytes, of which any part can be had. Safe to use from several threads."""

    def __init__(self, size: int, part: Callable[[int, int], bytes]) -> None:
        self.size = size
        self._part = part

    @classmethod
    def of_bytes(cls, raw: bytes) -> Source:
        return cls(len(raw), lambda offset, size: raw[offset : offset + size])

    @classmethod
    def of_file(cls, file: IO[bytes]) -> Source:
        """A file as it is now. Its position is nobody else's meanwhile."""
        lock = threading.Lock()

        def part(offset: int, size: int) -> bytes:
            with lock:
                file.seek(offset)
                return file.read(size)

        return cls(os.fstat(file.fileno()).st_size, part)

    def part(self, offset: int, size: int) -> bytes:
        """Bytes from an offset on.

        Raises:
            OSError: The file cannot be read, or is shorter than it was.
        """
        wanted = min(size, self.size - offset)
        data = self._part(offset, wanted)
        if len(data) != wanted:
            raise OSError("the file became shorter while it was sent")
        return data

    def sha256(self) -> str:
        """The digest of all of it, in hexadecimal."""
        digest = hashlib.sha256()
        for offset in range(0, self.size, PART_BYTES):
            digest.update(self.part(offset, PART_BYTES))
        return digest.hexdigest()
