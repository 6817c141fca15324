"""What happens to the files of a sandbox, as it happens. A watch lives in the sandbox, not in the connection."""

from __future__ import annotations

import builtins
from collections import deque
from typing import Any, AsyncIterator, Callable, Deque, Optional, Sequence, cast

from .. import _io_async as io
from .._api_types import WatchInfo
from .._call import EVENTS, Call, encode
from .._errors import ConnectionError, RuntimeError, error_from_answer
from .._events import may_follow_on, with_aliases
from .._fields import given
from .._wire import segment
from ._output import events as lines_of
from ._transport import STREAM_SILENCE, AsyncTransport, Cut

#: Seconds that failing to follow is put up with before it is told.
_TOLERATED = 300.0

Notice = Callable[[dict[str, Any]], Any]


class AsyncWatch:
    """A watch that goes on. Two readers of one handle share its place; for two that do not, make two watches.

    Attributes:
        info: Its record as of the start.
        cursor: Where the next read begins. What was read is told again from an earlier one, as far as it is held.
        exit_reason: Why the last `events` ended: ``stopped``, ``timeout`` or ``root-removed``, and nothing more comes;
            or ``paused``: the sandbox is, and `events` after the wake goes on where this left off.
    """

    def __init__(
        self, transport: AsyncTransport, sandbox_id: str, info: WatchInfo, on_notice: Optional[Notice] = None
    ) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{segment(sandbox_id)}/files/watches/{segment(info['id'])}"
        self._on_notice = on_notice
        #: Told by the server and not handed on yet.
        self._waiting: Deque[dict[str, Any]] = deque()
        self._ended = False
        self.info = info
        self.cursor = int(info["cursor"])
        self.exit_reason: Optional[str] = None

    @property
    def id(self) -> str:
        """Its id, for ``files.watches.stop(id)``."""
        return self.info["id"]

    @property
    def path(self) -> str:
        """What is watched."""
        return self.info["path"]

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Each change as it happens, until the watch ends or the sandbox pauses; `exit_reason` says which.

        Changes are dicts with camelCase keys and a snake_case name beside each: ``type`` (``create``, ``write``,
        ``remove``, ``rename``, ``chmod``, ``access``), ``path``, ``is_dir``; of a rename ``old_path``; where one
        stands for several, ``count``. A connection that breaks is taken up again where it was.

        Raises:
            NotFoundError: The watch is gone: the sandbox was stopped meanwhile.
            ConnectionError: It cannot be followed any more; the watch goes on.
        """
        if not self._ended:
            self.exit_reason = None
        failing_since: Optional[float] = None
        failures = 0
        while True:
            failure: Optional[RuntimeError] = None
            body: Optional[io.Events] = None
            over = True
            try:
                while self._waiting:
                    yield self._waiting.popleft()
                if self._ended:
                    return
                body = await self._body()
                async for line in body:
                    kind = self._take(line)
                    while self._waiting:
                        yield self._waiting.popleft()
                    if kind == "failure":
                        failure = error_from_answer(_status(line), {"error": dict(line)})
                        break
                    failing_since, failures = None, 0
                    if kind == "continue":
                        over = False
                        break
                    if kind in ("end", "paused"):
                        break
            except Cut as cut:
                failure = ConnectionError(f"Following the watch broke off: {cut}")
            except RuntimeError as error:
                failure = error
            finally:
                if body is not None:
                    await body.aclose()
            if failure is None:
                if over:
                    return
                continue
            if not may_follow_on(failure):
                raise failure
            now = io.now()
            failing_since = now if failing_since is None else failing_since
            delay = min(5.0, 0.05 * 2 ** min(failures, 7))
            failures += 1
            if now + delay - failing_since > _TOLERATED:
                raise failure
            await io.sleep(delay)

    async def get_new_events(self, wait_ms: int = 0) -> builtins.list[dict[str, Any]]:
        """The changes since the last read. Sets `exit_reason` where there will be none.

        Args:
            wait_ms: Milliseconds to wait for some, at most 8000.

        Raises:
            NotFoundError: The watch is gone: the sandbox was stopped meanwhile.
        """
        if not self._ended:
            self.exit_reason = None
        query = (("cursor", self.cursor), ("waitMs", wait_ms))
        told = await self._transport.json(Call("GET", self._path + "/events", query=query))
        self._take({"k": "events", "events": told["events"], "cursor": told["nextCursor"]})
        if told.get("lostBytes"):
            self._tell({"k": "lost", "bytes": told["lostBytes"], "cursor": told["nextCursor"]})
        for notice in told["notices"]:
            self._take(notice)
        self._ended = self._ended or bool(told.get("ended"))
        new = builtins.list(self._waiting)
        self._waiting.clear()
        return new

    async def stop(self) -> bool:
        """Ends the watch. False if it had ended. What it saw until then can still be read.

        Raises:
            NotFoundError: It is gone: the sandbox was stopped meanwhile.
        """
        return bool((await self._transport.json(Call("DELETE", self._path))).get("stopped"))

    async def _body(self) -> io.Events:
        query = (("cursor", self.cursor), ("follow", True))
        call = Call("GET", self._path + "/events", query=query, accept=EVENTS, patient=False)
        return lines_of(await self._transport.open(call), lambda: STREAM_SILENCE)

    def _take(self, line: dict[str, Any]) -> str:
        """Notes what a line says; its kind."""
        kind = str(line.get("k"))
        cursor = line.get("cursor")
        if isinstance(cursor, int) and not isinstance(cursor, bool):
            self.cursor = max(self.cursor, cursor)
        if kind == "events":
            self._waiting.extend(with_aliases(event) for event in line.get("events") or ())
        elif kind == "paused":
            self.exit_reason = "paused"
        elif kind == "end":
            self.exit_reason = str(line.get("reason"))
            self._ended = True
        elif kind in ("overflow", "lost", "limit"):
            self._tell(line)
        return kind

    def _tell(self, notice: dict[str, Any]) -> None:
        if self._on_notice is not None:
            self._on_notice(notice)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, path={self.path!r})"


class AsyncWatches:
    """``sandbox.files.watches``."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id
        self._path = f"/v1/sandboxes/{segment(sandbox_id)}/files/watches"

    async def start(
        self,
        path: str,
        *,
        recursive: bool = False,
        events: Optional[Sequence[str]] = None,
        include: Optional[Sequence[str]] = None,
        exclude: Optional[Sequence[str]] = None,
        batch_ms: Optional[int] = None,
        timeout_ms: Optional[int] = None,
        max_watches: Optional[int] = None,
        id: Optional[str] = None,
        on_notice: Optional[Notice] = None,
        idempotency_key: Optional[str] = None,
    ) -> AsyncWatch:
        """Starts a watch. What changes from then on is seen, also while nobody reads.

        Args:
            path: A folder, or one file.
            recursive: With all folders below.
            events: Which changes: some of ``create``, ``write``, ``remove``, ``rename``, ``chmod``, ``access``; all but
                the last if left out.
            include: Only what matches one of these patterns: one with a slash is for the path below `path`, one
                without for each name.
            exclude: Nothing that matches one of these; a folder is left out with all below.
            batch_ms: Milliseconds that changes are collected for after the first one; 100 if left out.
            timeout_ms: When it ends by itself; an hour if left out, 0 never.
            max_watches: Folders it looks at, at most.
            id: A name for it, of small letters, digits and dashes; one is made if left out.
            on_notice: Called with each notice that not everything was told, a dict with ``k``: ``overflow``
                (``dropped``, None where nobody counted; ``reason``), ``lost`` (``bytes``: read too late), ``limit``
                (``watches``: there are more folders). Look at the files themselves then.
            idempotency_key: Calls with the same one start one watch.

        Raises:
            NotFoundError: ``file_not_found``.
            ConflictError: ``watch_limit``: four go on; ``already_exists``: one with this id does.
        """
        body = given(
            path=path,
            recursive=recursive,
            events=None if events is None else builtins.list(events),
            include=None if include is None else builtins.list(include),
            exclude=None if exclude is None else builtins.list(exclude),
            batchMs=batch_ms,
            timeoutMs=timeout_ms,
            maxWatches=max_watches,
            id=id,
        )
        call = Call("POST", self._path, body=encode(body), key=idempotency_key)
        info = cast(WatchInfo, await self._transport.json(call))
        return AsyncWatch(self._transport, self._sandbox_id, info, on_notice)

    async def list(self) -> builtins.list[WatchInfo]:
        """Those that go on, oldest first.

        Raises:
            ConflictError: ``sandbox_paused``: looking wakes nothing.
        """
        answer = await self._transport.json(Call("GET", self._path))
        return cast("builtins.list[WatchInfo]", answer["data"])

    async def stop(self, watch_id: str) -> bool:
        """Ends one. False if it had ended.

        Raises:
            NotFoundError: There is none with this id.
        """
        return bool((await self._transport.json(Call("DELETE", f"{self._path}/{segment(watch_id)}"))).get("stopped"))


def _status(line: dict[str, Any]) -> int:
    status = line.get("status")
    return status if isinstance(status, int) and not isinstance(status, bool) else 0
