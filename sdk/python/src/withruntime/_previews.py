"""What is checked of a preview that was answered."""

from __future__ import annotations

import datetime
from typing import Any, Optional, cast

from ._api_types import PreviewInfo
from ._errors import RuntimeError


def kept_to(expires_at: Optional[str], preview: Any) -> PreviewInfo:
    """The preview, if its token ends when it was to end at the latest.

    Raises:
        RuntimeError: ``invalid_answer``: it lasts longer, so it must not be handed on.
    """
    ends, last = _time(preview.get("tokenExpiresAt")), _time(expires_at)
    if ends is not None and last is not None and ends > last:
        raise RuntimeError(
            f"The token lasts until {ends}, longer than was asked.",
            code="invalid_answer",
            hint=f"Rotate it: sandbox.previews.rotate({preview.get('port')}).",
        )
    return cast(PreviewInfo, preview)


def _time(text: Optional[str]) -> Optional[datetime.datetime]:
    try:
        at = datetime.datetime.fromisoformat((text or "").upper().replace("Z", "+00:00"))
    except ValueError:
        # A spelling that the server knows and this Python does not.
        return None
    return at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)
