"""Folders of this machine as tar, and back: packing, and unpacking what a sandbox has made, which is not to be trusted.

Unpacking happens beside the destination and is moved there once it is whole. An entry outside of it, or a link that
leads out, refuses the whole archive.

What only folders need is imported where it is used: most programs move none.
"""

from __future__ import annotations

import os
import posixpath
from typing import IO, TYPE_CHECKING, Any

from ._errors import RuntimeError

if TYPE_CHECKING:
    import tarfile

_PIECE = 64 * 1024


def pack(folder: str) -> IO[bytes]:
    """A folder's content as tar.gz in a file without a name, at its beginning. Sockets and devices are left out."""
    import tarfile
    import tempfile

    def plain(entry: tarfile.TarInfo) -> Any:
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            return None
        # Here they are someone else's; in the sandbox they are its user's.
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's to close
    try:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
            archive.add(folder, arcname=".", filter=plain)
        file.seek(0)
        return file
    except BaseException:
        file.close()
        raise


def unpack(file: IO[bytes], folder: str) -> None:
    """Unpacks a tar or tar.gz into a folder, which is made, or added to.

    Raises:
        RuntimeError: ``unsafe_archive``; ``download_incomplete`` where it is cut. Nothing was written.
        OSError: The folder cannot be written.
    """
    import shutil
    import tarfile
    import tempfile
    import zlib

    final = os.path.abspath(folder)
    os.makedirs(os.path.dirname(final), exist_ok=True)
    staged = tempfile.mkdtemp(prefix=os.path.basename(final) + ".", suffix=".part", dir=os.path.dirname(final))
    try:
        try:
            _unpack_all(file, staged)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise _cut(error) from error
        except OSError as error:
            # A gzip whose sum is wrong is an OSError without a number; one with a number is of this machine's disk.
            if error.errno is not None:
                raise
            raise _cut(error) from error
        if not os.path.lexists(final):
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(staged, 0o777 & ~umask)
            os.rename(staged, final)
        else:
            _merge(staged, final)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _unpack_all(file: IO[bytes], staged: str) -> None:
    import shutil
    import tarfile

    modes: list[tuple[str, int]] = []
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        for entry in archive:
            name = posixpath.normpath(entry.name)
            if name.startswith("/") or name == ".." or name.startswith("../") or "\0" in name:
                raise _unsafe(f"an entry outside of the folder: {entry.name}")
            if name == ".":
                continue
            path = os.path.join(staged, *name.split("/"))
            _parents(staged, name)
            if entry.isdir():
                if os.path.islink(path) or not os.path.isdir(path):
                    _clear(path)
                    os.mkdir(path)
                modes.append((path, entry.mode & 0o777))
            elif entry.isreg():
                _clear(path)
                content = archive.extractfile(entry)
                assert content is not None  # noqa: S101 - a regular file has some
                with content, open(path, "xb") as out:
                    shutil.copyfileobj(content, out)
                os.chmod(path, entry.mode & 0o777)
                os.utime(path, (entry.mtime, entry.mtime))
            elif entry.issym():
                inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), entry.linkname))
                if entry.linkname.startswith("/") or inside == ".." or inside.startswith("../"):
                    raise _unsafe(f"a link that leads out: {name} -> {entry.linkname}")
                _clear(path)
                os.symlink(entry.linkname, path)
            elif entry.islnk():
                target = posixpath.normpath(entry.linkname)
                source = os.path.join(staged, *target.split("/"))
                if target.startswith(("/", "../")) or target == ".." or not _is_plain(staged, target):
                    raise _unsafe(f"a hard link to what is not in it: {name} -> {entry.linkname}")
                _clear(path)
                os.link(source, path, follow_symlinks=False)
        # The sum of the whole stands behind the last entry, where nobody would look otherwise.
        while archive.fileobj is not None and archive.fileobj.read(_PIECE):
            pass
    # Last, the deepest first: one that nobody may write was to be filled before.
    for path, mode in sorted(modes, reverse=True):
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, mode | 0o700)


def _parents(staged: str, name: str) -> None:
    """Makes the folders above an entry. None of them may be a link that an earlier entry made."""
    path = staged
    for part in name.split("/")[:-1]:
        path = os.path.join(path, part)
        if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
            raise _unsafe(f"an entry below what is no folder: {name}")
        if not os.path.lexists(path):
            os.mkdir(path)


def _is_plain(staged: str, name: str) -> bool:
    """Whether an earlier entry of this name is a file, with no link on the way."""
    path = staged
    for part in name.split("/"):
        if os.path.islink(path):
            return False
        path = os.path.join(path, part)
    return os.path.isfile(path) and not os.path.islink(path)


def _clear(path: str) -> None:
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)


def _merge(staged: str, final: str) -> None:
    """Moves what was unpacked over what is there. Folders are joined, all else is replaced."""
    for name in os.listdir(staged):
        source, target = os.path.join(staged, name), os.path.join(final, name)
        if os.path.isdir(source) and not os.path.islink(source):
            if os.path.islink(target) or (os.path.lexists(target) and not os.path.isdir(target)):
                os.unlink(target)
            if os.path.lexists(target):
                _merge(source, target)
                continue
        os.replace(source, target)


def _unsafe(what: str) -> RuntimeError:
    return RuntimeError(
        f"The archive was refused for {what}.",
        code="unsafe_archive",
        hint="Nothing was written. files.archive() gives the archive itself, with exclude= to leave things out.",
    )


def _cut(error: BaseException) -> RuntimeError:
    return RuntimeError(
        f"The folder's archive did not come whole: {error or type(error).__name__}. Nothing was written.",
        code="download_incomplete",
    )
