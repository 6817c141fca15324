"""Webhooks: whether a delivery is from the server that holds the secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import Any, Optional, Sequence, Union


class WebhookVerificationError(Exception):
    """The delivery cannot be trusted: do not act on it."""


def verify_webhook(
    body: Union[str, bytes],
    header: Optional[str],
    secret: Union[str, Sequence[str]],
    *,
    tolerance_seconds: int = 300,
    now: Optional[int] = None,
) -> dict[str, Any]:
    """Checks a delivery and answers its event.

    Args:
        body: The body exactly as it came, before any parsing.
        header: The ``Runtime-Signature`` header: ``t=<unix seconds>,v1=<hex>``, with one ``v1`` for each secret.
        secret: The endpoint's secret, or several while one is being replaced.
        tolerance_seconds: How old, or how far ahead, a delivery may be.
        now: The time in unix seconds; the clock's if left out.

    Raises:
        WebhookVerificationError: No signature, a wrong one, one too old, or a body that is no event.
    """
    raw = body.encode() if isinstance(body, str) else bytes(body)
    if not header:
        raise WebhookVerificationError("the Runtime-Signature header is missing")
    pairs = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in pairs if name == "t"]
    signatures = [value for name, _, value in pairs if name == "v1"]
    if len(times) != 1 or not times[0].isascii() or not times[0].isdigit() or len(times[0]) > 15 or not signatures:
        raise WebhookVerificationError("the Runtime-Signature header has another form")
    secrets = [secret] if isinstance(secret, str) else list(secret)
    if not secrets or not all(secrets):
        raise WebhookVerificationError("there is no secret to check with")
    signed = times[0].encode() + b"." + raw
    expected = [hmac.new(one.encode(), signed, hashlib.sha256).hexdigest() for one in secrets]
    # Every pair is compared, so that the time taken tells nothing.
    matches = [hmac.compare_digest(good.encode(), told.encode()) for good in expected for told in signatures]
    if not any(matches):
        raise WebhookVerificationError("the signature is wrong: another secret, or a changed body")
    clock = int(time.time()) if now is None else now
    if abs(clock - int(times[0])) > tolerance_seconds:
        raise WebhookVerificationError("the delivery is too old, or this clock is wrong")
    try:
        event = json.loads(raw)
    except ValueError as error:
        raise WebhookVerificationError("the body is no JSON") from error
    if not isinstance(event, dict):
        raise WebhookVerificationError("the body is no event")
    return event
