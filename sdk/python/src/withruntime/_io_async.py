"""Time, sockets and waiting for the asynchronous client.

`_io_sync` has the same names with the same meaning and no `await`; everything above is written once, on these.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import ssl
import time
import weakref
from typing import Any, AsyncGenerator, Awaitable, Callable, Generic, Optional, Sequence, TypeVar, Union

from . import _connect
from ._config import Origin, Proxy
from ._wire import OpenError, ReadTimeout

T = TypeVar("T")
R = TypeVar("R")

now = time.monotonic
sleep = asyncio.sleep
Lock = asyncio.Lock

#: What a caller's wish to stop looks like where it lands.
Cancelled = (asyncio.CancelledError, KeyboardInterrupt)

#: Pieces of a body, and events of a stream, one after the other.
Events = AsyncGenerator[dict[str, Any], None]
Pieces = AsyncGenerator[bytes, None]

_PIECE = 64 * 1024


class Stream:
    """A connection that bytes go through."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    async def read(self, timeout: Optional[float]) -> bytes:
        """What has come; `b""` at the end. Raises `ReadTimeout`."""
        try:
            return await asyncio.wait_for(self._reader.read(_PIECE), timeout)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise ReadTimeout from error

    async def write(self, data: bytes, timeout: Optional[float]) -> None:
        """Hands over all of `data`. Raises `ReadTimeout`."""
        self._writer.write(data)
        try:
            await asyncio.wait_for(self._writer.drain(), timeout)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise ReadTimeout from error

    def idle(self) -> bool:
        """Whether it can be used again here and now: open, nothing unread, and of the running loop."""
        return (
            self._loop is asyncio.get_running_loop()
            and not self._reader.at_eof()
            and self._reader.exception() is None
            and not self._writer.is_closing()
            # Bytes nobody asked for are in the reader's buffer, which has no other name.
            and not getattr(self._reader, "_buffer", b"")
        )

    async def end(self) -> None:
        """Says that nothing more is written; reading goes on."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
            await self._writer.drain()

    def close(self) -> None:
        """Closes it without waiting. Safe to call again, and after its loop is gone."""
        if self._loop.is_closed():
            return
        if self._loop is _running_loop():
            self._writer.close()
        else:
            self._loop.call_soon_threadsafe(self._writer.close)


#: A connection that is read and written at the same time: here any is.
Duplex = Stream


def duplex(stream: Stream) -> Duplex:
    """The connection, to be read and written at the same time."""
    return stream


async def open_stream(origin: Origin, proxy: Optional[Proxy], tls: Optional[ssl.SSLContext], timeout: float) -> Stream:
    """A connection to an origin, through a proxy if there is one. Raises `OpenError`."""
    loop = asyncio.get_running_loop()
    sock: Optional[socket.socket] = None
    try:
        async with _timeout(timeout):
            host, port = (proxy.host, proxy.port) if proxy else (origin.host, origin.port)
            sock = await _dial(loop, host, port)
            if proxy:
                await loop.sock_sendall(sock, _connect.request(origin, proxy))
                answer = _connect.Answer(proxy)
                while not answer.feed(await loop.sock_recv(sock, 1)):
                    pass
            reader, writer = await asyncio.open_connection(
                sock=sock, ssl=tls, server_hostname=origin.host if tls else None, limit=4 * _PIECE
            )
            return Stream(reader, writer)
    except (OSError, asyncio.TimeoutError, TimeoutError) as error:
        if sock is not None:
            sock.close()
        raise _connect.opening_failed(origin, proxy, error) from error
    except BaseException:
        if sock is not None:
            sock.close()
        raise


async def _dial(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            _connect.tune(sock)
            return sock
    raise failure


class _timeout:
    """`asyncio.timeout` for Pythons that have none: cancels the body and raises `TimeoutError`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expired = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs has a task
        self._task: asyncio.Task[Any] = task
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._timer.cancel()
        if self._expired and kind is asyncio.CancelledError:
            uncancel = getattr(self._task, "uncancel", None)
            # Cancelled by someone else too: theirs stands.
            if uncancel is None or uncancel() == 0:
                raise TimeoutError("timed out")


class Waiter:
    """One who waits to be woken, once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        def resolve() -> None:
            if not self._future.done():
                self._future.set_result(None)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(resolve)

    async def wait(self, timeout: Optional[float]) -> bool:
        """Whether it was woken in time."""
        done, _ = await asyncio.wait([self._future], timeout=timeout)
        return bool(done)


async def each(work: Callable[[T], Awaitable[R]], items: Sequence[T], at_once: int) -> list[Union[R, Exception]]:
    """Does `work` on all items, some at once; results in order, an exception in place of its result."""
    gate = asyncio.Semaphore(at_once)

    async def one(item: T) -> Union[R, Exception]:
        async with gate:
            try:
                return await work(item)
            except Exception as error:
                return error

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def turn() -> None:
    """Lets what is due be done."""
    await asyncio.sleep(0)


async def tell(callback: Callable[..., Any], *values: Any) -> None:
    """Calls a callback of the user's, which may itself be asynchronous."""
    result = callback(*values)
    if inspect.isawaitable(result):
        await result


async def aside(work: Callable[[], R]) -> R:
    """Does work that blocks, like disk access, where it holds nobody up."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


def every(seconds: float, work: Callable[[], Awaitable[bool]]) -> Callable[[], None]:
    """Does `work` again and again until it answers False or the function returned here is called."""

    async def loop() -> None:
        while await work():  # noqa: ASYNC110 - it looks at a server, which no event is told of
            await asyncio.sleep(seconds)

    task = asyncio.ensure_future(loop())

    def stop() -> None:
        if not task.get_loop().is_closed():
            task.cancel()

    return stop


class Started:
    """Work that goes on by itself. What it raises is its own affair."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task: asyncio.Future[None] = asyncio.ensure_future(work())

    async def wait(self) -> None:
        """Waits until it is done."""
        await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Ends it where it waits."""
        if not self._task.get_loop().is_closed():
            self._task.cancel()


def start(work: Callable[[], Awaitable[None]]) -> Started:
    """Does work beside the caller's."""
    return Started(work)


class Listener:
    """Listens at a port of this machine, and serves each connection by itself."""

    def __init__(self, serve: Callable[[Duplex], Awaitable[None]]) -> None:
        self._serve = serve
        self._server: Optional[asyncio.AbstractServer] = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        server = await asyncio.start_server(self._accept, host, port, limit=4 * _PIECE)
        self._server = server
        self.port = server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        stream = Stream(reader, writer)
        if task is not None:
            self._tasks.add(task)
        try:
            await self._serve(stream)
        except asyncio.CancelledError:
            # By `close`; there is nobody else who could.
            pass
        finally:
            stream.close()
            if task is not None:
                self._tasks.discard(task)

    async def close(self) -> None:
        """Stops listening and ends what is served."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def listen(host: str, port: int, serve: Callable[[Duplex], Awaitable[None]]) -> Listener:
    """Listens; port 0 is any that is free. Raises OSError."""
    listener = Listener(serve)
    await listener.open(host, port)
    return listener


def _running_loop() -> Optional[asyncio.AbstractEventLoop]:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Shared(Generic[T]):
    """One object for everyone, made when first wanted: here one for each event loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = weakref.WeakKeyDictionary()

    def get(self) -> T:
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            found = self._made[loop] = self._make()
        return found


__all__ = [
    "Cancelled", "Duplex", "Events", "Listener", "Lock", "OpenError", "Pieces", "Shared", "Started", "Stream", "Waiter",
    "aside", "duplex", "each", "every", "listen", "now", "open_stream", "sleep", "start", "tell", "turn",
]  # fmt: skip
