"""Previews: shared by the client, visited by hand."""

import datetime
import http.client
from urllib.parse import urlsplit

import withruntime as w
from support import URL, box, check, eventually, fails, main
from withruntime import Sandbox


def site(s, port=8000):
    s.files.write("/workspace/site/index.html", "from inside")
    process = s.spawn(f"exec python3 -u -m http.server {port} -d /workspace/site")
    eventually(lambda: s.exec(f"curl -s --noproxy '*' 127.0.0.1:{port}").exit_code == 0, "the server listens", 60)
    return process


def visit(url, token=None):
    """The address's name need not resolve here: it is said to the server as a browser says it."""
    server, place = urlsplit(URL), urlsplit(url)
    connection = http.client.HTTPConnection(server.hostname, server.port, timeout=60)
    headers = {"Host": place.netloc, **({"X-Runtime-Preview-Token": token} if token else {})}
    try:
        connection.request("GET", place.path + ("?" + place.query if place.query else ""), headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@check
def a_port_is_shared_and_taken_back():
    s = box()
    site(s)
    made = s.previews.create(8000)
    assert made["visibility"] == "private" and made["disabled"] is False and made["embedOrigins"] is None, made
    assert visit(made["url"])[0] == 401
    assert visit(made["url"], made["token"]) == (200, "from inside")
    assert visit(made["urlWithToken"]) == (200, "from inside")
    assert [one["id"] for one in s.previews.list()] == [made["id"]]
    assert s.previews.list()[0]["token"] == made["token"], "within a step the same token is told"

    rotated = s.previews.rotate(8000)
    assert visit(made["url"], made["token"])[0] == 401
    assert visit(made["url"], rotated["token"])[0] == 200
    public = s.previews.create(8000, visibility="public")
    assert public["id"] == made["id"] and public["token"] is None and public["urlWithToken"] is None, public
    assert visit(made["url"]) == (200, "from inside")
    assert s.previews.delete(8000)["deleted"] is True
    assert visit(made["url"])[0] == 404
    fails(w.NotFoundError, "not_found", lambda: s.previews.get(8000))
    fails(w.InvalidRequestError, "invalid_request", lambda: s.previews.create(10853))


@check
def a_token_lasts_as_long_as_was_asked():
    s = box()
    now = datetime.datetime.now(datetime.timezone.utc)
    made = s.previews.create(8000, ttl_seconds=3600)
    ends = datetime.datetime.fromisoformat(made["tokenExpiresAt"].replace("Z", "+00:00")) - now
    assert datetime.timedelta(seconds=3599) <= ends <= datetime.timedelta(seconds=3600 + 150 + 100), ends
    bound = (now + datetime.timedelta(minutes=10)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    bounded = s.previews.get(8000, expires_at=bound)
    assert bounded["tokenExpiresAt"] <= bound, bounded
    for wrong in ({"ttl_seconds": 59}, {"ttl_seconds": 604801}, {"expires_at": "2001-01-01T00:00:00Z"}):
        fails(w.InvalidRequestError, "invalid_request", lambda wrong=wrong: s.previews.create(8000, **wrong))
        fails(w.InvalidRequestError, "invalid_request", lambda wrong=wrong: s.previews.get(8000, **wrong))


@check
def who_may_frame_it_is_kept_until_it_is_said_again():
    s = box()
    sites = ["https://app.example.com", "https://*.example.org", "http://localhost:3000"]
    assert s.previews.create(8000, embed_origins=sites)["embedOrigins"] == sites
    assert s.previews.create(8000, visibility="public")["embedOrigins"] == sites
    assert s.previews.create(8000, embed_origins=[])["embedOrigins"] is None
    fails(w.InvalidRequestError, "invalid_request", lambda: s.previews.create(8000, embed_origins=["https://a/b"]))


@check
def a_visit_wakes_a_paused_one():
    s = box()
    site(s)
    made = s.previews.create(8000)
    s.pause()
    assert visit(made["url"], made["token"]) == (200, "from inside")
    assert s.refresh().state == "running"
    s.stop()
    assert visit(made["url"], made["token"])[0] == 404
    s.delete()
    assert visit(made["url"], made["token"])[0] == 410


@check
def a_page_reads_them_and_its_token_ends_with_it():
    s = box()
    site(s)
    s.previews.create(8000)
    session = s.sessions.create(ttl_seconds=600)
    page = Sandbox.from_session(session["token"], s.id, URL)
    listed = page.previews.list()[0]
    assert listed["tokenExpiresAt"] <= session["expiresAt"], (listed, session)
    assert visit(listed["url"], listed["token"])[0] == 200
    fails(w.PermissionDeniedError, "forbidden", lambda: page.previews.rotate(8000))
    fails(w.PermissionDeniedError, "forbidden", lambda: page.previews.create(9000))
    s.sessions.revoke(session["id"])
    assert visit(listed["url"], listed["token"])[0] == 401


if __name__ == "__main__":
    main()
