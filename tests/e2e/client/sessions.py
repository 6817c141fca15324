"""Sessions: what a web page does with a token, played by the client and by hand."""

import threading

import withruntime as w
from support import URL, box, check, eventually, fails, main, raw, rt
from withruntime import Sandbox


def inside(s, **fields):
    made = s.sessions.create(**fields)
    return made, Sandbox.from_session(made["token"], s.id, URL)


@check
def a_page_runs_commands_and_moves_files():
    s = box()
    made, page = inside(s, ttl_seconds=600, origins=["https://app.example.com"], name="tab")
    assert made["token"].startswith("rtsess_") and made["name"] == "tab" and made["state"] == "active", made
    page.files.write("/workspace/a", "from a page")
    assert page.exec("cat /workspace/a").stdout == "from a page"
    assert s.files.read_text("/workspace/a") == "from a page"
    process = page.spawn("sleep 300")
    assert process.id in [one["id"] for one in page.processes()]
    process.kill()
    listed = s.sessions.list()
    listed = listed["data"] if isinstance(listed, dict) else list(listed)
    assert [one["id"] for one in listed] == [made["id"]] and "token" not in str(listed)


@check
def a_page_reaches_nothing_else():
    s, other = box(), box()
    _, page = inside(s)
    fails(w.PermissionDeniedError, "forbidden", lambda: page.stop())
    fails(w.PermissionDeniedError, "forbidden", lambda: page.update(name="mine"))
    token = page_token(s)
    for method, path in (
        ("GET", "/v1/sandboxes"), ("GET", "/v1/me"), ("POST", "/mcp"), ("DELETE", f"/v1/sandboxes/{s.id}"),
        ("POST", f"/v1/sandboxes/{s.id}/sessions"), ("GET", f"/v1/sandboxes/{other.id}"),
        ("POST", f"/v1/sandboxes/{other.id}:exec"), ("GET", f"/v1/sandboxes/{s.id}/network"),
        ("POST", f"/v1/sandboxes/{s.id}:fork"), ("POST", f"/v1/sandboxes/{s.id}:snapshot"),
    ):
        raw(method, path, {} if method == "POST" else None, key=token).refused(403, "forbidden")


def page_token(s):
    return s.sessions.create()["token"]


@check
def an_ended_session_is_over_at_once_and_so_is_what_it_follows():
    s = box()
    made, page = inside(s)
    process = page.spawn("while true; do echo on; sleep 0.05; done")
    seen = []

    def follow():
        for event in page.process(process.id).output():
            seen.append(event)

    follower = threading.Thread(target=lambda: swallow(follow), daemon=True)
    follower.start()
    eventually(lambda: seen, "output through the session")
    s.sessions.revoke(made["id"])
    fails(w.AuthenticationError, "unauthorized", lambda: page.exec("true"))
    follower.join(20)
    assert not follower.is_alive(), "the stream outlived its session"
    assert s.exec("echo still here").stdout == "still here\n"


def swallow(work):
    try:
        work()
    except w.RuntimeError:
        pass


if __name__ == "__main__":
    main()
