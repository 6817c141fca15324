"""Ways into one sandbox without a key, for browsers and other programs that must not have one."""

from __future__ import annotations

import builtins
from typing import Optional, Sequence, cast

from .._api_types import NewSessionInfo, SessionInfo
from .._call import Call, encode
from .._errors import RuntimeError
from .._fields import given
from .._wire import segment
from ._transport import AsyncTransport


class AsyncSessions:
    """``sandbox.sessions``."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{segment(sandbox_id)}/sessions"

    async def create(
        self,
        ttl_seconds: Optional[int] = None,
        origins: Optional[Sequence[str]] = None,
        name: Optional[str] = None,
        idempotency_key: Optional[str] = None,
    ) -> NewSessionInfo:
        """Makes a session. Its ``token`` is told this once; ``Sandbox.from_session`` and browsers use it.

        It reaches commands, processes and files of this sandbox, and nothing else; it ends with the key that made it.

        Args:
            ttl_seconds: Seconds it lasts, 60 to 86400; an hour if left out.
            origins: Pages that may use it: ``https://host[:port]`` or ``http://localhost[:port]``, at most 16. Without
                any, only programs may.
            name: For people.
            idempotency_key: Calls with the same one leave one session: the answer to a repeated call has no token, so
                that session is revoked and another made.

        Raises:
            InvalidRequestError: ``details["issues"]`` names every wrong field.
            RuntimeError: ``session_token_lost``: the second answer had no token either.
        """
        body = encode(given(ttlSeconds=ttl_seconds, origins=None if origins is None else list(origins), name=name))
        session = cast(
            NewSessionInfo, await self._transport.json(Call("POST", self._path, body=body, key=idempotency_key))
        )
        if session.get("token"):
            return session
        await self.revoke(session["id"])
        session = cast(NewSessionInfo, await self._transport.json(Call("POST", self._path, body=body)))
        if session.get("token"):
            return session
        raise RuntimeError(
            "The session was made, but its token did not come.",
            code="session_token_lost",
            hint=f"Revoke session {session['id']} and make another one.",
        )

    async def list(self) -> builtins.list[SessionInfo]:
        """Those that live, and those that ended within a day; newest first. Tokens are never told again."""
        answer = await self._transport.json(Call("GET", self._path))
        return cast("builtins.list[SessionInfo]", answer["data"])

    async def revoke(self, session_id: str) -> SessionInfo:
        """Ends one at once, with what it has open. Doing it again changes nothing.

        Raises:
            NotFoundError: ``not_found``.
        """
        call = Call("POST", f"{self._path}/{segment(session_id)}:revoke", body=b"{}")
        return cast(SessionInfo, await self._transport.json(call))
