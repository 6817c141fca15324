"""What a sandbox may reach, and what was decided about its connections."""

from __future__ import annotations

from typing import Optional, Sequence, cast

from .._api_types import NetworkDecision, NetworkInfo
from .._call import Call, encode
from .._fields import given
from .._wire import segment
from ._transport import AsyncTransport
from .page import AsyncPage, page_of


class AsyncNetwork:
    """``sandbox.network``."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{segment(sandbox_id)}/network"

    async def get(self) -> NetworkInfo:
        """The rules it is held to, and whether they are in force (``enforced``)."""
        return cast(NetworkInfo, await self._transport.json(Call("GET", self._path)))

    async def set(
        self,
        *,
        internet: bool,
        allow: Optional[Sequence[str]] = None,
        deny: Optional[Sequence[str]] = None,
        connect: Optional[Sequence[str]] = None,
    ) -> NetworkInfo:
        """Replaces the rules; what is left out is emptied. They hold when it returns, for open connections too.

        Args:
            internet: False refuses everything; with a filled `allow` it means that list and nothing else.
            allow: Filled, only these: a name, ``*.`` and a domain (all below it), an address, a range of addresses.
            deny: Entries of the same forms, which win over everything.
            connect: ``host:port``, reachable beside `allow`.

        Raises:
            InvalidRequestError: ``details["issues"]`` names every wrong entry. The rules are what they were.
        """
        body = given(
            internet=internet,
            allow=None if allow is None else list(allow),
            deny=None if deny is None else list(deny),
            connect=None if connect is None else list(connect),
        )
        return cast(NetworkInfo, await self._transport.json(Call("PUT", self._path, body=encode(body))))

    async def on(self) -> NetworkInfo:
        """Lets it reach every public address; other rules are emptied."""
        return await self.set(internet=True)

    async def off(self) -> NetworkInfo:
        """Lets it reach nothing."""
        return await self.set(internet=False)

    async def decisions(self, *, limit: Optional[int] = None) -> AsyncPage[NetworkDecision]:
        """What was decided about its connections, newest first. The last thousand are kept while the server runs.

        Each tells the verdict (``allowed`` or ``refused``), the reason and the rule, host, port and address, the bytes
        that went each way, and the process that asked.

        Args:
            limit: How many in a page, 1 to 200; 50 if left out.
        """

        async def fetch(cursor: Optional[str]) -> AsyncPage[NetworkDecision]:
            call = Call("GET", self._path + "/decisions", query=(("limit", limit), ("cursor", cursor)))
            return page_of(await self._transport.json(call), lambda one: cast(NetworkDecision, one), fetch)

        return await fetch(None)
