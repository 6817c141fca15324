"""All sandboxes of a key: ``runtime.sandboxes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Union, cast

from .. import _io_async as io
from .._api_types import DeletedSandbox
from .._call import Call, CapacityCallback, encode
from .._errors import RuntimeError
from .._fields import CREATE_FIELDS, body_of
from .._wire import segment
from ._transport import AsyncTransport
from .page import AsyncPage, page_of
from .sandbox import AsyncSandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._keywords import CreateFields, NamedFields

_AT_ONCE = 8


class AsyncSandboxes:
    """``runtime.sandboxes``: create, find, list, stop and delete."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        *,
        wait: bool = True,
        idempotency_key: Optional[str] = None,
        keep: bool = False,
        wait_for_capacity: Optional[float] = None,
        on_capacity_wait: Optional[CapacityCallback] = None,
        **fields: Unpack[CreateFields],
    ) -> AsyncSandbox:
        """Makes a sandbox and waits until it runs. Every field may be left out.

        ``name``; ``labels``; ``env`` (for all its commands, never told again); ``user`` (who they run as);
        ``region``; ``vcpu`` (1 to 16, 2 if left out); ``memory_mib`` (128 to 65536, 4096); ``disk_mib`` (3072 to
        409600, 4096); ``cpu``; ``cpu_floor_millis`` (thousandths of a CPU); ``timeout_seconds`` (its time limit: 0
        for none, else 60 to 86400); ``on_lease_end`` (at that limit: ``pause``, ``stop`` or ``delete``);
        ``idle_pause_seconds`` (0 for never, else 60 to 86400; 300); ``auto_wake``; ``persistent``;
        ``max_total_cost_micros`` (millionths of a dollar); ``network`` (``{"internet": False}``); ``image``;
        ``snapshot``; ``volumes``; ``secrets``; ``spread_from``. What a server does not serve yet it refuses with
        501 and a hint.

        Args:
            wait: Until it runs; otherwise answer at once, in state ``starting``.
            idempotency_key: Calls with the same one make one sandbox, for a day.
            keep: The end of a ``with`` block stops it and keeps its disk. Not sent.
            wait_for_capacity: Seconds to wait for room; the client's if left out, 0 to fail at once.
            on_capacity_wait: Called with the refusal and the seconds before each such wait.

        Raises:
            TypeError: A field nobody knows, with the likely one. Nothing was sent.
            InvalidRequestError: ``invalid_request``: ``details["issues"]`` names every wrong field.
            ConflictError: ``name_taken``; ``no_capacity`` after the wait.
            RuntimeError: ``start_failed``: it did not come up, or `idempotency_key` names one that has stopped.
        """
        body = body_of("create", cast("Mapping[str, Any]", fields), CREATE_FIELDS, keep_none=False)
        call = Call(
            "POST",
            "/v1/sandboxes",
            body=encode(body),
            prefer_wait=60 if wait else None,
            key=idempotency_key,
            room_seconds=self._transport.wait_for_capacity if wait_for_capacity is None else wait_for_capacity,
            on_room_wait=on_capacity_wait,
        )
        sandbox = AsyncSandbox(self._transport, await self._transport.json(call), created=True, keep=keep)
        if wait:
            await _running(sandbox)
        return sandbox

    async def get_or_create(
        self,
        name: str,
        *,
        wait: bool = True,
        idempotency_key: Optional[str] = None,
        **fields: Unpack[NamedFields],
    ) -> AsyncSandbox:
        """The sandbox of this name, woken or started if need be; or a new one with these fields.

        ``sandbox.info.get("reused")`` tells which. Two that ask at the same time get the same one.

        Raises: As `create`.
        """
        if "get_or_create" in fields:
            raise TypeError("get_or_create() got an unexpected keyword argument 'get_or_create'.")
        return await self.create(wait=wait, idempotency_key=idempotency_key, name=name, get_or_create=True, **fields)

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """One sandbox, by id.

        Raises:
            NotFoundError: ``not_found``: none of this id that the key may see.
        """
        info = await self._transport.json(Call("GET", f"/v1/sandboxes/{segment(sandbox_id)}"))
        return AsyncSandbox(self._transport, info)

    async def delete(self, sandbox_id: str, idempotency_key: Optional[str] = None) -> DeletedSandbox:
        """Deletes a sandbox for good, by id, without reading it first.

        Raises:
            NotFoundError: There never was one of this id.
        """
        call = Call("DELETE", f"/v1/sandboxes/{segment(sandbox_id)}", key=idempotency_key)
        return cast(DeletedSandbox, await self._transport.json(call))

    async def list(
        self,
        *,
        state: Optional[Union[str, Sequence[str]]] = None,
        include_stopped: bool = False,
        labels: Optional[Mapping[str, str]] = None,
        name: Optional[str] = None,
        limit: Optional[int] = None,
    ) -> AsyncPage[AsyncSandbox]:
        """Sandboxes, oldest first: live ones, and stopped ones that have their disk.

        Args:
            state: Only those in one of these states.
            include_stopped: Also those whose disk is gone.
            labels: Only those that have all of these.
            name: Only the one of this name.
            limit: How many in a page, 1 to 100.
        """
        query: list[tuple[str, Union[str, int, bool, None]]] = []
        if state is not None:
            query += [("state", one) for one in ([state] if isinstance(state, str) else state)]
        query += [("label", f"{key}:{value}") for key, value in (labels or {}).items()]
        query += [("includeStopped", include_stopped or None), ("name", name), ("limit", limit)]

        async def fetch(cursor: Optional[str]) -> AsyncPage[AsyncSandbox]:
            call = Call("GET", "/v1/sandboxes", query=[*query, ("cursor", cursor)])
            answer = await self._transport.json(call)
            return page_of(answer, lambda info: AsyncSandbox(self._transport, info), fetch)

        return await fetch(None)

    async def stop_all(self, *, labels: Mapping[str, str]) -> dict[str, Any]:
        """Stops every sandbox that has all of these labels, eight at a time. One failure does not end the rest.

        Returns:
            ``{"stopped": [id, …], "failed": [{"id": …, "error": RuntimeError}, …]}``, in list order.

        Raises:
            RuntimeError: ``invalid_request``: no labels. Stopping everything is never one call.
        """
        _need_labels(labels, "stop_all")
        return await self._all(await self._matching(labels, False), "stopped", _stop)

    async def delete_all(self, *, labels: Mapping[str, str]) -> dict[str, Any]:
        """Deletes for good every sandbox that has all of these labels, eight at a time.

        Returns:
            ``{"deleted": [id, …], "failed": [{"id": …, "error": RuntimeError}, …]}``, in list order.

        Raises:
            RuntimeError: ``invalid_request``: no labels. Deleting everything is never one call.
        """
        _need_labels(labels, "delete_all")
        return await self._all(await self._matching(labels, True), "deleted", _delete)

    async def _matching(self, labels: Mapping[str, str], include_stopped: bool) -> Sequence[AsyncSandbox]:
        page = await self.list(labels=labels, include_stopped=include_stopped, limit=100)
        found = []
        async for sandbox in page:
            found.append(sandbox)
        return found

    async def _all(self, sandboxes: Sequence[AsyncSandbox], done: str, work: Any) -> dict[str, Any]:
        outcomes = await io.each(work, sandboxes, _AT_ONCE)
        answer: dict[str, Any] = {done: [], "failed": []}
        for sandbox, outcome in zip(sandboxes, outcomes):
            if isinstance(outcome, Exception):
                answer["failed"].append({"id": sandbox.id, "error": outcome})
            else:
                answer[done].append(sandbox.id)
        return answer


async def _stop(sandbox: AsyncSandbox) -> None:
    await sandbox.stop()


async def _delete(sandbox: AsyncSandbox) -> None:
    await sandbox.delete()


async def _running(sandbox: AsyncSandbox) -> None:
    """Waits out a start that outlasted the create; a sandbox that did not come up is told as an error."""
    replayed = bool(sandbox.info.get("replayed"))
    if sandbox.state != "running":
        await sandbox.wait_for("running", 60)
    if sandbox.state == "running":
        return
    reason = sandbox.info.get("stopReason")
    told = f" ({reason})" if reason else ""
    if replayed:
        message = f"The sandbox that was made with this idempotency key is {sandbox.state}{told}."
        hint = "A new one needs a new key; this one goes on with restart() or wake()."
    else:
        message = f"The sandbox did not start: it is {sandbox.state}{told}."
        hint = "Its record says more: sandbox get " + sandbox.id
    details = {"sandboxId": sandbox.id, "state": sandbox.state}
    raise RuntimeError(message, code="start_failed", hint=hint, details=details)


def _need_labels(labels: Mapping[str, str], call: str) -> None:
    if not labels:
        raise RuntimeError(
            f"{call} needs at least one label.",
            code="invalid_request",
            hint="Label what belongs together when you create it.",
        )
