"""Time, sockets and waiting for the synchronous client: the names of `_io_async`, blocking."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from typing import Any, Callable, Generator, Generic, Optional, Sequence, TypeVar, Union

from . import _connect
from ._config import Origin, Proxy
from ._wire import OpenError, ReadTimeout

T = TypeVar("T")
R = TypeVar("R")

now = time.monotonic
sleep = time.sleep
Lock = threading.Lock

#: What a caller's wish to stop looks like where it lands.
Cancelled = (KeyboardInterrupt,)

#: Pieces of a body, and events of a stream, one after the other.
Events = Generator[dict[str, Any], None, None]
Pieces = Generator[bytes, None, None]

_PIECE = 64 * 1024


class Stream:
    """A connection that bytes go through. One thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def read(self, timeout: Optional[float]) -> bytes:
        """What has come; `b""` at the end. Raises `ReadTimeout`."""
        try:
            self._socket.settimeout(_some(timeout))
            return self._socket.recv(_PIECE)
        except socket.timeout as error:
            raise ReadTimeout from error

    def write(self, data: bytes, timeout: Optional[float]) -> None:
        """Hands over all of `data`. Raises `ReadTimeout`."""
        try:
            self._socket.settimeout(_some(timeout))
            self._socket.sendall(data)
        except socket.timeout as error:
            raise ReadTimeout from error

    def idle(self) -> bool:
        """Whether it can be used again: open, and nothing unread."""
        if self._socket.fileno() < 0:
            return False
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return False
        try:
            if hasattr(select, "poll"):
                poll = select.poll()
                poll.register(self._socket, select.POLLIN)
                return not poll.poll(0)
            return not select.select([self._socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Closes it without waiting. Safe to call again."""
        self._socket.close()


def open_stream(origin: Origin, proxy: Optional[Proxy], tls: Optional[ssl.SSLContext], timeout: float) -> Stream:
    """A connection to an origin, through a proxy if there is one. Raises `OpenError`."""
    sock: Optional[socket.socket] = None
    try:
        host, port = (proxy.host, proxy.port) if proxy else (origin.host, origin.port)
        sock = socket.create_connection((host, port), timeout=_some(timeout))
        _connect.tune(sock)
        if proxy:
            sock.sendall(_connect.request(origin, proxy))
            answer = _connect.Answer(proxy)
            while not answer.feed(sock.recv(1)):
                pass
        if tls:
            sock = tls.wrap_socket(sock, server_hostname=origin.host)
        return Stream(sock)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise _connect.opening_failed(origin, proxy, error) from error
    except BaseException:
        if sock is not None:
            sock.close()
        raise


def _some(timeout: Optional[float]) -> Optional[float]:
    # To a socket 0 means "do not block", which is another mode than "no time left".
    return None if timeout is None else max(timeout, 0.001)


class Waiter:
    """One who waits to be woken, once."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> None:
        self._event.set()

    def wait(self, timeout: Optional[float]) -> bool:
        """Whether it was woken in time."""
        return self._event.wait(timeout)


def each(work: Callable[[T], R], items: Sequence[T], at_once: int) -> list[Union[R, Exception]]:
    """Does `work` on all items, some at once; results in order, an exception in place of its result."""

    def one(item: T) -> Union[R, Exception]:
        try:
            return work(item)
        except Exception as error:
            return error

    if len(items) < 2:
        return [one(item) for item in items]
    # Costs an import of its own; few programs come here.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=min(at_once, len(items)), thread_name_prefix="withruntime") as pool:
        return list(pool.map(one, items))


def turn() -> None:
    """Lets what is due be done; here everything is done already."""


def tell(callback: Callable[..., Any], *values: Any) -> None:
    """Calls a callback of the user's."""
    callback(*values)


def aside(work: Callable[[], R]) -> R:
    """Does work that blocks; here there is nobody to hold up."""
    return work()


def every(seconds: float, work: Callable[[], bool]) -> Callable[[], None]:
    """Does `work` again and again until it answers False or the function returned here is called."""
    stopped = threading.Event()

    def loop() -> None:
        while not stopped.is_set() and work():
            stopped.wait(seconds)

    threading.Thread(target=loop, name="withruntime-keep-alive", daemon=True).start()
    return stopped.set


class Shared(Generic[T]):
    """One object for everyone, made when first wanted: here one for the process."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: Optional[T] = None
        self._lock = threading.Lock()

    def get(self) -> T:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


__all__ = [
    "Cancelled", "Events", "Lock", "OpenError", "Pieces", "Shared", "Stream", "Waiter",
    "aside", "each", "every", "now", "open_stream", "sleep", "tell", "turn",
]  # fmt: skip
