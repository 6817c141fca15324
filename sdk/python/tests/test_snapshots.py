"""What a client does about snapshots and sessions, against a server that answers what each test wants."""

from __future__ import annotations

from typing import Any

import pytest

from withruntime import ConflictError, RuntimeError, ServiceUnavailableError

from .forms import BOX, both, drive, settle
from .player import Answer, Player, answer, drop, refusal

pytestmark = pytest.mark.usefixtures("quick")


def snapshot(state: str, mode: str = "memory", **more: Any) -> Answer:
    return answer({"id": "s1", "state": state, "mode": mode, **more})


def box(state: str) -> Answer:
    return answer({**BOX, "state": state})


def asked(player: Player) -> list[str]:
    """What was asked after the sandbox was found."""
    short = [request.target.replace("/v1/sandboxes/" + BOX["id"], "box") for request in player.requests[1:]]
    return [f"{request.method} {target}" for request, target in zip(player.requests[1:], short)]


async def take(client: Any, **fields: Any) -> Any:
    return await settle((await settle(client.sandboxes.get(BOX["id"]))).snapshot(**fields))


@both
def test_a_snapshot_in_one_call(form: str) -> None:
    with Player([answer(BOX), answer(BOX), snapshot("ready")]) as player:
        taken = drive(form, player.url, lambda client: take(client, name="n", labels={"a": "b"}, retention_days=3))
        assert asked(player) == ["GET box", "POST box:snapshot"]
        assert player.requests[2].json == {"name": "n", "labels": {"a": "b"}, "retentionDays": 3}
        assert player.requests[2].headers["prefer"] == "wait=10"
    assert taken["state"] == "ready"


@both
def test_a_long_one_is_waited_for_and_its_source_woken(form: str) -> None:
    answers = [answer(BOX), answer(BOX), *[snapshot("capturing")] * 3, snapshot("ready"), answer(BOX)]
    with Player(answers) as player:
        assert drive(form, player.url, take)["state"] == "ready"
        look = "GET /v1/snapshots/s1"
        assert asked(player) == ["GET box", "POST box:snapshot", look, look, look, "POST box:wake"]


@both
def test_one_that_was_paused_stays_paused(form: str) -> None:
    with Player([answer(BOX), box("paused"), snapshot("capturing"), snapshot("ready")]) as player:
        drive(form, player.url, take)
        assert asked(player)[-1] == "GET /v1/snapshots/s1"


@both
@pytest.mark.parametrize("state, waits", [("starting", "running"), ("resuming", "running"), ("pausing", "paused")])
def test_what_is_between_two_states_is_waited_out(form: str, state: str, waits: str) -> None:
    with Player([answer(BOX), box(state), box(waits), snapshot("ready")]) as player:
        drive(form, player.url, take)
        assert asked(player)[1] == f"GET box?waitFor={waits}&timeoutSeconds=60"


@both
def test_one_that_fails_is_told_and_its_source_woken(form: str) -> None:
    failed = snapshot("failed", error="no space")
    with Player([answer(BOX), answer(BOX), snapshot("capturing"), failed, answer(BOX)]) as player:
        with pytest.raises(ConflictError, match="no space") as told:
            drive(form, player.url, take)
        assert asked(player)[-1] == "POST box:wake"
    assert told.value.code == "snapshot_failed" and told.value.status == 409
    assert told.value.details == {"snapshotId": "s1", "sourceSandboxId": BOX["id"]}


@both
def test_a_source_that_does_not_wake_is_told_too(form: str) -> None:
    answers = [answer(BOX), answer(BOX), snapshot("capturing"), snapshot("failed"), refusal(409, "disk_full")]
    with Player(answers) as player, pytest.raises(ConflictError) as told:
        drive(form, player.url, take)
    assert told.value.code == "snapshot_failed"
    assert (told.value.details or {})["sourceWakeError"]["code"] == "disk_full"


@both
def test_a_call_nobody_knows_the_end_of_leaves_no_source_paused(form: str) -> None:
    lost = [drop()] * 6
    with Player([answer(BOX), answer(BOX), *lost, box("paused"), answer(BOX)]) as player:
        with pytest.raises(RuntimeError):
            drive(form, player.url, take)
        assert asked(player)[-2:] == ["GET box", "POST box:wake"]
        assert len({request.key for request in player.requests if ":snapshot" in request.target}) == 1
    with Player([answer(BOX), answer(BOX), refusal(500, "internal_error"), answer(BOX)]) as player:
        with pytest.raises(ServiceUnavailableError):
            drive(form, player.url, take)
        assert asked(player)[-1] == "GET box", "it runs: there is nothing to wake"


@both
def test_the_time_to_wait_is_bounded_and_the_capture_is_left_alone(form: str) -> None:
    with Player([answer(BOX), answer(BOX), snapshot("capturing")]) as player:
        with pytest.raises(RuntimeError) as told:
            drive(form, player.url, lambda client: take(client, timeout_seconds=0.1))
        assert asked(player) == ["GET box", "POST box:snapshot"]
    assert told.value.code == "snapshot_timeout"
    assert told.value.details == {"snapshotId": "s1", "sourceSandboxId": BOX["id"]}


@both
def test_a_disk_alone_is_what_was_asked_for(form: str) -> None:
    with Player([answer(BOX), answer(BOX), snapshot("ready")]) as player, pytest.raises(ConflictError) as told:
        drive(form, player.url, lambda client: take(client, mode="disk"))
    assert told.value.code == "snapshot_mode_mismatch"
    with Player([answer(BOX)]) as player, pytest.raises(ValueError):
        drive(form, player.url, lambda client: take(client, mode="disc"))


@both
def test_a_fork_without_room_is_told_at_once(form: str) -> None:
    async def fork(client: Any) -> Any:
        return await settle((await settle(client.sandboxes.get(BOX["id"]))).fork(3))

    with Player([answer(BOX), refusal(409, "no_capacity")]) as player:
        with pytest.raises(ConflictError) as told:
            drive(form, player.url, fork)
        assert asked(player) == ["POST box:fork"]
    assert told.value.retryable


@both
def test_the_name_of_a_snapshot_is_given_up_with_none(form: str) -> None:
    with Player([snapshot("ready")]) as player:
        drive(form, player.url, lambda client: settle(client.snapshots.update("s/1", name=None, if_labels={})))
        assert player.requests[0].target == "/v1/snapshots/s%2F1:update"
        assert player.requests[0].json == {"name": None, "ifLabels": {}}
        with pytest.raises(TypeError, match="labels"):
            drive(form, player.url, lambda client: settle(client.snapshots.update("s1", lables={})))
        assert len(player.requests) == 1


async def session(client: Any) -> Any:
    found = await settle(client.sandboxes.get(BOX["id"]))
    return await settle(found.sessions.create(ttl_seconds=60, idempotency_key="k1"))


@both
def test_a_repeated_session_is_revoked_and_made_again(form: str) -> None:
    first, second = answer({"id": "a", "token": None, "replayed": True}), answer({"id": "b", "token": "rtsess_b"})
    with Player([answer(BOX), first, answer({"id": "a", "state": "revoked"}), second]) as player:
        assert drive(form, player.url, session)["token"] == "rtsess_b"
        assert asked(player) == ["POST box/sessions", "POST box/sessions/a:revoke", "POST box/sessions"]
        assert player.keys[1] == "k1" and player.keys[3] != "k1"
        assert player.requests[1].json == player.requests[3].json == {"ttlSeconds": 60}


@both
def test_a_token_that_is_lost_twice_is_told(form: str) -> None:
    lost = answer({"id": "a", "token": None})
    with Player([answer(BOX), lost, answer({"id": "a"}), lost]) as player, pytest.raises(RuntimeError) as told:
        drive(form, player.url, session)
    assert told.value.code == "session_token_lost" and "a" in str(told.value.hint)


@both
def test_the_end_of_a_block_stops_a_fork(form: str) -> None:
    async def block(client: Any) -> None:
        copy = await settle((await settle(client.sandboxes.get(BOX["id"]))).fork())
        if form == "async":
            async with copy:
                pass
        else:
            with copy:
                pass

    with Player([answer(BOX), answer({"sandboxes": [BOX]}), answer(BOX)]) as player:
        drive(form, player.url, block)
        assert asked(player) == ["POST box:fork", "POST box:stop"]
