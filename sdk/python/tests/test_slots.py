"""Who may connect, and who is next."""

from __future__ import annotations

import pytest

from withruntime._slots import Slots


class Waiting:
    def __init__(self) -> None:
        self.woken = False

    def wake(self) -> None:
        assert not self.woken
        self.woken = True


def test_the_first_to_wait_is_the_first_to_be_served() -> None:
    slots = Slots(1)
    assert slots.take(False, Waiting()) == 0
    first, second = Waiting(), Waiting()
    assert (slots.take(False, first), slots.take(False, second)) == (1, 2)
    slots.give_back(False)
    assert first.woken and not second.woken
    slots.give_back(False)
    assert second.woken


def test_streams_leave_room_for_calls() -> None:
    slots = Slots(48)
    for _ in range(40):
        assert slots.take(True, Waiting()) == 0
    stream = Waiting()
    assert slots.take(True, stream) == 1
    for _ in range(8):
        assert slots.take(False, Waiting()) == 0, "a call is not held up by a stream that waits"
    call = Waiting()
    assert slots.take(False, call) == 2
    slots.give_back(False)
    assert call.woken and not stream.woken
    slots.give_back(True)
    assert stream.woken


def test_who_gives_up_takes_nothing_along() -> None:
    slots = Slots(1)
    slots.take(False, Waiting())
    gone, next_one = Waiting(), Waiting()
    slots.take(False, gone)
    slots.take(False, next_one)
    slots.give_up(gone, False)
    slots.give_back(False)
    assert next_one.woken and not gone.woken


def test_a_place_given_too_late_goes_on() -> None:
    slots = Slots(1)
    slots.take(False, Waiting())
    gone, next_one = Waiting(), Waiting()
    slots.take(False, gone)
    slots.take(False, next_one)
    slots.give_back(False)
    assert gone.woken
    slots.give_up(gone, False)
    assert next_one.woken


def test_one_connection_serves_streams_too() -> None:
    slots = Slots(1)
    assert slots.take(True, Waiting()) == 0
    with pytest.raises(ValueError):
        Slots(0)
