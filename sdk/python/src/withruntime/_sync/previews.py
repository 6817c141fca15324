# Written by scripts/derive_sync.py from _async/previews.py: do not edit.
"""Web addresses for ports of one sandbox."""

from __future__ import annotations

import builtins
from typing import Optional, Sequence, cast

from .._api_types import DeletedPreviewInfo, PreviewInfo
from .._call import Call, encode
from .._fields import given
from .._previews import kept_to
from .._wire import segment
from ._transport import Transport


class Previews:
    """``sandbox.previews``."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{segment(sandbox_id)}/previews"

    def create(
        self,
        port: int,
        *,
        visibility: Optional[str] = None,
        ttl_seconds: Optional[int] = None,
        expires_at: Optional[str] = None,
        embed_origins: Optional[Sequence[str]] = None,
        idempotency_key: Optional[str] = None,
    ) -> PreviewInfo:
        """Gives a port an address, or changes who may see the one it has.

        ``url_with_token`` of a private one opens in a browser; programs send ``token`` as ``X-Runtime-Preview-Token``
        to ``url``. Visits wake a paused sandbox.

        Args:
            port: What the server in the sandbox listens on.
            visibility: ``private``, the default, or ``public``: for everybody who has the address.
            ttl_seconds: Seconds the token lasts at least, 60 to 604800; a day if left out.
            expires_at: When it ends at the latest: a time with its zone, 60 seconds to 7 days ahead.
            embed_origins: Sites that may show it in a frame: ``https://host``, ``https://*.host`` or
                ``http://localhost[:port]``, at most 16. Left out, those of before stay; an empty list: any site.
            idempotency_key: Calls with the same one are answered alike.

        Raises:
            InvalidRequestError: ``details["issues"]`` names every wrong field.
        """
        body = given(port=port, visibility=visibility, ttlSeconds=ttl_seconds, expiresAt=expires_at)
        if embed_origins is not None:
            body["embedOrigins"] = list(embed_origins)
        call = Call("POST", self._path, body=encode(body), key=idempotency_key)
        return kept_to(expires_at, self._transport.json(call))

    def list(self) -> builtins.list[PreviewInfo]:
        """All of them, by port; each private one with a token that lasts a day."""
        answer = self._transport.json(Call("GET", self._path))
        return cast("builtins.list[PreviewInfo]", answer["data"])

    def get(
        self,
        port: int,
        *,
        ttl_seconds: Optional[int] = None,
        expires_at: Optional[str] = None,
    ) -> PreviewInfo:
        """One of them; a private one with a token that lasts as asked.

        Raises:
            NotFoundError: ``not_found``: the port has no address.
        """
        wanted = (("ttlSeconds", ttl_seconds), ("expiresAt", expires_at))
        call = Call("GET", self._of(port), query=wanted)
        return kept_to(expires_at, self._transport.json(call))

    def rotate(self, port: int) -> PreviewInfo:
        """Ends every token of before, and what is open by one; answers the preview with a new one.

        Raises:
            NotFoundError: ``not_found``: the port has no address.
        """
        call = Call("POST", f"{self._of(port)}:rotate", body=b"{}")
        return cast(PreviewInfo, self._transport.json(call))

    def delete(self, port: int) -> DeletedPreviewInfo:
        """Takes the address away, and cuts what is open there.

        Raises:
            NotFoundError: ``not_found``: the port has no address.
        """
        return cast(DeletedPreviewInfo, self._transport.json(Call("DELETE", self._of(port))))

    def _of(self, port: int) -> str:
        return f"{self._path}/{segment(str(port))}"
