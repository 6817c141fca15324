"""What can go wrong, as exceptions.

Every refusal of the server is a :class:`RuntimeError` of the class its status stands for, with the stable ``code``
to decide by, the ``hint`` to show and the ``request_id`` to look up in the server's log. What the client itself
finds wrong has the same form and status 0.
"""

from __future__ import annotations

import builtins
from typing import Any, Mapping, Optional

#: Switched off on purpose; asking again cannot help.
OFF_CODES = frozenset(
    {
        "unavailable",
        "unsupported",
        "fork_unavailable",
        "previews_unavailable",
        "file_links_unavailable",
        "network_unavailable",
        "network_rules_unavailable",
        "secrets_unavailable",
        "identity_unavailable",
        "env_unavailable",
        "resize_unavailable",
        "feature_unavailable",
        "delete_unavailable",
        "switch_image_unavailable",
        "switching_paused",
        "schema_migration_required",
        "storage_unavailable",
    }
)

#: No room now; it may come when another sandbox ends.
ROOM_FREES_CODES = frozenset({"no_capacity", "no_credit_running_limit", "no_credit_total_limit"})

#: Statuses after which the same request may succeed. 0 is a connection that gave no answer.
RETRYABLE_STATUSES = frozenset({0, 429, 502, 503, 504})


class RuntimeError(builtins.Exception):
    """A request that was refused or failed.

    Attributes:
        message: What happened, for people.
        code: Stable and snake_case, for programs (``name_taken``, ``file_not_found``).
        status: The HTTP status; 0 where the client itself raised it.
        request_id: The request in the server's log, or None.
        hint: What to do about it, or None.
        details: More, by code, or None: ``details["issues"]`` of ``invalid_request`` names every wrong field.
        idempotency_key: The key the request was sent with, or None. Sending the call again with it cannot do
            the work twice.
        retry_after_ms: Milliseconds the server asked to wait, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "request_failed",
        status: int = 0,
        request_id: Optional[str] = None,
        hint: Optional[str] = None,
        details: Optional[dict[str, Any]] = None,
        idempotency_key: Optional[str] = None,
        retry_after_ms: Optional[int] = None,
        retryable: Optional[bool] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id
        self.hint = hint
        self.details = details
        self.idempotency_key = idempotency_key
        self.retry_after_ms = retry_after_ms
        self._retryable = retryable

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later. The server's word where it gave one."""
        if self._retryable is not None:
            return self._retryable
        if self.code in OFF_CODES or self.code == "quota_exceeded":
            return False
        if self.code in ROOM_FREES_CODES:
            return (self.details or {}).get("field") != "count"
        return self.status in RETRYABLE_STATUSES

    @property
    def server_says_retryable(self) -> Optional[bool]:
        """The server's own word on retrying; None where it gave none."""
        return self._retryable

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.message}"]
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        if self.request_id:
            lines.append(f"Request: {self.request_id}")
        return "\n".join(lines)


class AuthenticationError(RuntimeError):
    """401: the key is missing, unknown or revoked, or the session has ended."""


class PermissionDeniedError(RuntimeError):
    """403: the key, or the sandbox's user, may not do this."""


class NotFoundError(RuntimeError):
    """404: no such sandbox, process, file or route for this key."""


class ConflictError(RuntimeError):
    """409: not possible in the present state."""


class InvalidRequestError(RuntimeError):
    """400, 413 or 422: the request itself is wrong; ``details["issues"]`` names every wrong field."""


class RateLimitError(RuntimeError):
    """429: too much at once."""


class ServiceUnavailableError(RuntimeError):
    """500 and above: the server failed, or does not serve this (501)."""


class AccountBlockedError(RuntimeError):
    """The account is blocked (code ``account_blocked``)."""


class ConnectionError(RuntimeError):
    """No answer was received, or a stream was cut and could not be taken up again."""

    def __init__(self, message: str, *, code: str = "connection_error", **fields: Any) -> None:
        super().__init__(message, code=code, **fields)


class SecretPartlyStoredError(RuntimeError):
    """A secret was stored in some places only; ``details["stored"]`` names them."""


class CommandError(RuntimeError):
    """A command run with ``check=True`` did not exit with 0.

    Codes: ``command_failed``, ``command_timeout`` (its time was up), ``out_of_memory`` (the sandbox's memory was
    full; the same command would meet the same end, so that this one is not `retryable`).

    Attributes:
        exit_code: The exit code; negative for a signal; None where there is none.
        stdout: What it wrote, as far as it was kept.
        stderr: What it wrote, as far as it was kept.
    """

    def __init__(self, result: Mapping[str, Any]) -> None:
        self.exit_code: Optional[int] = result.get("exitCode")
        self.stdout: str = result.get("stdout") or ""
        self.stderr: str = result.get("stderr") or ""
        memory = result.get("outOfMemory")
        hint: Optional[str] = None
        if isinstance(memory, Mapping):
            code = "out_of_memory"
            message = str(memory.get("message") or "The sandbox ran out of memory and the command was killed.")
            hint = str(memory["hint"]) if memory.get("hint") else None
        elif result.get("timedOut"):
            code, message = "command_timeout", "The command ran out of time and was killed."
            hint = "Give it longer with timeout_ms."
        else:
            code, message = "command_failed", f"The command ended with exit code {self.exit_code}."
            last = self.stderr.strip().rsplit("\n", 1)[-1]
            hint = f"Its last words: {last[:200]}" if last else None
        super().__init__(message, code=code, hint=hint, retryable=False if code == "out_of_memory" else None)


#: The names these two had before; they do not shadow a builtin.
RuntimeAPIError = RuntimeError
RuntimeConnectionError = ConnectionError

_BY_STATUS: dict[int, type[RuntimeError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidRequestError,
    422: InvalidRequestError,
    429: RateLimitError,
}


def error_from_answer(
    status: int, body: Any, *, idempotency_key: Optional[str] = None, retry_after: Optional[str] = None
) -> RuntimeError:
    """The exception for an answer that is no success.

    Args:
        status: The HTTP status, or that of a late answer.
        body: The parsed JSON, or the raw bytes where it was none.
        idempotency_key: What the request was sent with.
        retry_after: The ``Retry-After`` header, in seconds.
    """
    told = body.get("error") if isinstance(body, dict) else None
    told = told if isinstance(told, dict) else {}
    message = told.get("message")
    if not isinstance(message, str) or not message:
        message = f"Runtime request failed ({status})."
        if isinstance(body, (bytes, bytearray)) and body.strip():
            message = bytes(body[:500]).decode("utf-8", "replace").strip()
    code = told.get("code") if isinstance(told.get("code"), str) else "request_failed"
    if code == "account_blocked":
        kind: type[RuntimeError] = AccountBlockedError
    elif code == "secret_partly_stored":
        kind = SecretPartlyStoredError
    else:
        kind = _BY_STATUS.get(status, ServiceUnavailableError if status >= 500 else RuntimeError)
    details = told.get("details")
    retryable = told.get("retryable")
    return kind(
        message,
        code=str(code),
        status=status,
        request_id=_text(told.get("requestId")),
        hint=_text(told.get("hint")),
        details=details if isinstance(details, dict) else None,
        idempotency_key=idempotency_key,
        retry_after_ms=_wait_ms(told.get("retryAfterMs"), retry_after),
        retryable=retryable if isinstance(retryable, bool) else None,
    )


def _wait_ms(told: Any, header: Optional[str]) -> Optional[int]:
    if isinstance(told, int) and not isinstance(told, bool) and told >= 0:
        return told
    try:
        seconds = float(header) if header is not None else -1.0
    except ValueError:
        return None
    return int(seconds * 1000) if 0 <= seconds < 1e9 else None


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) and value else None
