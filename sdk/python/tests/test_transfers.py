"""Files that come and go whole, whatever the connection does."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest

from withruntime import (
    ConflictError,
    RuntimeError,
)

from .forms import BOX, both, drive, settle
from .player import Answer, Player, Request, answer, chunked, refusal

pytestmark = pytest.mark.usefixtures("quick")


def content(data: bytes, length: int, digest: bytes = b"") -> Answer:
    headers = {"x-content-length": str(length)}
    if digest:
        headers["x-content-sha256"] = hashlib.sha256(digest).hexdigest()
    return answer(data, headers=headers)


@both
def test_a_short_read_is_done_again(form: str) -> None:
    async def read(client: Any) -> Any:
        return await settle((await settle(client.sandboxes.get(BOX["id"]))).files.read("/workspace/x"))

    cut = chunked(b"ab", headers={"x-content-length": "4"}, whole=False)
    with Player([answer(BOX), cut, content(b"abXd", 4, b"abcd"), content(b"abcd", 4, b"abcd")]) as player:
        assert drive(form, player.url, read) == b"abcd"
        assert len(player.requests) == 4
    with Player([answer(BOX), content(b"abc", 4)]) as player:
        with pytest.raises(RuntimeError) as told:
            drive(form, player.url, read)
        assert len(player.requests) == 4
    assert told.value.code == "download_incomplete" and told.value.details == {"received": 3, "expected": 4}


@both
def test_a_short_stream_is_an_error_at_its_end(form: str) -> None:
    got: list[bytes] = []

    async def read(client: Any) -> None:
        files = (await settle(client.sandboxes.get(BOX["id"]))).files
        if form == "async":
            async for piece in files.read_stream("/workspace/x"):
                got.append(piece)
        else:
            got.extend(iter_noting(files.read_stream("/workspace/x"), got))

    def iter_noting(pieces: Any, into: list[bytes]) -> list[bytes]:
        for piece in pieces:
            into.append(piece)
        return []

    with Player([answer(BOX), chunked(b"ab", headers={"x-content-length": "4"}, whole=False)]) as player:
        with pytest.raises(RuntimeError) as told:
            drive(form, player.url, read)
        assert len(player.requests) == 2, "a stream is never begun again"
    assert b"".join(got) == b"ab" and told.value.code == "download_incomplete"


@both
def test_a_download_that_fails_leaves_nothing(form: str, tmp_path: Path) -> None:
    async def download(client: Any) -> None:
        files = (await settle(client.sandboxes.get(BOX["id"]))).files
        await settle(files.download("/workspace/x", tmp_path / "x"))

    about = answer({"exists": True, "type": "file", "mode": "0640", "path": "/workspace/x"})
    with Player([answer(BOX), about, content(b"abc", 4)]) as player, pytest.raises(RuntimeError):
        drive(form, player.url, download)
    assert list(tmp_path.iterdir()) == [] or [p.name for p in tmp_path.iterdir()] == ["config"]
    with Player([answer(BOX), about, content(b"abc", 4), content(b"abcd", 4)]) as player:
        drive(form, player.url, download)
    assert (tmp_path / "x").read_bytes() == b"abcd" and (tmp_path / "x").stat().st_mode & 0o777 == 0o640


@both
@pytest.mark.parametrize("fails", [False, True])
def test_a_large_file_goes_in_parts_or_not_at_all(form: str, fails: bool) -> None:
    data = bytes(range(256)) * 10_000
    parts: dict[int, bytes] = {}
    done: list[str] = []
    lock = threading.Lock()

    def script(request: Request) -> Answer:
        path, _, query = request.target.partition("?")
        if path.endswith("/uploads"):
            assert request.json == {
                "path": "/workspace/big",
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "mode": "755",
            }
            return answer({"uploadId": "u1", "chunkBytes": 1048576, "mode": "755"})
        if query.startswith("offset="):
            offset = int(query[7:])
            if fails and offset:
                return refusal(409, "disk_full")
            with lock:
                parts[offset] = request.body
            return answer({"received": len(request.body)})
        if "/uploads/u1" in path:
            done.append(path.rpartition(":")[2])
            return answer({})
        return answer(BOX)

    async def write(client: Any) -> Any:
        files = (await settle(client.sandboxes.get(BOX["id"]))).files
        return await settle(files.write("/workspace/big", data, 0o755))

    with Player(script) as player:
        if fails:
            with pytest.raises(ConflictError):
                drive(form, player.url, write)
            assert done == ["abort"]
            return
        assert drive(form, player.url, write) == {"path": "/workspace/big", "size": len(data)}
        assert len(set(player.keys[1:])) == len(player.keys[1:]), "each part is a change of its own"
    assert done == ["commit"]
    assert b"".join(parts[offset] for offset in sorted(parts)) == data


@both
@pytest.mark.parametrize("mode", [-1, 0o1000, True])
def test_a_mode_is_a_number_of_permissions(form: str, mode: int) -> None:
    async def write(client: Any) -> None:
        files = (await settle(client.sandboxes.get(BOX["id"]))).files
        await settle(files.write("/workspace/x", b"", mode))

    with Player([answer(BOX)]) as player, pytest.raises(ValueError):
        drive(form, player.url, write)
