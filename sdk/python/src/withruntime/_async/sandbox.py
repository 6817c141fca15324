"""One sandbox: its life, from the create to the end. What runs in it is in `commands`."""

from __future__ import annotations

import datetime
import math
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence, Union, cast, overload

from .. import _io_async as io
from .._api_types import DeletedSandbox, SandboxInfo, SnapshotInfo
from .._call import Call, CapacityCallback, encode
from .._config import choose_origin
from .._errors import ConflictError, NotFoundError, RuntimeError
from .._fields import UPDATE_FIELDS, body_of, given
from .._unserved import no_such_member
from ._transport import AsyncTransport
from .commands import AsyncCommands
from .files import AsyncFiles
from .network import AsyncNetwork
from .previews import AsyncPreviews
from .sessions import AsyncSessions
from .snapshots import capture, snapshot_call

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .._keywords import CreateFields, NamedFields, UpdateFields
    from .client import AsyncRuntime


class AsyncSandbox(AsyncCommands):
    """A sandbox. Made by ``runtime.sandboxes.create()`` or ``AsyncSandbox.create()``.

    ``async with`` ends it at the end of the block: one that was created there is deleted, or only stopped with
    ``keep=True``; one that was found is stopped. Errors of that end are swallowed, so that they never hide one of
    the block.
    """

    def __init__(self, transport: AsyncTransport, info: SandboxInfo, *, created: bool = False, keep: bool = False):
        super().__init__(transport, info["id"])
        self._info = info
        self._delete_at_end = created and not keep and not info.get("reused")
        self._stop_keeping: Optional[Callable[[], None]] = None
        #: Its files.
        self.files = AsyncFiles(transport, info["id"])
        #: What it may reach.
        self.network = AsyncNetwork(transport, info["id"])
        #: Web addresses for its ports.
        self.previews = AsyncPreviews(transport, info["id"])
        #: Ways into it without a key.
        self.sessions = AsyncSessions(transport, info["id"])

    @staticmethod
    async def create(
        *,
        client: Optional[AsyncRuntime] = None,
        wait: bool = True,
        idempotency_key: Optional[str] = None,
        keep: bool = False,
        wait_for_capacity: Optional[float] = None,
        on_capacity_wait: Optional[CapacityCallback] = None,
        **fields: Unpack[CreateFields],
    ) -> AsyncSandbox:
        """``client.sandboxes.create(...)``, with a shared client from the environment where none is given."""
        return await _shared(client).sandboxes.create(
            wait=wait,
            idempotency_key=idempotency_key,
            keep=keep,
            wait_for_capacity=wait_for_capacity,
            on_capacity_wait=on_capacity_wait,
            **fields,
        )

    @staticmethod
    async def get_or_create(
        name: str,
        *,
        client: Optional[AsyncRuntime] = None,
        wait: bool = True,
        idempotency_key: Optional[str] = None,
        **fields: Unpack[NamedFields],
    ) -> AsyncSandbox:
        """``client.sandboxes.get_or_create(...)``, with a shared client from the environment where none is given."""
        sandboxes = _shared(client).sandboxes
        return await sandboxes.get_or_create(name, wait=wait, idempotency_key=idempotency_key, **fields)

    @staticmethod
    async def connect(sandbox_id: str, *, client: Optional[AsyncRuntime] = None) -> AsyncSandbox:
        """``client.sandboxes.get(...)``, with a shared client from the environment where none is given."""
        return await _shared(client).sandboxes.get(sandbox_id)

    @staticmethod
    def from_session(
        token: str, sandbox_id: str, api_url: Optional[str] = None, *, timeout: float = 300
    ) -> AsyncSandbox:
        """A sandbox that is reached with a session token in place of a key. Makes no call.

        Args:
            token: What the backend was given for the session (``rtsess_…``).
            sandbox_id: The sandbox it is for.
            api_url: The server; chosen as a client's ``base_url`` if left out.
            timeout: Seconds a call may take; 0 for no limit.

        Raises:
            RuntimeError: ``invalid_request``: that is no token of a session.
        """
        if not token.startswith("rtsess_"):
            raise RuntimeError(
                "That is no token of a session: those begin with rtsess_.",
                code="invalid_request",
                hint="sandbox.sessions.create() makes one, where the key is.",
            )
        transport = AsyncTransport(
            origin=choose_origin(api_url),
            api_key=token,
            timeout=timeout,
            max_retries=4,
            max_connections=48,
            wait_for_capacity=0,
            on_queued=None,
        )
        return AsyncSandbox(transport, cast(SandboxInfo, {"id": sandbox_id}))

    @property
    def info(self) -> SandboxInfo:
        """What the API last told of it, as it told it (camelCase keys, times as ISO 8601 text)."""
        return self._info

    @property
    def state(self) -> str:
        """As of the last answer: ``starting``, ``running``, ``pausing``, ``paused``, ``resuming``, ``stopping`` or
        ``stopped``; empty before the first one."""
        return self._info.get("state", "")

    async def refresh(self) -> Self:
        """Reads it again."""
        return self._take(await self._transport.json(Call("GET", self._path())))

    async def wait_for(self, state: str, timeout_seconds: int = 60) -> Self:
        """Waits for a state; the server tells when it is there.

        Returns also when the time is over, or when it has stopped and so never will be: look at ``state``.

        Args:
            state: ``running``, ``paused`` or ``stopped``.
            timeout_seconds: Seconds, at most 120.
        """
        query = (("waitFor", state), ("timeoutSeconds", timeout_seconds))
        return self._take(await self._transport.json(Call("GET", self._path(), query=query)))

    async def stop(self, wait: bool = True, idempotency_key: Optional[str] = None) -> Self:
        """Stops it: processes end and memory is gone, its disk is kept. Stopping it again changes nothing.

        Args:
            wait: Until it has stopped, at most a minute.
            idempotency_key: For calls that are to be one.
        """
        return await self._verb("stop", {}, wait, idempotency_key)

    async def pause(self, wait: bool = True, idempotency_key: Optional[str] = None) -> Self:
        """Pauses it: processes and memory are kept and go on with ``wake``, or with the next command.

        Raises:
            ConflictError: ``not_running``.
        """
        return await self._verb("pause", {}, wait, idempotency_key)

    async def wake(
        self,
        wait: bool = True,
        timeout_seconds: Optional[int] = None,
        idempotency_key: Optional[str] = None,
        *,
        wait_for_capacity: Optional[float] = None,
        on_capacity_wait: Optional[CapacityCallback] = None,
    ) -> Self:
        """Lets a paused one go on. One that is awake is no error, unless a new time limit was asked for.

        Args:
            wait: Until it runs, at most a minute.
            timeout_seconds: A new time limit from now, in seconds, for one that has a limit.
            idempotency_key: For calls that are to be one.
            wait_for_capacity: Seconds to wait for room; the client's if left out, 0 to fail at once.
            on_capacity_wait: Called with the refusal and the seconds before each such wait.

        Raises:
            ConflictError: ``not_paused``: it has stopped (``restart`` starts it), or a new limit was asked for.
                ``no_capacity`` after the wait.
        """
        room = self._room(wait_for_capacity)
        try:
            return await self._verb(
                "wake", given(timeoutSeconds=timeout_seconds), wait, idempotency_key, room, on_capacity_wait
            )
        except ConflictError as error:
            if error.code != "not_paused" or timeout_seconds is not None:
                raise
            await self.refresh()
            if self.state not in ("running", "starting", "resuming"):
                raise
            return self

    async def restart(
        self,
        wait: bool = True,
        idempotency_key: Optional[str] = None,
        *,
        wait_for_capacity: Optional[float] = None,
        on_capacity_wait: Optional[CapacityCallback] = None,
    ) -> Self:
        """Starts a stopped one again from its disk.

        Args:
            wait: Until it runs, at most a minute.
            idempotency_key: For calls that are to be one.
            wait_for_capacity: Seconds to wait for room; the client's if left out, 0 to fail at once.
            on_capacity_wait: Called with the refusal and the seconds before each such wait.

        Raises:
            ConflictError: Its disk is gone; ``no_capacity`` after the wait.
        """
        return await self._verb("restart", {}, wait, idempotency_key, self._room(wait_for_capacity), on_capacity_wait)

    async def resize(
        self,
        *,
        restart: bool = True,
        vcpu: Optional[int] = None,
        memory_mib: Optional[int] = None,
        disk_mib: Optional[int] = None,
        idempotency_key: Optional[str] = None,
        wait_for_capacity: Optional[float] = None,
        on_capacity_wait: Optional[CapacityCallback] = None,
    ) -> Self:
        """Gives it another size; what is left out stays. Waits until it runs with it, at most two minutes.

        Args:
            restart: It may be stopped and started again: what is in its memory is lost, its disk is kept. False for a
                disk that grows while it runs, where the server can do that.
            vcpu: Processors, 1 to 16.
            memory_mib: Memory in MiB.
            disk_mib: Disk in MiB; it only grows.
            idempotency_key: For calls that are to be one.
            wait_for_capacity: Seconds to wait for room; the client's if left out, 0 to fail at once.
            on_capacity_wait: Called with the refusal and the seconds before each such wait.

        Raises:
            ConflictError: ``resize_needs_restart``; ``no_capacity`` after the wait, and it is stopped then.
            RuntimeError: ``disk_too_small``: a disk only grows.
        """
        sizes = {"vcpu": vcpu, "memoryMiB": memory_mib, "diskMiB": disk_mib}
        call = Call(
            "POST",
            self._path(":resize"),
            body=encode({"restart": restart, **{name: size for name, size in sizes.items() if size is not None}}),
            prefer_wait=120,
            key=idempotency_key,
            room_seconds=self._room(wait_for_capacity),
            on_room_wait=on_capacity_wait,
        )
        return self._take(await self._transport.json(call))

    async def extend(self, seconds: int, idempotency_key: Optional[str] = None) -> Self:
        """More time before its limit, at most a day from now. Without a limit nothing changes."""
        return await self._settings("extend", {"seconds": seconds}, idempotency_key)

    async def set_retention(self, days: int, idempotency_key: Optional[str] = None) -> Self:
        """How many days (1 to 365) it is kept after it was paused or stopped; then it is deleted."""
        return await self._settings("retention", {"days": days}, idempotency_key)

    async def update(self, idempotency_key: Optional[str] = None, **settings: Unpack[UpdateFields]) -> Self:
        """Changes settings; those left out stay.

        ``name``; ``labels`` (replaces all); ``env`` (adds; None takes a variable away; commands started afterwards
        see it); ``user``; ``auto_wake``; ``idle_pause_seconds`` (from now; 0 never, 60 to 86400); ``persistent``;
        ``max_total_cost_micros`` (None removes it); ``timeout_seconds`` (from now; 0 removes it, 60 to 86400);
        ``on_timeout`` (``pause``, ``stop`` or ``delete``).

        Raises:
            TypeError: A setting nobody knows. Nothing was sent.
            ConflictError: ``name_taken``.
        """
        body = body_of("update", cast("Mapping[str, Any]", settings), UPDATE_FIELDS, keep_none=True)
        return await self._settings("update", body, idempotency_key)

    async def snapshot(
        self,
        *,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        retention_days: Optional[int] = None,
        mode: Optional[str] = None,
        idempotency_key: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
    ) -> SnapshotInfo:
        """Keeps what it is now, and waits until that is done. It stands still for the time that takes.

        Sandboxes are made from it by ``create(snapshot=id)``, also when this one is gone.

        Args:
            name: For people and ``snapshots.list(name=)``.
            labels: Those of the sandbox if left out.
            retention_days: Days it is kept, 1 to 365; a year if left out.
            mode: ``memory``: disk, memory and processes, as if left out; ``disk``: the disk alone, so that what is
                made from it starts anew and may have another size.
            idempotency_key: Calls with the same one take one.
            timeout_seconds: Seconds to wait; 600 if left out.

        Raises:
            ValueError: There is no such mode. Nothing was sent.
            ConflictError: ``snapshot_failed``; ``sandbox_stopped``.
            RuntimeError: ``snapshot_timeout``: it is not finished; ``details["snapshotId"]`` names it.
        """
        if mode not in (None, "memory", "disk"):
            raise ValueError("mode is memory or disk")
        call = snapshot_call(self.id, name, labels, retention_days, mode, idempotency_key, 10)
        return await capture(self, self._transport, call, mode, timeout_seconds)

    @overload
    async def fork(
        self,
        count: None = None,
        *,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        keep_snapshot: Optional[bool] = None,
        funding: Optional[str] = None,
        secrets: Optional[Sequence[str]] = None,
        idempotency_key: Optional[str] = None,
    ) -> AsyncSandbox: ...

    @overload
    async def fork(
        self,
        count: int,
        *,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        keep_snapshot: Optional[bool] = None,
        funding: Optional[str] = None,
        secrets: Optional[Sequence[str]] = None,
        idempotency_key: Optional[str] = None,
    ) -> list[AsyncSandbox]: ...

    async def fork(
        self,
        count: Optional[int] = None,
        *,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        keep_snapshot: Optional[bool] = None,
        funding: Optional[str] = None,
        secrets: Optional[Sequence[str]] = None,
        idempotency_key: Optional[str] = None,
    ) -> Union[AsyncSandbox, list[AsyncSandbox]]:
        """Makes running copies, with its files, memory, processes and variables. It goes on itself.

        Each copy is a sandbox of its own, with its own id, host name and randomness; the end of a ``with`` block stops
        it, and `delete` ends it for good. No room is an error at once.

        Args:
            count: How many, 1 to 16; with it the result is a list, without it the one copy.
            name: Of the first copy; the others are called ``name-1``, ``name-2`` and so on.
            labels: Those of the sandbox if left out.
            keep_snapshot: Keep the snapshot that the copies are made from.
            funding: Accepted, not used.
            secrets: Fewer secrets than the sandbox has.
            idempotency_key: Calls with the same one make the copies once.

        Raises:
            ConflictError: ``no_capacity``; ``details["startedSandboxIds"]`` names copies that run all the same.
        """
        body = given(
            count=count,
            name=name,
            labels=None if labels is None else dict(labels),
            keepSnapshot=keep_snapshot,
            funding=funding,
            secrets=None if secrets is None else list(secrets),
        )
        call = Call("POST", self._path(":fork"), body=encode(body), prefer_wait=60, key=idempotency_key)
        answer = await self._transport.json(call)
        copies = [AsyncSandbox(self._transport, info) for info in answer["sandboxes"]]
        return copies[0] if count is None else copies

    async def delete(self, idempotency_key: Optional[str] = None) -> DeletedSandbox:
        """Deletes it for good, in whatever state, with its disk. Doing it again answers the same.

        Raises:
            NotFoundError: There never was one of this id.
        """
        self.stop_keep_alive()
        answer = await self._transport.json(Call("DELETE", self._path(), key=idempotency_key))
        return cast(DeletedSandbox, answer)

    def keep_alive(self, every_seconds: float = 60, margin_seconds: int = 600) -> Callable[[], None]:
        """Keeps one with a time limit running past it, in the background, until the function it returns is called.

        Args:
            every_seconds: How often to look; at least 10.
            margin_seconds: Seconds that are to remain each time, 60 to 3600.
        """
        self.stop_keep_alive()
        margin = max(60, min(3600, margin_seconds))

        async def look() -> bool:
            try:
                await self.refresh()
                ends = self._info.get("endsAt")
                if self.state == "stopped":
                    return False
                if self.state == "running" and ends:
                    missing = margin - _seconds_until(ends)
                    if missing > 0:
                        await self.extend(max(1, min(3600, math.ceil(missing))))
            except NotFoundError:
                return False
            except RuntimeError:
                # Told by the next call that matters; this one tries again at its next turn.
                pass
            return True

        self._stop_keeping = io.every(max(10.0, every_seconds), look)
        return self.stop_keep_alive

    def stop_keep_alive(self) -> None:
        """Ends ``keep_alive``, if it runs."""
        stop, self._stop_keeping = self._stop_keeping, None
        if stop is not None:
            stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop_keep_alive()
        try:
            if self._delete_at_end:
                await self.delete()
            elif self.state != "stopped":
                await self.stop(wait=False)
        except RuntimeError:
            # Nothing that the block's own outcome should be hidden by.
            pass

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_member(type(self).__name__, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, state={self.state!r})"

    async def _verb(
        self,
        verb: str,
        body: dict[str, Any],
        wait: bool,
        key: Optional[str],
        room_seconds: float = 0.0,
        on_room_wait: Optional[CapacityCallback] = None,
    ) -> Self:
        call = Call(
            "POST",
            self._path(f":{verb}"),
            body=encode(body),
            prefer_wait=60 if wait else None,
            key=key,
            room_seconds=room_seconds,
            on_room_wait=on_room_wait,
        )
        return self._take(await self._transport.json(call))

    async def _settings(self, verb: str, body: dict[str, Any], key: Optional[str]) -> Self:
        call = Call("POST", self._path(f":{verb}"), body=encode(body), key=key)
        return self._take(await self._transport.json(call))

    def _room(self, seconds: Optional[float]) -> float:
        return self._transport.wait_for_capacity if seconds is None else seconds

    def _take(self, info: Any) -> Self:
        start = self._info.get("start")
        self._info = cast(SandboxInfo, info if start is None or "start" in info else {**info, "start": start})
        return self


def _seconds_until(time: str) -> float:
    at = datetime.datetime.fromisoformat(time.replace("Z", "+00:00"))
    return (at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()


def _shared(client: Optional[AsyncRuntime]) -> AsyncRuntime:
    from .client import default

    return client if client is not None else default.get()
