"""Previews: by both forms against a server that answers what each test wants, and against a real one."""

from __future__ import annotations

import datetime
import http.client
import urllib.parse
from typing import Any, Optional

import pytest

from withruntime import InvalidRequestError, NotFoundError, PermissionDeniedError, RuntimeError, Sandbox

from .conftest import Server
from .forms import BOX, both, drive, settle
from .player import Player, answer

PREVIEW = {"id": "p", "port": 3000, "visibility": "private", "token": "t", "tokenExpiresAt": "2027-01-01T00:00:00.000Z"}


async def previews(client: Any) -> Any:
    return (await settle(client.sandboxes.get(BOX["id"]))).previews


@both
def test_each_call_is_one_request(form: str) -> None:
    async def work(client: Any) -> None:
        mine = await previews(client)
        await settle(mine.create(3000, visibility="public", embed_origins=(), idempotency_key="k"))
        await settle(mine.create(3000, ttl_seconds=60))
        assert await settle(mine.list()) == [PREVIEW]
        await settle(mine.get(3000, ttl_seconds=60))
        await settle(mine.rotate(3000))
        assert (await settle(mine.delete(3000)))["deleted"]

    one = answer(PREVIEW)
    with Player([answer(BOX), one, one, answer({"data": [PREVIEW]}), one, one, answer({"deleted": True})]) as player:
        drive(form, player.url, work)
        path = f"/v1/sandboxes/{BOX['id']}/previews"
        assert [f"{request.method} {request.target}" for request in player.requests[1:]] == [
            f"POST {path}",
            f"POST {path}",
            f"GET {path}",
            f"GET {path}/3000?ttlSeconds=60",
            f"POST {path}/3000:rotate",
            f"DELETE {path}/3000",
        ]
        assert player.requests[1].json == {"port": 3000, "visibility": "public", "embedOrigins": []}
        assert player.requests[2].json == {"port": 3000, "ttlSeconds": 60}
        assert player.requests[5].json == {} and player.keys[1] == "k"


@both
@pytest.mark.parametrize("wanted", ["2026-12-31T23:59:59Z", "2027-01-01T00:59:59+01:00"])
def test_a_token_that_lasts_too_long_is_not_handed_on(form: str, wanted: str) -> None:
    async def work(client: Any) -> None:
        mine = await previews(client)
        assert (await settle(mine.get(3000, expires_at="2027-01-01T00:00:00Z")))["token"] == "t"
        with pytest.raises(RuntimeError) as told:
            await settle(mine.create(3000, expires_at=wanted))
        assert told.value.code == "invalid_answer" and "rotate(3000)" in str(told.value.hint)

    with Player([answer(BOX), answer(PREVIEW), answer(PREVIEW)]) as player:
        drive(form, player.url, work)
        assert player.requests[2].json == {"port": 3000, "expiresAt": wanted}


def visit(server: Server, url: str, token: Optional[str] = None) -> tuple[int, str]:
    """What a program gets at a preview's address, whose name need not resolve here."""
    address, place = urllib.parse.urlsplit(server.url), urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    try:
        headers = {"Host": place.netloc, **({"X-Runtime-Preview-Token": token} if token else {})}
        connection.request("GET", f"{place.path}?{place.query}", headers=headers)
        got = connection.getresponse()
        return got.status, got.read().decode()
    finally:
        connection.close()


@both
def test_a_page_is_seen_by_whom_it_is_for(server: Server, box: Sandbox, form: str) -> None:
    async def work(client: Any) -> None:
        mine = await settle(client.sandboxes.get(box.id))
        port = 8001 if form == "async" else 8002
        box.exec(f"mkdir -p /tmp/site{port}; echo from-inside > /tmp/site{port}/index.html")
        process = box.spawn(["python3", "-u", "-m", "http.server", str(port), "-d", f"/tmp/site{port}"])
        next(iter(process.output()))
        made = await settle(mine.previews.create(port, ttl_seconds=60))
        assert visit(server, made["url"])[0] == 401
        assert visit(server, made["url"], made["token"]) == (200, "from-inside\n")
        assert visit(server, made["urlWithToken"]) == (200, "from-inside\n")
        at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=90)
        bounded = await settle(mine.previews.get(port, expires_at=at.isoformat(timespec="milliseconds")))
        assert bounded["token"] and bounded["token"] != made["token"]
        rotated = await settle(mine.previews.rotate(port))
        assert visit(server, made["url"], made["token"])[0] == 401
        assert visit(server, made["url"], rotated["token"])[0] == 200
        public = await settle(mine.previews.create(port, visibility="public", embed_origins=["https://a.example"]))
        assert public["token"] is None and visit(server, made["url"]) == (200, "from-inside\n")
        assert [one["port"] for one in await settle(mine.previews.list()) if one["port"] == port] == [port]

        session = box.sessions.create()
        page = type(mine).from_session(session["token"], box.id, api_url=session["apiUrl"])
        assert await settle(page.previews.list())
        with pytest.raises(PermissionDeniedError):
            await settle(page.previews.rotate(port))

        assert (await settle(mine.previews.delete(port)))["deleted"] is True
        assert visit(server, made["url"])[0] == 404
        with pytest.raises(NotFoundError):
            await settle(mine.previews.get(port))
        with pytest.raises(InvalidRequestError):
            await settle(mine.previews.create(10800))
        process.kill()

    drive(form, server.url, work, api_key=server.key)
