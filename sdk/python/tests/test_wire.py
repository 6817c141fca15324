"""HTTP/1.1 out of bytes, however they are cut."""

from __future__ import annotations

import random

import pytest

from withruntime._wire import BodyReader, WireError, parse_head, request_head, segment, target


def head(*lines: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", *lines)).encode()


CHUNKED = b"5\r\nhello\r\n1;x=y\r\n \r\nA\r\nworld of f\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("seed", range(40))
def test_a_chunked_body_is_the_same_however_it_comes(seed: int) -> None:
    dice = random.Random(seed)
    reader = BodyReader(parse_head(head("Transfer-Encoding: chunked")))
    got, rest = b"", CHUNKED
    while rest:
        size = dice.randint(1, 9)
        got += b"".join(reader.feed(rest[:size]))
        rest = rest[size:]
    assert got == b"hello world of f"
    assert reader.done and reader.framed


@pytest.mark.parametrize(
    "body",
    [b"zz\r\n", b"-1\r\n", b"1_0\r\n", b"\r\n", b"5\r\nhelloX\r\n", b"1" * 16 + b"\r\n", b"1" * 9000],
)
def test_a_chunk_that_lies_is_refused(body: bytes) -> None:
    reader = BodyReader(parse_head(head("Transfer-Encoding: chunked")))
    with pytest.raises(WireError):
        reader.feed(body)


@pytest.mark.parametrize("cut", range(1, len(CHUNKED)))
def test_a_chunked_body_that_is_cut_is_never_whole(cut: int) -> None:
    reader = BodyReader(parse_head(head("Transfer-Encoding: chunked")))
    reader.feed(CHUNKED[:cut])
    with pytest.raises(WireError):
        reader.feed(b"")


def test_a_body_with_a_length() -> None:
    reader = BodyReader(parse_head(head("Content-Length: 5")))
    assert reader.feed(b"he") == [b"he"] and not reader.done
    assert reader.feed(b"llo") == [b"llo"] and reader.done and reader.framed
    reader = BodyReader(parse_head(head("Content-Length: 5")))
    assert reader.feed(b"hello, more") == [b"hello"]
    assert not reader.framed, "what follows was not asked for"
    with pytest.raises(WireError):
        BodyReader(parse_head(head("Content-Length: 5"))).feed(b"")


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = BodyReader(parse_head(head()))
    assert reader.feed(b"all") == [b"all"] and not reader.done
    assert reader.feed(b"") == [] and reader.done and not reader.framed


@pytest.mark.parametrize("length", ["-1", "1e3", "", "9" * 19, "0x5"])
def test_a_length_that_is_none_is_refused(length: str) -> None:
    with pytest.raises(WireError):
        BodyReader(parse_head(head(f"Content-Length: {length}")))


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/2 200", b"HTTP/1.1 2000 x", b"HTTP/1.1 abc x", b"hello", head(": x"), head("a b")]
)
def test_a_head_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        parse_head(raw)


def test_a_head_is_read() -> None:
    parsed = parse_head(head("X-Thing:  a: b ", "Connection: close"))
    assert (parsed.status, parsed.headers["x-thing"], parsed.keep_alive) == (200, "a: b", False)


def test_nothing_can_end_a_line_or_a_part_early() -> None:
    with pytest.raises(ValueError):
        request_head("GET", "/", [("X", "a\r\nY: b")])
    assert segment("a/../b?c#d:é") == "a%2F..%2Fb%3Fc%23d%3A%C3%A9"
    assert target("/x", [("path", "/a b&c"), ("n", "1")]) == "/x?path=%2Fa+b%26c&n=1"


@pytest.mark.parametrize("seed", range(200))
def test_noise_is_refused_and_never_a_crash(seed: int) -> None:
    dice = random.Random(seed)
    words = [b"\r\n", b"0\r\n", b"ffff", b"a\r\n", b":", b" ", b"x", bytes([dice.randrange(256)])]
    noise = b"".join(dice.choice(words) for _ in range(200))
    for kind in ("Transfer-Encoding: chunked", "Content-Length: 100", "X: y"):
        reader = BodyReader(parse_head(head(kind)))
        try:
            while noise and not reader.done:
                reader.feed(noise[:7])
                noise = noise[7:]
            reader.feed(b"")
        except WireError:
            pass
    try:
        parse_head(b"HTTP/1.1 200 " + noise)
    except WireError:
        pass
