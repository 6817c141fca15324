"""Files: content, lists, stat, folders, remove, rename, modes."""

import hashlib
import os

import withruntime as w
from support import box, check, fails, main, raw, together
from urllib.parse import quote


def content(s, path):
    return f"/v1/sandboxes/{s.id}/files/content?path={quote(path, safe='')}"


@check
def what_is_written_is_read():
    s = box()
    F = s.files
    for path, data in (("/workspace/a.txt", "hi"), ("/workspace/empty", b""), ("/workspace/bin", bytes(range(256))),
                       ("/workspace/d/e/f", "made its parents"), ("/workspace/my file+1&=%.txt", "odd name"),
                       ("/workspace/é€😀", "unicode"), ("/tmp/t", "tmp")):
        F.write(path, data)
        assert F.read(path) == (data.encode() if isinstance(data, str) else data), path
        assert F.exists(path)
    assert F.read_text("/workspace/a.txt") == "hi" and b"".join(F.read_stream("/workspace/bin")) == bytes(range(256))
    F.write("/workspace/a.txt", "shorter than before? no, longer")
    F.write("/workspace/a.txt", "s")
    assert F.read_text("/workspace/a.txt") == "s" and s.exec("cat a.txt").stdout == "s"
    s.exec("printf made-inside > inside", check=True)
    assert F.read_text("/workspace/inside") == "made-inside" and not F.exists("/workspace/absent")


@check
def content_carries_its_length_and_digest():
    s = box()
    data = os.urandom(1_048_576)
    s.files.write("/workspace/one", data)
    answer = raw("GET", content(s, "/workspace/one"))
    assert answer.body == data and answer.headers["x-content-length"] == "1048576"
    assert answer.headers.get("x-content-sha256", hashlib.sha256(data).hexdigest()) == hashlib.sha256(data).hexdigest()
    hostname = raw("GET", content(s, "/etc/hostname"))
    assert int(hostname.headers["x-content-length"]) == len(hostname.body)
    s.exec("head -c 50000000 /dev/urandom > big && sha256sum big > sum", check=True)
    big = s.files.read("/workspace/big")
    assert len(big) == 50_000_000 and hashlib.sha256(big).hexdigest() == s.files.read_text("/workspace/sum").split()[0]


@check
def one_mebibyte_fits_and_one_byte_more_does_not():
    s = box()
    s.files.write("/workspace/fits", b"x" * 1_048_576)
    answer = raw("PUT", content(s, "/workspace/more"), b"x" * 1_048_577)
    assert answer.status == 413 and "error" in answer.json
    assert not s.files.exists("/workspace/more")


@check
def modes_are_set_and_kept():
    s = box()
    F = s.files
    F.write("/workspace/x", "#!/bin/sh\necho ran", mode=0o755)
    assert F.stat("/workspace/x")["mode"] == "0755" and s.exec("./x").stdout == "ran\n"
    F.write("/workspace/y", "")
    assert F.stat("/workspace/y")["mode"] == "0644"
    chmod = f"/v1/sandboxes/{s.id}/files:chmod"
    assert raw("POST", chmod, {"path": "/workspace/y", "mode": "600"}).ok() == {}
    assert F.stat("/workspace/y")["mode"] == "0600"
    raw("POST", chmod, {"path": "/workspace/none", "mode": "600"}).refused(404, "file_not_found")
    raw("POST", chmod, {"path": "/etc/passwd", "mode": "777"}).refused(403, "permission_denied")
    for mode in ("9", "abc", "77777", 7, ""):
        raw("POST", chmod, {"path": "/workspace/y", "mode": mode}).refused(400, "invalid_request")
    raw("PUT", content(s, "/workspace/z") + "&mode=999", b"").refused(400, "invalid_request")


@check
def stat_tells_everything_and_missing_is_no_error():
    s = box()
    F = s.files
    F.write("/workspace/f.txt", "hi")
    st = F.stat("/workspace/f.txt")
    assert st["exists"] is True and st["name"] == "f.txt" and st["path"] == "/workspace/f.txt" and st["type"] == "file"
    assert (st["size"], st["mode"], st["uid"], st["gid"], st["owner"], st["group"]) == (2, "0644", 1000, 1000, "runtime", "runtime")
    assert st["modifiedAt"].endswith("Z") and len(st["modifiedAt"]) == 24 and isinstance(st["mtimeMs"], int)
    assert F.stat("/workspace/no") == {"exists": False, "path": "/workspace/no"}
    assert F.stat("/workspace/f.txt/under") == {"exists": False, "path": "/workspace/f.txt/under"}
    assert F.stat("/workspace")["type"] == "directory" and F.stat("/etc/passwd")["owner"] == "root"
    s.exec("ln -s /workspace/f.txt good; ln -s /nowhere broken; mkfifo pipe", check=True)
    l = F.stat("/workspace/good")
    assert l["type"] == "symlink" and l["symlinkTarget"] == "/workspace/f.txt"
    assert F.stat("/workspace/broken")["exists"] is True and F.stat("/workspace/pipe")["type"] == "other"
    assert F.stat("/dev/null")["type"] == "other"


@check
def list_shows_one_level_and_more_when_asked():
    s = box()
    F = s.files
    for path in ("top.py", "d/deep.py", "d/e/deeper.py", ".hidden/in.py", "d/.secret"):
        F.write("/workspace/" + path, "x")
    names = lambda **k: [e["path"].removeprefix("/workspace/") for e in F.list("/workspace", **k)]  # noqa: E731
    assert names() == ["d", "top.py"], names()
    assert names(hidden=True) == [".hidden", "d", "top.py"]
    assert names(depth=2) == ["d", "d/deep.py", "d/e", "top.py"]
    assert names(depth=3) == ["d", "d/deep.py", "d/e", "d/e/deeper.py", "top.py"]
    assert set(names(depth=3, hidden=True)) == {".hidden", ".hidden/in.py", "d", "d/.secret", "d/deep.py", "d/e", "d/e/deeper.py", "top.py"}
    assert len(names(depth=3, limit=2)) == 2
    entry = next(e for e in F.list() if e["name"] == "top.py")
    assert entry["type"] == "file" and entry["size"] == 1 and entry["modifiedAt"].endswith("Z") and isinstance(entry["mtimeMs"], int)
    fails(w.ConflictError, "not_a_directory", lambda: F.list("/workspace/top.py"), 409)
    fails(w.NotFoundError, "file_not_found", lambda: F.list("/workspace/none"), 404)
    s.exec("mkdir locked && chmod 0 locked", user="root", check=True)
    fails(w.PermissionDeniedError, "permission_denied", lambda: F.list("/workspace/locked"), 403)


@check
def glob_matches_the_relative_path():
    s = box()
    F = s.files
    for path in ("top.py", "d/deep.py", "d/e/deeper.py", "d/x.txt"):
        F.write("/workspace/" + path, "x")
    paths = lambda pattern, **k: [e["path"] for e in F.glob(pattern, **k)]  # noqa: E731
    assert paths("*.py") == ["/workspace/top.py"]
    assert sorted(paths("**/*.py")) == ["/workspace/d/deep.py", "/workspace/d/e/deeper.py", "/workspace/top.py"]
    assert paths("d/*.py") == ["/workspace/d/deep.py"] and paths("*.py", root="/workspace/d") == ["/workspace/d/deep.py"]
    assert paths("*.none") == []
    raw("GET", f"/v1/sandboxes/{s.id}/files/list?path=/workspace&glob=%5B").refused(400, "invalid_request")


@check
def links_are_listed_and_not_followed():
    s = box()
    s.exec("mkdir d; ln -s d loop; ln -s .. d/up; ln -s /etc d/etc", check=True)
    listed = {e["path"]: e for e in s.files.list("/workspace", depth=10)}
    assert set(listed) == {"/workspace/d", "/workspace/loop", "/workspace/d/up", "/workspace/d/etc"}, set(listed)
    assert listed["/workspace/loop"]["type"] == "symlink" and listed["/workspace/loop"]["symlinkTarget"] == "d"


@check
def a_directory_of_many_files_is_listed_up_to_the_limit():
    s = box()
    s.exec("mkdir many && cd many && seq 1 12000 | xargs touch", check=True, timeout_ms=300_000)
    assert len(s.files.list("/workspace/many", limit=10_000)) == 10_000
    assert len(s.files.list("/workspace/many", limit=5)) == 5


@check
def mkdir_makes_parents_and_is_content_with_what_is_there():
    s = box()
    F = s.files
    F.mkdir("/workspace/a/b/c")
    F.mkdir("/workspace/a/b/c")
    assert F.stat("/workspace/a/b/c")["type"] == "directory" and F.stat("/workspace/a/b")["owner"] == "runtime"
    mkdir = f"/v1/sandboxes/{s.id}/files:mkdir"
    raw("POST", mkdir, {"path": "/workspace/x/y", "parents": False}).refused(404, "file_not_found")
    raw("POST", mkdir, {"path": "/workspace/a", "parents": False}).refused(409, "already_exists")
    F.write("/workspace/f", "")
    assert raw("POST", mkdir, {"path": "/workspace/f", "parents": True}).status == 409
    raw("POST", mkdir, {"path": "/root/x", "parents": True}).refused(403, "permission_denied")


@check
def remove_says_whether_there_was_something():
    s = box()
    F = s.files
    F.write("/workspace/d/f", "x")
    assert F.remove("/workspace/none") is False
    fails(w.ConflictError, "directory_not_empty", lambda: F.remove("/workspace/d"), 409)
    assert F.remove("/workspace/d/f") is True and F.remove("/workspace/d") is True
    F.write("/workspace/e/f/g", "x")
    s.exec("ln -s /workspace/keep e/link; mkdir keep; echo x > keep/file", check=True)
    assert F.remove("/workspace/e", recursive=True) is True and F.exists("/workspace/keep/file")
    fails(w.PermissionDeniedError, "permission_denied", lambda: F.remove("/etc/passwd"), 403)
    assert F.exists("/etc/passwd")


@check
def rename_moves_and_replaces_only_when_told():
    s = box()
    F = s.files
    F.write("/workspace/a", "a")
    F.write("/workspace/b", "b")
    F.rename("/workspace/a", "/workspace/c")
    assert not F.exists("/workspace/a") and F.read_text("/workspace/c") == "a"
    fails(w.ConflictError, "already_exists", lambda: F.rename("/workspace/c", "/workspace/b"), 409)
    assert F.read_text("/workspace/b") == "b"
    F.rename("/workspace/c", "/workspace/b", overwrite=True)
    assert F.read_text("/workspace/b") == "a"
    fails(w.NotFoundError, "file_not_found", lambda: F.rename("/workspace/none", "/workspace/x"), 404)
    F.mkdir("/workspace/dir/sub")
    F.rename("/workspace/dir", "/workspace/dir2")
    assert F.stat("/workspace/dir2/sub")["type"] == "directory"


@check
def refusals_name_the_path():
    s = box()
    F = s.files
    F.mkdir("/workspace/d")
    assert "/workspace/no" in str(fails(w.NotFoundError, "file_not_found", lambda: F.read("/workspace/no"), 404))
    assert "/workspace/d" in str(fails(w.ConflictError, "is_a_directory", lambda: F.read("/workspace/d"), 409))
    fails(w.ConflictError, "is_a_directory", lambda: F.write("/workspace/d", "x"), 409)
    fails(w.PermissionDeniedError, "permission_denied", lambda: F.write("/root/x", "x"), 403)
    fails(w.PermissionDeniedError, "permission_denied", lambda: F.read("/etc/shadow"), 403)
    fails(w.NotFoundError, "file_not_found", lambda: F.write("/tmp/none/x", "x"), 404)
    fails(w.PermissionDeniedError, "permission_denied", lambda: F.write("/etc/passwd", "x"), 403)
    for path in ("relative", "", "a/../b"):
        for call in (lambda: F.read(path), lambda: F.write(path, "x"), lambda: F.stat(path), lambda: F.list(path),
                     lambda: F.mkdir(path), lambda: F.remove(path), lambda: F.rename(path, "/workspace/x"),
                     lambda: F.rename("/workspace/x", path)):
            fails(w.InvalidRequestError, "invalid_request", call, 400)
    raw("GET", f"/v1/sandboxes/{s.id}/files/content").refused(400, "invalid_request")
    raw("GET", f"/v1/sandboxes/{s.id}/files/content?path=%2Fworkspace%00x").refused(400, "invalid_request")
    raw("GET", f"/v1/sandboxes/{s.id}/files/content?path=/workspace/x&bogus=1").refused(400, "invalid_request")
    assert 400 <= raw("GET", content(s, "/workspace/" + "x" * 300)).status < 500
    assert 400 <= raw("GET", content(s, "/" + "y/" * 4000)).status < 500


@check
def special_files_do_not_hang_or_fill_the_server():
    s = box()
    s.exec("mkfifo pipe", check=True)
    assert 400 <= raw("GET", content(s, "/workspace/pipe")).status < 500
    assert 400 <= raw("GET", content(s, "/dev/zero")).status < 500
    assert s.exec("echo alive").stdout == "alive\n"


@check
def a_write_is_whole_or_not_at_all():
    s = box()
    s.files.write("/workspace/f", b"a" * 500_000)
    writers = together(8, lambda n: s.files.write("/workspace/f", bytes([97 + n]) * 500_000))
    assert not [one for one in writers if isinstance(one, BaseException)], writers
    data = s.files.read("/workspace/f")
    assert len(data) == 500_000 and len(set(data)) == 1
    # Nothing half written is left beside it.
    assert [e["name"] for e in s.files.list("/workspace", hidden=True)] == ["f"]


@check
def eight_readers_and_writers_at_once():
    s = box()
    blobs = [os.urandom(300_000) for _ in range(16)]
    done = together(16, lambda n: (s.files.write(f"/workspace/p/{n}", blobs[n]), s.files.read(f"/workspace/p/{n}"))[1])
    assert done == blobs


@check
def a_home_full_of_links_cannot_lead_a_write_out_of_what_the_user_may():
    s = box()
    s.exec("ln -s /etc/passwd link; ln -s /root away; ln -s / all", check=True)
    before = s.exec("md5sum /etc/passwd").stdout
    for path in ("/workspace/link", "/workspace/all/etc/passwd", "/workspace/away/x"):
        answer = raw("PUT", content(s, path), b"owned")
        assert answer.status in (200, 403), (path, answer.status)
    # A write replaces the link itself or is refused; what it pointed to is as it was.
    assert s.exec("md5sum /etc/passwd").stdout == before
    assert s.exec("ls -A /root | grep -c '^x$'", user="root").stdout == "0\n"


if __name__ == "__main__":
    main()
