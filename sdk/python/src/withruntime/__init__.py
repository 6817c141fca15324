"""Linux computers for programs and agents: the Python client of Runtime.

    from withruntime import Sandbox

    with Sandbox.create() as sandbox:
        print(sandbox.exec("uname -a").stdout)

`Runtime` is the client for programs that keep one; `AsyncRuntime` the same for asyncio. What goes wrong is a
`RuntimeError` with a code to decide by.
"""

from typing import TYPE_CHECKING, Any

from ._errors import (
    AccountBlockedError,
    AuthenticationError,
    CommandError,
    ConflictError,
    ConnectionError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    RuntimeAPIError,
    RuntimeConnectionError,
    RuntimeError,
    SecretPartlyStoredError,
    ServiceUnavailableError,
)
from ._results import CommandResult, TracedFiles
from ._sync.client import Limits, Runtime
from ._sync.files import Files
from ._sync.forward import PortForward
from ._sync.network import Network
from ._sync.page import Page
from ._sync.previews import Previews
from ._sync.processes import Process
from ._sync.sandbox import Sandbox
from ._sync.sandboxes import Sandboxes
from ._sync.sessions import Sessions
from ._sync.snapshots import Snapshots
from ._sync.terminal import Terminal
from ._sync.watches import Watch, Watches
from ._version import __version__
from .webhooks import WebhookVerificationError, verify_webhook

if TYPE_CHECKING:
    from ._async.client import AsyncLimits, AsyncRuntime
    from ._async.files import AsyncFiles
    from ._async.forward import AsyncPortForward
    from ._async.network import AsyncNetwork
    from ._async.page import AsyncPage
    from ._async.previews import AsyncPreviews
    from ._async.processes import AsyncProcess
    from ._async.sandbox import AsyncSandbox
    from ._async.sandboxes import AsyncSandboxes
    from ._async.sessions import AsyncSessions
    from ._async.snapshots import AsyncSnapshots
    from ._async.terminal import AsyncTerminal
    from ._async.watches import AsyncWatch, AsyncWatches

VERSION = __version__

#: Where the asynchronous names are. They come with asyncio, which a program without it should not have to load.
_ASYNCHRONOUS = {
    "AsyncFiles": "files",
    "AsyncLimits": "client",
    "AsyncNetwork": "network",
    "AsyncPage": "page",
    "AsyncPortForward": "forward",
    "AsyncPreviews": "previews",
    "AsyncProcess": "processes",
    "AsyncRuntime": "client",
    "AsyncSandbox": "sandbox",
    "AsyncSandboxes": "sandboxes",
    "AsyncSessions": "sessions",
    "AsyncSnapshots": "snapshots",
    "AsyncTerminal": "terminal",
    "AsyncWatch": "watches",
    "AsyncWatches": "watches",
}


def __getattr__(name: str) -> Any:
    module = _ASYNCHRONOUS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}._async.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "VERSION",
    "AccountBlockedError",
    "AsyncFiles",
    "AsyncLimits",
    "AsyncNetwork",
    "AsyncPage",
    "AsyncPortForward",
    "AsyncPreviews",
    "AsyncProcess",
    "AsyncRuntime",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncSessions",
    "AsyncSnapshots",
    "AsyncTerminal",
    "AsyncWatch",
    "AsyncWatches",
    "AuthenticationError",
    "CommandError",
    "CommandResult",
    "ConflictError",
    "ConnectionError",
    "Files",
    "InvalidRequestError",
    "Limits",
    "Network",
    "NotFoundError",
    "Page",
    "PermissionDeniedError",
    "PortForward",
    "Previews",
    "Process",
    "RateLimitError",
    "Runtime",
    "RuntimeAPIError",
    "RuntimeConnectionError",
    "RuntimeError",
    "Sandbox",
    "Sandboxes",
    "SecretPartlyStoredError",
    "ServiceUnavailableError",
    "Sessions",
    "Snapshots",
    "Terminal",
    "TracedFiles",
    "Watch",
    "Watches",
    "WebhookVerificationError",
    "__version__",
    "verify_webhook",
]
