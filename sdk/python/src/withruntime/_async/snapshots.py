"""Snapshots: what sandboxes were, kept apart from them; ``runtime.snapshots``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional, cast

from .. import _io_async as io
from .._api_types import SnapshotInfo
from .._call import Call, encode
from .._errors import ConflictError, RuntimeError
from .._fields import SNAPSHOT_FIELDS, body_of, given
from .._wire import segment
from ._transport import AsyncTransport
from .page import AsyncPage, page_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._keywords import SnapshotFields
    from .sandbox import AsyncSandbox

#: Seconds that a snapshot may take, if its caller does not say.
_CAPTURE_SECONDS = 600.0
_LOOK_SECONDS = 0.2


class AsyncSnapshots:
    """``runtime.snapshots``. ``runtime.sandboxes.create(snapshot=id)`` makes a sandbox from one."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        sandbox_id: str,
        *,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        retention_days: Optional[int] = None,
        mode: Optional[str] = None,
        idempotency_key: Optional[str] = None,
    ) -> SnapshotInfo:
        """Begins a snapshot and answers at once, in state ``capturing``; ``sandbox.snapshot()`` also waits for it.

        Arguments are those of ``sandbox.snapshot()``.
        """
        call = snapshot_call(sandbox_id, name, labels, retention_days, mode, idempotency_key)
        return cast(SnapshotInfo, await self._transport.json(call))

    async def get(self, snapshot_id: str) -> SnapshotInfo:
        """One snapshot, by id.

        Raises:
            NotFoundError: ``not_found``: none of this id that the key may see.
        """
        return cast(SnapshotInfo, await self._transport.json(Call("GET", _path(snapshot_id))))

    async def list(
        self,
        *,
        sandbox_id: Optional[str] = None,
        name: Optional[str] = None,
        state: Optional[str] = None,
        limit: Optional[int] = None,
    ) -> AsyncPage[SnapshotInfo]:
        """Snapshots, oldest first.

        Args:
            sandbox_id: Only those of this sandbox, which may be gone.
            name: Only those of this name.
            state: Only those in this state: ``capturing``, ``ready``, ``failed``, ``deleting``.
            limit: How many in a page, 1 to 100.
        """
        query = (("sandboxId", sandbox_id), ("name", name), ("state", state), ("limit", limit))

        async def fetch(cursor: Optional[str]) -> AsyncPage[SnapshotInfo]:
            call = Call("GET", "/v1/snapshots", query=[*query, ("cursor", cursor)])
            return page_of(await self._transport.json(call), lambda one: cast(SnapshotInfo, one), fetch)

        return await fetch(None)

    async def update(
        self, snapshot_id: str, *, idempotency_key: Optional[str] = None, **fields: Unpack[SnapshotFields]
    ) -> SnapshotInfo:
        """Changes its name and labels; those left out stay.

        ``name`` (None gives it up); ``labels`` (replaces all); ``if_labels`` (nothing is changed unless these are its
        labels).

        Raises:
            TypeError: A field nobody knows. Nothing was sent.
            ConflictError: ``snapshot_metadata_changed``: its labels are not `if_labels`.
        """
        body = body_of("update", cast("Mapping[str, Any]", fields), SNAPSHOT_FIELDS, keep_none=True)
        call = Call("POST", _path(snapshot_id, ":update"), body=encode(body), key=idempotency_key)
        return cast(SnapshotInfo, await self._transport.json(call))

    async def extend(self, snapshot_id: str, retention_days: int) -> SnapshotInfo:
        """Keeps it so many days from now, 1 to 365; never longer than a year from when it was taken."""
        call = Call("POST", _path(snapshot_id, ":extend"), body=encode({"retentionDays": retention_days}))
        return cast(SnapshotInfo, await self._transport.json(call))

    async def delete(self, snapshot_id: str) -> None:
        """Deletes it for good. Sandboxes that were made from it are not touched.

        Raises:
            NotFoundError: There never was one of this id.
        """
        await self._transport.json(Call("POST", _path(snapshot_id, ":delete"), body=b"{}"))


def _path(snapshot_id: str, verb: str = "") -> str:
    return f"/v1/snapshots/{segment(snapshot_id)}{verb}"


def snapshot_call(
    sandbox_id: str,
    name: Optional[str],
    labels: Optional[Mapping[str, str]],
    retention_days: Optional[int],
    mode: Optional[str],
    key: Optional[str],
    prefer_wait: Optional[int] = None,
) -> Call:
    """The call that takes a snapshot."""
    body = given(name=name, labels=None if labels is None else dict(labels), retentionDays=retention_days, mode=mode)
    path = f"/v1/sandboxes/{segment(sandbox_id)}:snapshot"
    return Call("POST", path, body=encode(body), prefer_wait=prefer_wait, key=key)


async def capture(
    sandbox: AsyncSandbox, transport: AsyncTransport, call: Call, mode: Optional[str], seconds: Optional[float]
) -> SnapshotInfo:
    """Takes a snapshot of a sandbox and sees to it that one which ran goes on running.

    The server does that itself where it answers in time. Where it does not, or where nobody knows what came of the
    call, the sandbox may lie paused, and is woken here; but never during the capture, which would fail by it.
    """
    until = io.now() + (_CAPTURE_SECONDS if seconds is None else seconds)
    await sandbox.refresh()
    if sandbox.state in ("starting", "resuming"):
        await sandbox.wait_for("running", 60)
    elif sandbox.state == "pausing":
        await sandbox.wait_for("paused", 60)
    ran = sandbox.state == "running"
    about: dict[str, Any] = {"sourceSandboxId": sandbox.id}
    waited = False
    try:
        snapshot = cast(SnapshotInfo, await transport.json(call))
        about = {"snapshotId": snapshot["id"], **about}
        while snapshot["state"] == "capturing":
            waited = True
            if io.now() + _LOOK_SECONDS > until:
                raise _Unfinished(snapshot["id"], about)
            await io.sleep(_LOOK_SECONDS)
            snapshot = cast(SnapshotInfo, await transport.json(Call("GET", _path(snapshot["id"]))))
        if snapshot["state"] != "ready":
            told = snapshot.get("error")
            message = f"The snapshot ended as {snapshot['state']}" + (f": {told}" if told else ".")
            raise ConflictError(message, code="snapshot_failed", status=409, details=about)
        if mode == "disk" and snapshot.get("mode") != "disk":
            raise ConflictError(
                "The server took memory too, though the disk alone was asked for.",
                code="snapshot_mode_mismatch",
                status=409,
                details=about,
            )
    except _Unfinished as unfinished:
        raise unfinished.error from None
    except RuntimeError as error:
        if ran and (waited or await _lies_paused(sandbox)):
            try:
                await sandbox.wake()
            except RuntimeError as second:
                woken = {"code": second.code, "message": second.message}
                error.details = {**(error.details or {}), **about, "sourceWakeError": woken}
        raise
    if ran and waited:
        try:
            await sandbox.wake()
        except RuntimeError as error:
            error.details = {**(error.details or {}), **about}
            raise
    return snapshot


class _Unfinished(Exception):
    def __init__(self, snapshot_id: str, about: dict[str, Any]) -> None:
        self.error = RuntimeError(
            f"Snapshot {snapshot_id} is not finished yet, and the time to wait for it is up.",
            code="snapshot_timeout",
            hint="The sandbox may lie paused until it is; to wake it now would spoil it. "
            f"Look at snapshots.get({snapshot_id!r}), or allow more with timeout_seconds.",
            details=about,
        )


async def _lies_paused(sandbox: AsyncSandbox) -> bool:
    try:
        await sandbox.refresh()
    except RuntimeError:
        return False
    return sandbox.state in ("paused", "pausing")
