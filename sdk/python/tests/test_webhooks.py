"""Deliveries that can be trusted, and those that cannot."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from withruntime import WebhookVerificationError, verify_webhook

BODY = b'{"type":"sandbox.stopped"}'


def header(secret: str = "s3", at: int = 1000, body: bytes = BODY) -> str:
    return f"t={at},v1=" + hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()


def test_a_good_delivery_is_its_event() -> None:
    assert verify_webhook(BODY, header(), "s3", now=1300) == {"type": "sandbox.stopped"}
    assert verify_webhook(BODY.decode(), header(), ["old", "s3"], now=700)
    assert verify_webhook(BODY, header() + "," + header("new").split(",")[1], "new", now=1000)


@pytest.mark.parametrize(
    "body, told, secret, now",
    [
        (BODY, None, "s3", 1000),
        (BODY, "", "s3", 1000),
        (BODY, "v1=00", "s3", 1000),
        (BODY, "t=1000", "s3", 1000),
        (BODY, "t=x,v1=00", "s3", 1000),
        (BODY, header(), "other", 1000),
        (BODY + b" ", header(), "s3", 1000),
        (BODY, header(), [], 1000),
        (BODY, header(""), "", 1000),
        (BODY, header(), "s3", 1301),
        (BODY, header(), "s3", 699),
        (b"no json", header(body=b"no json"), "s3", 1000),
        (b"[]", header(body=b"[]"), "s3", 1000),
        (BODY, "t=1000,v1=\u00e9", "s3", 1000),
    ],
)
def test_anything_else_is_refused(body: bytes, told: str, secret: str, now: int) -> None:
    with pytest.raises(WebhookVerificationError):
        verify_webhook(body, told, secret, now=now)
