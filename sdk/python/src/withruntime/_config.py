"""Where requests go and with which key: read once from arguments and environment, checked before anything is sent."""

from __future__ import annotations

import hashlib
import json
import os
import re
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional
from urllib.parse import unquote, urlsplit

from ._errors import RuntimeError

#: What `serve` listens on unless told otherwise.
DEFAULT_ORIGIN = "http://127.0.0.1:8787"
#: The public service; inside one of its sandboxes it is reached as INSIDE_ORIGIN.
PUBLIC_ORIGIN = "https://api.withruntime.com"
INSIDE_ORIGIN = "http://runtime.internal"
INSIDE_MARK = "/run/runtime/environment.json"
_AUTH_ORIGIN = "https://withruntime.com"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAVED_KEY = re.compile(r"rtcloud_[0-9a-f-]{36}_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class Origin:
    """Scheme, host and port of a server."""

    tls: bool
    host: str
    port: int

    @property
    def text(self) -> str:
        """As it is written in an address and in the `Host` header's scheme-less form."""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy that tunnels; `authorization` is a ready header value."""

    host: str
    port: int
    authorization: Optional[str] = None

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


def parse_origin(text: str) -> Origin:
    """An address as an origin.

    Raises:
        ValueError: It has a path, a query or credentials, or would send a key over a network unencrypted.
    """
    parts = urlsplit(text.strip())
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"the port of {text!r} is no number") from error
    host = (parts.hostname or "").lower()
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"{text!r} is no address like https://host or http://127.0.0.1:8787")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username or parts.password:
        raise ValueError("the base URL must be an origin alone: no path, query or credentials")
    tls = parts.scheme == "https"
    if port is None:
        port = 443 if tls else 80
    if not tls and host not in _LOOPBACK and not (host == "runtime.internal" and port == 80):
        raise ValueError(f"{host} is not on this machine: use https, or the key would travel unencrypted")
    return Origin(tls, host, port)


def choose_origin(
    given: Optional[str], env: Mapping[str, str] = os.environ, inside_mark: Optional[str] = None
) -> Origin:
    """The argument, else `RUNTIME_API_URL`, else the sandbox's own way out, else this machine's server."""
    mark = INSIDE_MARK if inside_mark is None else inside_mark
    text = given or env.get("RUNTIME_API_URL")
    if not text:
        return parse_origin(INSIDE_ORIGIN if os.path.exists(mark) else DEFAULT_ORIGIN)
    origin = parse_origin(text)
    if origin.text == PUBLIC_ORIGIN and os.path.exists(mark):
        return parse_origin(INSIDE_ORIGIN)
    return origin


def find_key(given: Optional[str], origin: Origin, env: Mapping[str, str] = os.environ) -> str:
    """The key to send.

    Raises:
        RuntimeError: `missing_api_key` if there is none, `invalid_request` if it cannot be a key.
    """
    key = given or env.get("RUNTIME_API_KEY") or _saved_key(origin, env)
    if not key:
        raise RuntimeError(
            "There is no API key.",
            code="missing_api_key",
            hint="Set RUNTIME_API_KEY, or pass api_key=. The owner's key of a server of yours is in owner.key in "
            "its data directory.",
        )
    if any(c.isspace() or not c.isprintable() for c in key) or not key.isascii():
        raise RuntimeError("The API key has a space or a line break in it.", code="invalid_request")
    return key


def _saved_key(origin: Origin, env: Mapping[str, str]) -> Optional[str]:
    """The key of a saved login for this origin. A file others could have written is as good as none."""
    auth = env.get("RUNTIME_AUTH_URL") or _AUTH_ORIGIN
    home = env.get("XDG_CONFIG_HOME") or (os.path.join(env["HOME"], ".config") if env.get("HOME") else None)
    if not home:
        return None
    name = hashlib.sha256(f"{auth}\n{origin.text}".encode()).hexdigest() + ".json"
    path = Path(home, "runtime-cloud", name)
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            about = os.fstat(file.fileno())
            mine = not hasattr(os, "getuid") or (about.st_uid == os.getuid() and not about.st_mode & 0o077)
            if not stat.S_ISREG(about.st_mode) or not mine or about.st_size > 4096:
                return None
            saved = json.loads(file.read(4097))
    except (OSError, ValueError):
        return None
    if not isinstance(saved, dict) or saved.get("version") != 1 or saved.get("apiOrigin") != origin.text:
        return None
    key = saved.get("key")
    return key if isinstance(key, str) and _SAVED_KEY.fullmatch(key) else None


def choose_proxy(origin: Origin, env: Mapping[str, str] = os.environ) -> Optional[Proxy]:
    """The proxy on the way to an origin, from `HTTPS_PROXY` or `HTTP_PROXY` and `NO_PROXY`; lower case wins.

    Raises:
        RuntimeError: `invalid_proxy`: the variable names no http:// proxy. The message holds no password.
    """
    name = "https_proxy" if origin.tls else "http_proxy"
    address = env.get(name) or env.get(name.upper())
    if not address or _exempt(origin, env.get("no_proxy") or env.get("NO_PROXY") or ""):
        return None
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise RuntimeError(
            f"{name.upper()} names no proxy that can be used (scheme {parts.scheme!r}).",
            code="invalid_proxy",
            hint="Use http://host:port, or list the server in NO_PROXY.",
        )
    authorization = None
    if parts.username is not None:
        import base64

        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, port, authorization)


def _exempt(origin: Origin, rules: str) -> bool:
    for rule in rules.split(","):
        rule = rule.strip().lower()
        if not rule:
            continue
        if rule == "*":
            return True
        if rule.count(":") == 1:
            rule, _, port = rule.partition(":")
            if port != str(origin.port):
                continue
        rule = rule.strip("[]").lstrip(".")
        if origin.host == rule or origin.host.endswith("." + rule):
            return True
    return False


def tls_context() -> ssl.SSLContext:
    """Trust as the system has it; `SSL_CERT_FILE` is heeded."""
    return ssl.create_default_context()
