"""WebSockets without a socket: what goes out, and what may come in."""

from __future__ import annotations

import random

import pytest

from withruntime._wire import Head, WireError
from withruntime._ws import BINARY, CLOSE, MESSAGE_LIMIT, PING, TEXT, Message, Messages, check_upgrade, frame


def unmasked(kind: int, data: bytes, final: bool = True) -> bytes:
    """A frame as servers send it."""
    size = len(data)
    if size < 126:
        length = bytes([size])
    elif size < 65536:
        length = b"\x7e" + size.to_bytes(2, "big")
    else:
        length = b"\x7f" + size.to_bytes(8, "big")
    return bytes([(0x80 if final else 0) | kind]) + length + data


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 125, 126, 65535, 65536, 300_001])
def test_a_frame_is_masked_and_says_its_size(size: int) -> None:
    data, mask = bytes(index % 251 for index in range(size)), b"\x01\x80\xff\x7f"
    sent = frame(BINARY, data, mask)
    assert sent[0] == 0x80 | BINARY and sent[1] & 0x80
    head = {126: 4, 127: 10}.get(sent[1] & 0x7F, 2)
    told = sent[1] & 0x7F if head == 2 else int.from_bytes(sent[2:head], "big")
    assert told == size and sent[head : head + 4] == mask
    body = sent[head + 4 :]
    assert bytes(byte ^ mask[index % 4] for index, byte in enumerate(body)) == data


def test_masks_differ() -> None:
    assert len({frame(TEXT, b"x") for _ in range(50)}) > 40


@pytest.mark.parametrize("seed", range(20))
def test_messages_come_out_however_the_bytes_come_in(seed: int) -> None:
    chance = random.Random(seed)
    wanted = [
        Message(chance.choice((TEXT, BINARY)), chance.randbytes(chance.choice((0, 1, 125, 126, 70_000))))
        for _ in range(8)
    ]
    stream = b""
    for message in wanted:
        cut = chance.randrange(len(message.data) + 1)
        stream += unmasked(message.kind, message.data[:cut], final=False)
        # Control frames may stand between the parts of a message.
        stream += unmasked(PING, b"?")
        stream += unmasked(0, message.data[cut:])
    messages, got = Messages(), []
    while stream:
        size = chance.choice((1, 2, 7, 1000, 100_000))
        got += messages.feed(stream[:size])
        stream = stream[size:]
    assert [one for one in got if one.kind != PING] == wanted
    assert sum(one.kind == PING for one in got) == len(wanted)


@pytest.mark.parametrize(
    "stream",
    [
        b"\xc1\x00",  # an extension nobody agreed on
        b"\x81\x81\x00\x00\x00\x00x",  # masked
        unmasked(0, b"x"),  # goes on with nothing
        unmasked(TEXT, b"x", final=False) + unmasked(TEXT, b"y"),  # begins in the middle of another
        unmasked(3, b"x"),
        unmasked(CLOSE, b"x", final=False),
        unmasked(PING, b"x" * 126),
        b"\x82\x7f" + (MESSAGE_LIMIT + 1).to_bytes(8, "big"),  # refused before it has come
        unmasked(BINARY, b"x" * MESSAGE_LIMIT, final=False) + unmasked(0, b"x"),
    ],
)
def test_what_no_server_may_send(stream: bytes) -> None:
    with pytest.raises(WireError):
        Messages().feed(stream)


def test_an_upgrade_is_answered_for_its_own_key() -> None:
    # The example of RFC 6455, 1.3.
    key, accept = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    check_upgrade(Head(101, {"upgrade": "WebSocket", "sec-websocket-accept": accept}, True), key)
    for wrong in ({}, {"upgrade": "websocket", "sec-websocket-accept": key}, {"sec-websocket-accept": accept}):
        with pytest.raises(WireError):
            check_upgrade(Head(101, wrong, True), key)
