"""Time, sockets and waiting for the synchronous client: the names of `_io_async`, blocking."""

from __future__ import annotations

import select
import socket
import ssl
import sys
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

    def socket(self) -> socket.socket:
        """What is below it, for one who takes it over."""
        return self._socket


class Duplex:
    """A connection that one thread reads while others write and close it.

    The socket does not block; who must wait does so outside of the lock, since TLS has one state for both directions.
    It is shut down at once and closed when the last one has let go, so that nobody waits at a number that is another's
    by then.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    def read(self, timeout: Optional[float]) -> bytes:
        """What has come; `b""` at the end, also by `close`. Raises `ReadTimeout`."""
        return self._do(lambda: self._socket.recv(_PIECE), False, timeout, b"")

    def write(self, data: bytes, timeout: Optional[float]) -> None:
        """Hands over all of `data`. Raises `ReadTimeout`."""
        left = memoryview(data)
        until = None if timeout is None else now() + timeout
        while left:
            # TLS wants the same bytes again after it had to wait; those of a view stay where they are.
            piece = left[:_PIECE]
            rest = None if until is None else max(0.0, until - now())
            left = left[self._do(lambda piece=piece: self._socket.send(piece), True, rest, None) :]  # type: ignore[misc]

    def end(self) -> None:
        """Says that nothing more is written; reading goes on."""
        with self._lock:
            if not self._closed:
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends it for all who use it. Safe to call again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                # The plain one: that of TLS would take the state away under a reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            except OSError:
                # The other side was quicker.
                pass
            if self._users == 0:
                self._socket.close()

    def _do(self, step: Callable[[], T], writes: bool, timeout: Optional[float], otherwise: Optional[T]) -> T:
        """Does a step as soon as it can be done; `otherwise` once it is closed."""
        with self._lock:
            if self._closed:
                return self._over(otherwise)
            self._users += 1
        try:
            while True:
                with self._lock:
                    if self._closed:
                        return self._over(otherwise)
                    try:
                        return step()
                    except BlockingIOError:
                        to_write = writes
                    except ssl.SSLWantReadError:
                        to_write = False
                    except ssl.SSLWantWriteError:
                        to_write = True
                if to_write == writes:
                    if not _usable(self._socket, to_write, timeout):
                        raise ReadTimeout
                else:
                    # TLS has something to settle first; the thread for the other direction may do it unseen.
                    _usable(self._socket, to_write, 0.05)
        finally:
            with self._lock:
                self._users -= 1
                if self._closed and self._users == 0:
                    self._socket.close()

    @staticmethod
    def _over(otherwise: Optional[T]) -> T:
        if otherwise is None:
            raise OSError("the connection is closed")
        return otherwise


def _usable(sock: socket.socket, to_write: bool, timeout: Optional[float]) -> bool:
    """Waits until a socket can be read, or written."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLOUT if to_write else select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))
    ready = select.select([] if to_write else [sock], [sock] if to_write else [], [], timeout)
    return bool(ready[0] or ready[1])


def duplex(stream: Stream) -> Duplex:
    """The connection, to be read and written at the same time. The stream is not used any more."""
    return Duplex(stream.socket())


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


class Started:
    """Work that goes on by itself. What it raises is its own affair."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="withruntime", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until it is done."""
        self._thread.join()

    def cancel(self) -> None:
        """Ends it where it waits; a thread ends when what it waits for is closed."""


def start(work: Callable[[], None]) -> Started:
    """Does work beside the caller's."""
    return Started(work)


class Listener:
    """Listens at a port of this machine, and serves each connection by itself."""

    def __init__(self, sock: socket.socket, serve: Callable[[Duplex], None]) -> None:
        self._socket = sock
        self._serve = serve
        self._lock = threading.Lock()
        self._open: Optional[set[Duplex]] = set()
        self._stop, self._stopped = socket.socketpair()
        self.port: int = sock.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, name="withruntime-listen", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with self._socket, self._stopped:
            while self._stopped not in select.select([self._socket, self._stopped], [], [])[0]:
                try:
                    sock, _ = self._socket.accept()
                except OSError:
                    # Gone before it was taken.
                    continue
                start(lambda sock=sock: self._accept(sock))  # type: ignore[misc]

    def _accept(self, sock: socket.socket) -> None:
        _connect.tune(sock)
        stream = Duplex(sock)
        with self._lock:
            late = self._open is None
            if self._open is not None:
                self._open.add(stream)
        try:
            if not late:
                self._serve(stream)
        finally:
            stream.close()
            with self._lock:
                if self._open is not None:
                    self._open.discard(stream)

    def close(self) -> None:
        """Stops listening and ends what is served."""
        with self._lock:
            still, self._open = self._open, None
        if still is None:
            return
        self._stop.close()
        self._thread.join()
        for stream in still:
            stream.close()


def listen(host: str, port: int, serve: Callable[[Duplex], None]) -> Listener:
    """Listens; port 0 is any that is free. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(100)
        sock.setblocking(False)
        return Listener(sock, serve)
    except BaseException:
        sock.close()
        raise


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
    "Cancelled", "Duplex", "Events", "Listener", "Lock", "OpenError", "Pieces", "Shared", "Started", "Stream", "Waiter",
    "aside", "duplex", "each", "every", "listen", "now", "open_stream", "sleep", "start", "tell", "turn",
]  # fmt: skip
