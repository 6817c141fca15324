"""Products of the API that no call of this package reaches yet, and what is said where one is asked for."""

from __future__ import annotations

from ._fields import nearest

#: Old singular words for what is served.
_RENAMED = {"sandbox": "sandboxes"}

#: Known to the API, answered with 501 by the server of today.
UNSERVED = (
    "account", "agents", "apps", "audit", "billing", "builds", "ci", "containers", "domains", "events", "feedback",
    "functions", "images", "ips", "jobs", "mcp", "networks", "otel", "plans", "ports", "referrals", "reservations",
    "secrets", "sso", "support", "switching", "usage", "usage_export", "usage_requests", "volumes",
    "webhooks",
)  # fmt: skip


#: The same of one sandbox.
UNSERVED_OF_A_SANDBOX = (
    "browser", "desktop", "interpreter", "mcp", "metrics", "mounts", "previews", "resize", "switch_image", "tailscale",
)  # fmt: skip


def no_such_member(owner: str, name: str) -> AttributeError:
    """The error for a member that is not there, with what to do about it."""
    if name in (UNSERVED_OF_A_SANDBOX if owner.endswith("Sandbox") else UNSERVED):
        tail = ": the server does not serve it yet. runtime.request() reaches any route that it does."
    elif name in _RENAMED:
        tail = f": it is called {_RENAMED[name]!r}."
    else:
        known = () if owner.endswith("Sandbox") else ("sandboxes", "snapshots", "limits", "me", "request", "close")
        meant = nearest(name, known)
        tail = f". Did you mean {meant!r}?" if meant and not name.startswith("_") else ""
    return AttributeError(f"{owner} has no {name!r}{tail}")
