"""What runs in a sandbox: commands, answered at once or as a stream, and processes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Mapping, Optional, Sequence, Union, cast

from .. import _io_async as io
from .._api_types import ProcessInfo
from .._call import EVENTS, Call, encode
from .._errors import CommandError, ConnectionError, RuntimeError
from .._events import stream_error, with_aliases
from .._fields import given
from .._results import Collected, CommandResult
from .._wire import segment
from ._output import AsyncFollower, events
from ._transport import AsyncTransport, Cut
from ._tunnel import AsyncTunnel
from .forward import AsyncPortForward
from .processes import AsyncProcess
from .terminal import AsyncTerminal

if TYPE_CHECKING:
    from typing_extensions import Literal

    CommandUser = Literal["sandbox", "root"]

Command = Union[str, Sequence[str]]

#: Above this time limit, in milliseconds, a command's output is streamed.
_ONE_ANSWER_MS = 60_000
#: The time limit of a streamed command that has none of its own: a day.
_STREAMED_MS = 86_400_000


class AsyncCommands:
    """The part of a sandbox that runs things."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._id = sandbox_id

    @property
    def id(self) -> str:
        """A lower-case UUID."""
        return self._id

    async def exec(
        self,
        command: Command,
        *,
        cwd: Optional[str] = None,
        user: Optional[CommandUser] = None,
        env: Optional[Mapping[str, str]] = None,
        stdin: Optional[Union[str, bytes]] = None,
        timeout_ms: Optional[int] = None,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
        check: bool = False,
        idempotency_key: Optional[str] = None,
        trace_files: bool = False,
    ) -> CommandResult:
        """Runs a command to its end. When it returns, everything the command had started is over.

        A time limit that is up is a result (``timed_out``), not an error.

        Args:
            command: Text for ``bash -c``; or a program and its arguments, with no shell between.
            cwd: An absolute path; ``/workspace`` if left out.
            user: ``sandbox`` or ``root``; the sandbox's own default if left out.
            env: Variables over those of the sandbox.
            stdin: Its input, at most 1 MiB; then it is closed.
            timeout_ms: Milliseconds it may take, up to a day; a minute if left out, a day with a callback.
            on_stdout: Called with pieces of output as they come.
            on_stderr: Likewise.
            check: Raise where it does not exit with 0.
            idempotency_key: Calls with the same one run it once.
            trace_files: Report the files it read and wrote in ``files``.

        Returns:
            The result. 64 KiB of each stream are kept; 64 MiB with a callback or a limit above a minute.

        Raises:
            CommandError: With `check`: it failed, ran out of time, or of memory.
            ConflictError: ``sandbox_stopped``, ``sandbox_paused``, ``time_limit_too_short``.
            ConnectionError: The output cannot be followed any more; the command may still run.
        """
        streamed = on_stdout is not None or on_stderr is not None or (timeout_ms or 0) > _ONE_ANSWER_MS
        body = _command_body(command, cwd, user, env, stdin, trace_files)
        if not streamed:
            body.update(given(timeoutMs=timeout_ms))
            call = Call("POST", self._path(":exec"), body=encode(body), key=idempotency_key)
            result = CommandResult.from_json(await self._transport.json(call))
        else:
            result = await self._exec_streamed(body, timeout_ms, on_stdout, on_stderr, idempotency_key)
        if check and (result.exit_code != 0 or result.timed_out):
            raise CommandError(result.to_dict())
        return result

    async def exec_stream(
        self,
        command: Command,
        *,
        cwd: Optional[str] = None,
        user: Optional[CommandUser] = None,
        env: Optional[Mapping[str, str]] = None,
        stdin: Optional[Union[str, bytes]] = None,
        timeout_ms: Optional[int] = None,
        idempotency_key: Optional[str] = None,
        trace_files: bool = False,
    ) -> AsyncIterator[dict[str, Any]]:
        """Runs a command and yields what happens as it happens.

        Events are dicts with camelCase keys and a snake_case name beside each: ``start`` (``process_id``),
        ``stdout`` and ``stderr`` (``data``, ``offset``), ``truncated`` (``dropped_bytes``, ``resume_at``: output
        that is gone), and last ``exit`` (``exit_code``, ``state``, ``timed_out``, ``duration_ms``). After ``start``
        a connection that breaks is taken up again where it was. Leaving the loop early leaves the command running.

        Arguments are those of `exec`; the time limit is a day if left out.

        Raises:
            ConnectionError: It broke before ``start``, or the output cannot be followed any more.
        """
        body = _command_body(command, cwd, user, env, stdin, trace_files)
        stream = self._stream(body, timeout_ms, idempotency_key)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()

    async def spawn(
        self,
        command: Command,
        *,
        cwd: Optional[str] = None,
        user: Optional[CommandUser] = None,
        env: Optional[Mapping[str, str]] = None,
        stdin: Optional[str] = None,
        pty: Optional[Mapping[str, int]] = None,
        timeout_ms: Optional[int] = None,
        output_encoding: Optional[str] = None,
        trace_files: bool = False,
        idempotency_key: Optional[str] = None,
    ) -> AsyncProcess:
        """Starts a process in the background and answers at once.

        Args:
            command: As in `exec`.
            cwd: As in `exec`.
            user: As in `exec`.
            env: As in `exec`.
            stdin: ``"pipe"`` keeps its input open for ``write``; any other text is its input.
            pty: ``{"cols": 120, "rows": 40}`` gives it a terminal of that many characters.
            timeout_ms: Milliseconds it may run, up to a day; no limit if left out.
            output_encoding: ``"base64"`` for ``output_bytes``; ``"utf8"`` if left out.
            trace_files: Record the files it opens, for ``files()``.
            idempotency_key: Calls with the same one start it once.
        """
        body = _command_body(command, cwd, user, env, None if stdin == "pipe" else stdin, trace_files)
        if stdin == "pipe":
            body["stdinMode"] = "pipe"
        body.update(given(pty=dict(pty) if pty else None, timeoutMs=timeout_ms, outputEncoding=output_encoding))
        info = await self._transport.json(
            Call("POST", self._path("/processes"), body=encode(body), key=idempotency_key)
        )
        return AsyncProcess(self._transport, self.id, info)

    async def processes(self) -> list[ProcessInfo]:
        """Its processes, as the API tells them: those that run, and the last ones that ended."""
        answer = await self._transport.json(Call("GET", self._path("/processes")))
        return cast("list[ProcessInfo]", answer["data"])

    async def process(self, process_id: str) -> AsyncProcess:
        """One of its processes, by id.

        Raises:
            NotFoundError: ``not_found``.
        """
        info = await self._transport.json(Call("GET", self._path(f"/processes/{segment(process_id)}")))
        return AsyncProcess(self._transport, self.id, info)

    async def terminal(
        self,
        *,
        cols: int = 80,
        rows: int = 24,
        command: Optional[str] = None,
        cwd: Optional[str] = None,
        user: Optional[CommandUser] = None,
        process_id: Optional[str] = None,
    ) -> AsyncTerminal:
        """Opens a terminal, or shows one that is open.

        Args:
            cols: Its width in characters.
            rows: Its height in lines.
            command: A line for the shell; ``bash -l`` if left out.
            cwd: As in `exec`.
            user: As in `exec`.
            process_id: A process that was spawned with `pty`, to show it instead.

        Raises:
            RuntimeError: ``terminal_refused``, of the class of the server's own error, whose code is in
                ``details["code"]``: ``not_found``, ``sandbox_stopped``, ``sandbox_paused``, ``rate_limited``, ….
            ConnectionError: The server could not be reached.
        """
        size: tuple[tuple[str, Union[str, int, None]], ...] = (("cols", cols), ("rows", rows))
        query = (*size, ("command", command), ("cwd", cwd), ("user", user), ("processId", process_id))
        socket = await self._transport.upgrade(Call("GET", self._path("/terminal"), query=query))
        ready = await socket.ready("terminal")
        return AsyncTerminal(socket, ready.get("processId"))

    async def forward_port(
        self, port: int, *, local_port: Optional[int] = None, host: str = "127.0.0.1"
    ) -> AsyncPortForward:
        """Makes a port of the sandbox a port of this machine, until it is closed.

        The sandbox's program may listen at its loopback alone. Many may connect at once.

        Args:
            port: The sandbox's port, 1 to 65535.
            local_port: The port here; the same if left out, any that is free with 0. The result tells it.
            host: The address to listen at. Whoever can reach it can reach the sandbox's port.

        Raises:
            RuntimeError: ``invalid_request``: no such port; ``tunnel_refused``, as a terminal's refusal.
            ConnectionError: The server could not be reached.
            OSError: The local port is taken.
        """
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            raise RuntimeError("A port is a number from 1 to 65535.", code="invalid_request")
        forward = AsyncPortForward(await self._tunnel(), port, self._tunnel)
        return await forward._start(port if local_port is None else local_port, host)

    async def _tunnel(self) -> AsyncTunnel:
        socket = await self._transport.upgrade(Call("GET", self._path("/tunnel")))
        await socket.ready("tunnel")
        return AsyncTunnel(socket)

    async def _exec_streamed(
        self,
        body: dict[str, Any],
        timeout_ms: Optional[int],
        on_stdout: Optional[Callable[[str], Any]],
        on_stderr: Optional[Callable[[str], Any]],
        key: Optional[str],
    ) -> CommandResult:
        collected = Collected()
        tell = {"stdout": on_stdout, "stderr": on_stderr}
        stream = self._stream(body, timeout_ms, key)
        try:
            async for event in stream:
                collected.add(event)
                callback = tell.get(str(event.get("type")))
                if callback is not None and event.get("data"):
                    await io.tell(callback, event["data"])
        except io.Cancelled:
            # Whoever stops waiting for the command does not want it to go on.
            if collected.process_id is not None:
                await self._terminate(collected.process_id)
            raise
        finally:
            await stream.aclose()
        return collected.result()

    async def _stream(self, body: dict[str, Any], timeout_ms: Optional[int], key: Optional[str]) -> io.Events:
        asked = {**body, "timeoutMs": timeout_ms or _STREAMED_MS, "stream": True}
        call = Call("POST", self._path(":exec"), body=encode(asked), accept=EVENTS, key=key)
        answer = await self._transport.open(call)
        first = events(answer, lambda: follower.silence() if follower else _FIRST_SILENCE)
        follower: Optional[AsyncFollower] = None
        try:
            start = await _started(first)
            follower = AsyncFollower(self._transport, self.id, str(start["processId"]))
            yield with_aliases(start)
            rest = follower.read(first)
            try:
                async for event in rest:
                    yield event
            finally:
                await rest.aclose()
        finally:
            await first.aclose()

    async def _terminate(self, process_id: str) -> None:
        signal = Call(
            "POST",
            self._path(f"/processes/{segment(process_id)}:signal"),
            body=encode({"signal": "SIGTERM"}),
            patient=False,
            seconds=10.0,
        )
        try:
            await self._transport.json(signal)
        except RuntimeError:
            # The wish to stop stands, whether or not the command could be told.
            pass

    def _path(self, rest: str = "") -> str:
        return f"/v1/sandboxes/{segment(self._id)}{rest}"


#: Seconds until `start` must have come.
_FIRST_SILENCE = 125.0


async def _started(first: io.Events) -> dict[str, Any]:
    """The first event of an exec's body, which says which process it is."""
    try:
        async for event in first:
            if event.get("type") == "error":
                raise stream_error(event)
            if event.get("type") != "start" or not isinstance(event.get("processId"), str):
                raise RuntimeError("The stream does not begin with its process.", code="stream_failed")
            return event
    except Cut as cut:
        raise ConnectionError(f"The connection broke before the command had started: {cut}") from cut
    raise ConnectionError("The stream ended before the command had started.")


def _command_body(
    command: Command,
    cwd: Optional[str],
    user: Optional[str],
    env: Optional[Mapping[str, str]],
    stdin: Optional[Union[str, bytes]],
    trace_files: bool,
) -> dict[str, Any]:
    body: dict[str, Any] = {"command": command} if isinstance(command, str) else {"argv": list(command)}
    body.update(given(cwd=cwd, user=user, env=dict(env) if env is not None else None))
    if isinstance(stdin, str):
        body["stdin"] = stdin
    elif stdin is not None:
        body["stdinBase64"] = base64.b64encode(stdin).decode()
    if trace_files:
        body["traceFiles"] = True
    return body
