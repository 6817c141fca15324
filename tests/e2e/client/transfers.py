"""Large files and whole folders, in and out, whatever happens on the way."""

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import threading
from pathlib import Path
from urllib.parse import quote

import withruntime as w
from support import box, check, eventually, fails, host, main, patience, raw, rt, together, unique

MIB = 1_048_576


def sha(data):
    return hashlib.sha256(data).hexdigest()


def begin(s, path, data, key=None, **more):
    headers = {"Idempotency_Key": key} if key else {}
    return raw("POST", f"/v1/sandboxes/{s.id}/uploads", {"path": path, "size": len(data), "sha256": sha(data), **more}, **headers)


def put(s, upload, offset, data):
    return raw("PUT", f"/v1/sandboxes/{s.id}/uploads/{upload}?offset={offset}", data)


def end(s, upload, verb, kind="uploads"):
    return raw("POST", f"/v1/sandboxes/{s.id}/{kind}/{upload}:{verb}", {})


def adopted(s):
    eventually(lambda: rt.sandboxes.get(s.id).state == "running", "adopted", 20)


def names(s, path="/workspace"):
    return sorted(e["path"] for e in s.files.list(path, depth=20, hidden=True))


def tar(*members, mode="w"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data, more in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            for field, value in more.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def unpack(s, path, data, **query):
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return raw("PUT", f"/v1/sandboxes/{s.id}/files/archive?path={quote(path, safe='')}{more}", data)


@check
def a_large_file_is_written_whole_with_its_mode():
    s = box()
    data = os.urandom(9 * MIB + 12_345)
    s.files.write("/workspace/new/dir/big", data, mode=0o755)
    assert s.files.read("/workspace/new/dir/big") == data
    st = s.files.stat("/workspace/new/dir/big")
    assert st["mode"] == "0755" and st["size"] == len(data) and st["owner"] == "runtime", st
    assert s.exec("sha256sum new/dir/big").stdout.split()[0] == sha(data)
    s.files.write("/workspace/new/dir/big", b"x" * (MIB + 1))
    st = s.files.stat("/workspace/new/dir/big")
    assert st["size"] == MIB + 1 and st["mode"] == "0644"
    assert names(s) == ["/workspace/new", "/workspace/new/dir", "/workspace/new/dir/big"]
    fails(w.PermissionDeniedError, "permission_denied", lambda: s.files.write("/root/big", data), 403)
    fails(w.ConflictError, "is_a_directory", lambda: s.files.write("/workspace/new", data), 409)
    with tempfile.TemporaryDirectory() as here:
        local = Path(here, "big")
        local.write_bytes(data)
        local.chmod(0o750)
        s.files.upload(str(local), "/workspace/up")
        assert s.files.stat("/workspace/up")["mode"] == "0750"
        s.files.download("/workspace/up", str(Path(here, "down")))
        assert Path(here, "down").read_bytes() == data


@check
def chunks_come_in_any_order_and_again():
    s = box()
    data = os.urandom(4 * MIB + 5)
    started = begin(s, "/workspace/f", data, mode="600").ok()
    upload = started["uploadId"]
    assert started["chunkBytes"] == MIB and started["mode"] == "600" and "mode" not in begin(s, "/workspace/g", data).ok()
    chunk = lambda n: data[n * MIB:(n + 1) * MIB]  # noqa: E731
    for answer in together(8, lambda n: put(s, upload, (4 - n % 4) * MIB, chunk(4 - n % 4))):
        answer.ok()
    end(s, upload, "commit").refused(409, "upload_incomplete")
    assert put(s, upload, 0, chunk(0)).ok()["received"] == len(data)
    end(s, upload, "commit").ok()
    end(s, upload, "commit").ok()
    assert s.files.read("/workspace/f") == data and s.files.stat("/workspace/f")["mode"] == "0600"
    put(s, upload, 0, chunk(0)).refused(400, "invalid_request")
    end(s, upload, "abort").refused(400, "invalid_request")


@check
def what_cannot_be_uploaded_is_refused():
    s = box()
    data = os.urandom(2 * MIB)
    good = {"path": "/workspace/f", "size": len(data), "sha256": sha(data)}
    for field, value in (("path", "f"), ("size", -1), ("size", "1"), ("sha256", "x" * 64), ("mode", "9"), ("bogus", 1)):
        raw("POST", f"/v1/sandboxes/{s.id}/uploads", {**good, field: value}).refused(400, "invalid_request")
    begin(s, "/etc/f", data).refused(403, "permission_denied")
    begin(s, "/tmp/none/f", data).refused(404, "file_not_found")
    raw("POST", f"/v1/sandboxes/{s.id}/uploads", {**good, "size": 100 << 30}).refused(409, "disk_full")
    upload = begin(s, "/workspace/f", data).ok()["uploadId"]
    put(s, upload, 1, data[:10]).refused(400, "invalid_request")
    put(s, upload, 0, data[:10]).refused(400, "invalid_request")
    put(s, upload, 2 * MIB, b"").refused(400, "invalid_request")
    put(s, upload, 0, data[:MIB] + b"x").refused(413, "file_too_large")
    put(s, upload, 0, data[MIB:]).ok()
    put(s, upload, MIB, data[:MIB]).ok()
    end(s, upload, "commit").refused(409, "digest_mismatch")
    assert not s.files.exists("/workspace/f")
    end(s, upload, "abort").ok()
    for answer in (put(s, upload, 0, data[:MIB]), end(s, upload, "commit"), end(s, upload, "abort"), end(s, "no", "abort")):
        answer.refused(404, "not_found")
    other = box()
    upload = begin(s, "/workspace/f", data).ok()["uploadId"]
    end(other, upload, "abort").refused(404, "not_found")
    end(s, upload, "abort", "files/archive/uploads").refused(404, "not_found")
    end(s, upload, "abort").ok()
    assert names(s) == []


@check
def an_upload_rides_through_a_crash_of_the_server():
    s = box()
    data, key = os.urandom(6 * MIB), unique("k")
    upload = begin(s, "/workspace/f", data, key).ok()["uploadId"]
    for n in (0, 3, 5):
        put(s, upload, n * MIB, data[n * MIB:(n + 1) * MIB]).ok()
    big, out = os.urandom(96 * MIB), []
    one = threading.Thread(target=lambda: out.append(s.files.write("/workspace/big", big)), daemon=True)
    one.start()
    eventually(lambda: any(e["name"].startswith(".runtime-upload-") and e["size"] > 8 * MIB
                           for e in s.files.list(hidden=True)), "it is under way")
    host("kill9")
    host("start")
    adopted(s)
    again = begin(s, "/workspace/f", data, key).ok()
    assert again["uploadId"] == upload and again["replayed"] is True, again
    for n in (1, 2, 4):
        put(s, upload, n * MIB, data[n * MIB:(n + 1) * MIB]).ok()
    end(s, upload, "commit").ok()
    assert s.files.read("/workspace/f") == data
    one.join(120)
    assert out, "the client's own write went through"
    assert s.exec("sha256sum big").stdout.split()[0] == sha(big)
    assert names(s) == ["/workspace/big", "/workspace/f"]


@check
def what_a_stop_left_unfinished_is_removed_at_the_restart():
    s = box()
    data = os.urandom(3 * MIB)
    upload = begin(s, "/workspace/d/f", data).ok()["uploadId"]
    put(s, upload, 0, data[:MIB]).ok()
    assert len(names(s)) == 2
    s.stop()
    s.restart()
    assert names(s) == ["/workspace/d"]
    put(s, upload, 0, data[:MIB]).refused(404, "not_found")


@check
def a_full_disk_ends_an_upload_and_frees_what_it_took():
    s = box(disk_mib=3072)
    s.exec("head -c 2800000000 /dev/zero > fill; sync", timeout_ms=patience(300_000))
    data = os.urandom(MIB)
    upload = raw("POST", f"/v1/sandboxes/{s.id}/uploads", {"path": "/workspace/f", "size": 1 << 30, "sha256": sha(data)}).ok()["uploadId"]
    # The kernel may take some before it writes them out.
    for n in range(1024):
        answer = put(s, upload, n * MIB, data)
        if answer.status != 200:
            break
    answer.refused(409, "disk_full")
    end(s, upload, "abort").ok()
    assert names(s) == ["/workspace/fill"] and s.exec("echo on").stdout == "on\n"


@check
def folders_go_up_and_come_down_the_same():
    s = box()
    with tempfile.TemporaryDirectory() as here:
        up = Path(here, "up")
        (up / "d/empty").mkdir(parents=True)
        (up / "a").write_text("hi")
        (up / "a").chmod(0o755)
        (up / "d/big").write_bytes(os.urandom(3 * MIB))
        (up / ("n" * 150)).write_text("long")
        (up / "é €").write_text("odd")
        (up / "link").symlink_to("d/big")
        s.files.upload(str(up), "/workspace/in/here")
        assert s.files.stat("/workspace/in/here/a")["mode"] == "0755"
        assert s.files.stat("/workspace/in/here/link")["symlinkTarget"] == "d/big"
        assert s.exec("find in -not -user runtime").stdout == ""
        s.files.download("/workspace/in/here", str(Path(here, "down")))
        down = Path(here, "down")
        tree = lambda root: {str(p.relative_to(root)): None if p.is_dir() else p.read_bytes() for p in root.rglob("*")}  # noqa: E731
        assert tree(down) == tree(up) and (down / "link").is_symlink() and os.stat(down / "a").st_mode & 0o777 == 0o755
        # Merged: what is there and not in the archive stays.
        s.files.write("/workspace/in/here/kept", "kept")
        (up / "a").write_text("second")
        s.files.upload(str(up), "/workspace/in/here")
        assert s.files.read_text("/workspace/in/here/a") == "second" and s.files.exists("/workspace/in/here/kept")
        # A sandbox's own tar reads what was made here, and what it makes is read here.
        s.files.write("/workspace/x.tgz", s.files.archive("/workspace/in"))
        s.exec("mkdir y && tar -C y -xzf x.tgz && diff -r --no-dereference in y", check=True)
        s.exec("tar -C in -czf z.tgz . && mkdir -p z", check=True)
        s.files.unarchive("/workspace/z", s.files.read("/workspace/z.tgz"))
        s.exec("diff -r --no-dereference in z", check=True)


@check
def archives_leave_out_what_is_named_and_see_what_root_sees():
    s = box()
    s.exec("mkdir -p t/node_modules/x t/src/node_modules; touch t/node_modules/x/y t/src/main t/src/node_modules/kept t/.env", check=True)
    found = lambda **more: sorted(tarfile.open(fileobj=io.BytesIO(s.files.archive("/workspace/t", **more))).getnames())  # noqa: E731
    inside = [n.removeprefix("./") for n in found(exclude=["node_modules", "./src/main"])]
    assert [n for n in inside if n not in (".", "")] == [".env", "src", "src/node_modules", "src/node_modules/kept"], inside
    assert len(found(gzip=False)) == len(found()) == 9, found()
    path = f"/v1/sandboxes/{s.id}/files/archive?path=/workspace"
    for wrong in ("/t&exclude=..", "/t&exclude=/a", "/t&exclude=", "/t&exclude=a/../b", "/t&user=nobody", "/t&gzip=1", "/t&bogus=1"):
        raw("GET", path + wrong).refused(400, "invalid_request")
    raw("GET", path + "/none").refused(404, "file_not_found")
    raw("GET", path + "/t/.env").refused(409, "not_a_directory")
    fails(w.PermissionDeniedError, "permission_denied", lambda: s.files.archive("/root"), 403)
    assert s.files.archive("/root", user="root")
    s.files.unarchive("/root/made", tar(("f", b"by root", {})), user="root")
    assert s.exec("cat /root/made/f; stat -c %U /root/made/f", user="root").stdout == "by rootroot\n"
    fails(w.PermissionDeniedError, "permission_denied", lambda: s.files.unarchive("/root/made", tar(("f", b"x", {}))), 403)


@check
def an_archive_that_cannot_be_read_whole_is_cut():
    s = box()
    s.exec("mkdir t && head -c 30000000 /dev/urandom > t/a && head -c 30000000 /dev/urandom > t/b && mkdir t/c && touch t/c/x", check=True)
    s.exec("chmod 0 t/c/x && chown root t/c/x", user="root", check=True, cwd="/workspace")
    for more in ("", "&gzip=true"):
        try:
            answer = raw("GET", f"/v1/sandboxes/{s.id}/files/archive?path=/workspace/t{more}")
        except Exception:  # noqa: BLE001 - the connection ended before the body
            continue
        # Whatever came of it does not pass for whole.
        assert answer.status != 200, answer.status
    assert s.exec("echo on").stdout == "on\n"


@check
def hostile_archives_reach_nothing_outside():
    s = box()
    s.exec("mkdir outside && echo precious > outside/file", check=True)
    before = s.exec("md5sum /etc/passwd outside/file").stdout
    link = lambda name, to: (name, b"", {"type": tarfile.SYMTYPE, "linkname": to})  # noqa: E731
    hard = lambda name, to: (name, b"", {"type": tarfile.LNKTYPE, "linkname": to})  # noqa: E731
    cases = [
        [("../outside/file", b"x", {})], [("/workspace/outside/file", b"x", {})], [("a/../../outside/file", b"x", {})],
        [link("l", "../outside"), ("l/file", b"x", {})], [link("l", "/etc"), ("l/passwd", b"x", {})],
        [link("l", "/"), link("l/workspace/m", "/")], [link("a", "b"), link("b", "../outside"), ("a/file", b"x", {})],
        [hard("h", "../outside/file"), ("h", b"x", {})], [hard("h", "/etc/passwd"), ("h", b"x", {})],
        [link("l", "../outside"), hard("h", "l/file"), ("h", b"x", {})],
        [("dev", b"", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})], [("blk", b"", {"type": tarfile.BLKTYPE})],
        [("pipe", b"", {"type": tarfile.FIFOTYPE})], [("n" * 5000, b"x", {})], [("d/" * 3000 + "x", b"x", {})],
    ]
    for number, members in enumerate(cases):
        for user in ("sandbox", "root"):
            for data in (tar(*members), tar(*members, mode="w:gz")):
                unpack(s, f"/workspace/t{number}", data, user=user).refused(400, "invalid_archive")
    assert s.exec("md5sum /etc/passwd outside/file").stdout == before
    assert names(s, "/workspace/outside") == ["/workspace/outside/file"]
    good = tar(("f", b"x" * 2000, {}))
    for data in (b"", b"x", good[:100], good[:1000], good[:-10_000], b"y" * 2000, gzip.compress(good)[:-4], gzip.compress(good[:1000])):
        unpack(s, "/workspace/cut", data).refused(400, "invalid_archive")
    bomb = gzip.compress(good + b"\0" * (64 * MIB), 9)
    unpack(s, "/workspace/bomb", bomb).refused(400, "invalid_archive")
    unpack(s, "/workspace/ok", good).ok()
    unpack(s, "/workspace/ok", b"x" * (MIB + 1)).refused(413, "file_too_large")
    unpack(s, "relative", good).refused(400, "invalid_request")
    unpack(s, "/workspace/outside/file", good).refused(409, "not_a_directory")


@check
def a_large_archive_rides_through_a_crash_of_the_server():
    s = box()
    blobs = {f"d/{n}": os.urandom(700_000) for n in range(12)}
    data = tar(*((name, blob, {}) for name, blob in blobs.items()), mode="w:gz")
    uploads = f"/v1/sandboxes/{s.id}/files/archive/uploads"
    started = raw("POST", uploads, {"path": "/workspace/t", "gzip": True}).ok()
    step = started["chunkBytes"]
    assert 0 < step <= MIB
    upload = started["uploadId"]
    part = lambda n: raw("PUT", f"{uploads}/{upload}?offset={n * step}", data[n * step:(n + 1) * step])  # noqa: E731
    for n in range(4):
        part(n).ok()
    part(6).refused(400, "invalid_request")
    host("kill9")
    host("start")
    adopted(s)
    for n in range(2, -(-len(data) // step)):
        part(n).ok()
        part(n).ok()
    end(s, upload, "commit", "files/archive/uploads").ok()
    end(s, upload, "commit", "files/archive/uploads").ok()
    assert all(s.files.read(f"/workspace/t/{name}") == blob for name, blob in blobs.items())
    upload = raw("POST", uploads, {"path": "/workspace/u"}).ok()["uploadId"]
    raw("PUT", f"{uploads}/{upload}?offset=0", data[:1000]).ok()
    end(s, upload, "commit", "files/archive/uploads").refused(400, "invalid_archive")
    held = [raw("POST", uploads, {"path": "/workspace/u"}).ok()["uploadId"] for _ in range(4)]
    raw("POST", uploads, {"path": "/workspace/u"}).refused(409, "transfer_limit")
    for upload in held:
        end(s, upload, "abort", "files/archive/uploads").ok()


if __name__ == "__main__":
    main()
