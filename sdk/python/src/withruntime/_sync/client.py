# Written by scripts/derive_sync.py from _async/client.py: do not edit.
"""The client: where everything begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, cast

from .. import _io_sync as io
from .._api_types import LimitsInfo, MeInfo
from .._call import Call, encode
from .._config import choose_origin
from .._fields import given
from .._unserved import no_such_member
from ._transport import Transport
from .sandboxes import Sandboxes
from .snapshots import Snapshots

if TYPE_CHECKING:
    from typing_extensions import Self


class Limits:
    """``runtime.limits``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self) -> LimitsInfo:
        """What this key may use and has used. Money is in millionths of a dollar, as text."""
        return cast(LimitsInfo, self._transport.json(Call("GET", "/v1/limits")))


class Runtime:
    """A client of one server. Make one and keep it: it keeps its connections.

    Args:
        api_key: The key; ``RUNTIME_API_KEY`` if left out, then a saved login. Looked for with the first call.
        base_url: The server's origin; ``RUNTIME_API_URL`` if left out, then ``http://127.0.0.1:8787`` (inside a
            sandbox ``http://runtime.internal``). Unencrypted only on this machine.
        timeout: Seconds a call may take, with its waiting and retries; 0 for no limit.
        max_retries: How often a call is sent again after a failure.
        max_connections: How many connections may be open at once; streams use at most all but eight.
        wait_for_capacity: Seconds that create, wake and restart wait for room.
        on_queued: Called with the length of the queue when a call must wait for a connection.

    Raises:
        ValueError: `base_url` is no origin, or would send the key unencrypted over a network.
        RuntimeError: ``invalid_proxy``.
    """

    def __init__(
        self,
        api_key: Optional[str] = None,
        base_url: Optional[str] = None,
        *,
        timeout: Optional[float] = 300,
        max_retries: int = 4,
        max_connections: int = 48,
        wait_for_capacity: float = 120,
        on_queued: Optional[Callable[[int], None]] = None,
    ) -> None:
        self._transport = Transport(
            origin=choose_origin(base_url),
            api_key=api_key,
            timeout=timeout,
            max_retries=max_retries,
            max_connections=max_connections,
            wait_for_capacity=wait_for_capacity,
            on_queued=on_queued,
        )
        #: Sandboxes.
        self.sandboxes = Sandboxes(self._transport)
        #: Snapshots.
        self.snapshots = Snapshots(self._transport)
        #: What the key may use.
        self.limits = Limits(self._transport)

    @property
    def base_url(self) -> str:
        """The server's origin."""
        return self._transport.origin.text

    def me(self) -> MeInfo:
        """Whose key this is.

        Raises:
            AuthenticationError: ``unauthorized``: the server does not know it.
        """
        return cast(MeInfo, self._transport.json(Call("GET", "/v1/me")))

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        query: Optional[dict[str, Any]] = None,
        prefer_wait: Optional[int] = None,
        idempotency_key: Optional[str] = None,
    ) -> Any:
        """Any route of the API, with the client's key, retries and errors; its JSON answer.

        Args:
            method: ``GET``, ``POST``, ``PUT`` or ``DELETE``.
            path: From ``/v1`` on, percent-encoded.
            json: The body.
            query: Parameters; a list is repeated.
            prefer_wait: Seconds the server may wait for things to settle.
            idempotency_key: Made for the call if left out.
        """
        pairs = []
        for name, value in given(**(query or {})).items():
            pairs += [(name, one) for one in (value if isinstance(value, (list, tuple)) else [value])]
        call = Call(
            method.upper(),
            path,
            query=pairs,
            body=None if json is None else encode(json),
            prefer_wait=prefer_wait,
            key=idempotency_key,
        )
        return self._transport.json(call)

    def close(self) -> None:
        """Closes its connections. The client can still be used; it opens new ones."""
        self._transport.close()
        # What closing sets going is done by the time the caller's event loop may end.
        io.turn()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        raise no_such_member(type(self).__name__, name)


#: The client of ``Sandbox.create()`` and its like.
default: io.Shared[Runtime] = io.Shared(lambda: Runtime())
