"""Folders of this machine as archives, and back from a sandbox that means no good."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from withruntime import RuntimeError
from withruntime._archive import pack, unpack

Entry = tuple[str, bytes, Any]

FILE, FOLDER, LINK, HARD, FIFO = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)


def archive(*entries: Entry) -> bytes:
    """A tar of a name, a kind and a content or target each."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, what in entries:
            about = tarfile.TarInfo(name)
            about.type = kind
            about.mode = 0o640
            if kind == FILE:
                about.size = len(what)
            elif kind in (LINK, HARD):
                about.linkname = what
            tar.addfile(about, io.BytesIO(what) if kind == FILE else None)
    return gzip.compress(out.getvalue())


def unpacked(data: bytes, folder: Path) -> None:
    unpack(io.BytesIO(data), str(folder))


def test_a_folder_goes_and_comes_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "file").write_bytes(os.urandom(100_000))
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o750)
    (source / "link").symlink_to("deep/er/file")
    (source / "twin").symlink_to("run")
    os.link(source / "run", source / "same")
    os.mkfifo(source / "fifo")
    with pack(str(source)) as packed:
        unpack(packed, str(tmp_path / "out" / "copy"))
    copy = tmp_path / "out" / "copy"
    assert sorted(path.name for path in copy.iterdir()) == ["deep", "link", "run", "same", "twin"]
    assert (copy / "link").read_bytes() == (source / "deep" / "er" / "file").read_bytes()
    assert os.readlink(copy / "link") == "deep/er/file"
    assert (copy / "run").stat().st_mode & 0o777 == 0o750
    assert (copy / "same").stat().st_ino == (copy / "run").stat().st_ino
    assert [path.name for path in copy.parent.iterdir()] == ["copy"], "nothing is left beside it"


def test_a_folder_is_joined_with_what_is_there(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "sub").mkdir(parents=True)
    (there / "sub" / "mine").write_text("mine")
    (there / "a").write_text("old")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (there / "was-link").symlink_to(elsewhere)
    unpacked(archive(("./a", FILE, b"new"), ("./sub/b", FILE, b"b"), ("./was-link/c", FILE, b"c")), there)
    assert (there / "a").read_text() == "new" and (there / "sub" / "mine").read_text() == "mine"
    assert (there / "sub" / "b").read_text() == "b"
    # A link of before is replaced, never followed.
    assert list(elsewhere.iterdir()) == [] and (there / "was-link" / "c").read_text() == "c"


@pytest.mark.parametrize(
    "entries",
    [
        [("../out", FILE, b"x")],
        [("/tmp/out", FILE, b"x")],
        [("a/../../out", FILE, b"x")],
        [("link", LINK, "/etc/passwd")],
        [("link", LINK, "../..")],
        [("sub/link", LINK, "../../x")],
        [("link", LINK, "."), ("link/x", FILE, b"x")],
        [("sub", FOLDER, None), ("link", LINK, "sub"), ("link/x", FILE, b"x")],
        [("file", FILE, b"x"), ("file/x", FILE, b"x")],
        [("hard", HARD, "/etc/hostname")],
        [("hard", HARD, "../x")],
        [("hard", HARD, "nowhere")],
        [("link", LINK, "x"), ("hard", HARD, "link")],
    ],
)
def test_what_leads_out_refuses_the_whole(tmp_path: Path, entries: list[Entry]) -> None:
    with pytest.raises(RuntimeError) as told:
        unpacked(archive(("fine", FILE, b"x"), *entries), tmp_path / "out")
    assert told.value.code == "unsafe_archive"
    assert [path.name for path in tmp_path.iterdir() if path.name != "config"] == []


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    unpacked(archive((".", FOLDER, None), ("fifo", FIFO, None), ("a", FILE, b"x"), ("a", FILE, b"y")), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]
    assert (tmp_path / "out" / "a").read_text() == "y"


@pytest.mark.parametrize("left", [0, 1, 10, 100, -20, -9, -8, -1])
def test_an_archive_that_is_cut_writes_nothing(tmp_path: Path, left: int) -> None:
    whole = archive(("a", FILE, os.urandom(5000)), ("b", FILE, os.urandom(5000)))
    with pytest.raises(RuntimeError) as told:
        unpacked(whole[:left], tmp_path / "out")
    assert told.value.code == "download_incomplete"
    assert not (tmp_path / "out").exists()


def test_a_wrong_sum_writes_nothing(tmp_path: Path) -> None:
    whole = bytearray(archive(("a", FILE, b"x" * 5000)))
    whole[-6] ^= 1
    with pytest.raises(RuntimeError) as told:
        unpacked(bytes(whole), tmp_path / "out")
    assert told.value.code == "download_incomplete"
