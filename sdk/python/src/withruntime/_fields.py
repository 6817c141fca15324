"""The fields of a create and an update: their names here and on the wire."""

from __future__ import annotations

import difflib
import re
from typing import Any, Iterable, Mapping, Optional

_HUMP = re.compile(r"_([a-z])")

#: Fields of a create by their name on the wire.
CREATE_FIELDS: dict[str, str] = {
    "name": "name",
    "labels": "labels",
    "env": "env",
    "user": "user",
    "funding": "funding",
    "region": "region",
    "vcpu": "vcpu",
    "memory_mib": "memoryMiB",
    "disk_mib": "diskMiB",
    "cpu": "cpu",
    "cpu_floor_millis": "cpuFloorMillis",
    "timeout_seconds": "timeoutSeconds",
    "on_lease_end": "onLeaseEnd",
    "idle_pause_seconds": "idlePauseSeconds",
    "auto_wake": "autoWake",
    "persistent": "persistent",
    "pausable": "pausable",
    "max_total_cost_micros": "maxTotalCostMicros",
    "max_cost_micros": "maxCostMicros",
    "get_or_create": "getOrCreate",
    "network": "network",
    "image": "image",
    "snapshot": "snapshot",
    "snapshot_id": "snapshot",
    "spread_from": "spreadFrom",
    "volumes": "volumes",
    "tailscale": "tailscale",
    "secrets": "secrets",
}

#: Settings that can be changed later.
UPDATE_FIELDS: dict[str, str] = {
    "name": "name",
    "labels": "labels",
    "env": "env",
    "user": "user",
    "auto_wake": "autoWake",
    "idle_pause_seconds": "idlePauseSeconds",
    "persistent": "persistent",
    "max_total_cost_micros": "maxTotalCostMicros",
    "timeout_seconds": "timeoutSeconds",
    "on_timeout": "onTimeout",
    "on_lease_end": "onLeaseEnd",
    "tailscale": "tailscale",
}

#: What can be changed of a snapshot.
SNAPSHOT_FIELDS: dict[str, str] = {"name": "name", "labels": "labels", "if_labels": "ifLabels"}


def body_of(call: str, fields: Mapping[str, Any], known: Mapping[str, str], *, keep_none: bool) -> dict[str, Any]:
    """The JSON body for keyword arguments.

    Raises:
        TypeError: A name nobody knows, with the likely one. Nothing was sent.
    """
    body: dict[str, Any] = {}
    for name, value in fields.items():
        wire = known.get(name)
        if wire is None:
            meant = nearest(name, known)
            tail = f" Did you mean {meant!r}?" if meant else ""
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}.{tail}")
        if value is None and not keep_none:
            continue
        if wire in body:
            raise TypeError(f"{call}() got {wire!r} twice, by two of its names")
        body[wire] = [camel_keys(item) for item in value] if wire == "volumes" and value is not None else value
    return body


def nearest(name: str, known: Iterable[str]) -> Optional[str]:
    """The known name most like this one, if any is."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def camel_keys(item: Any) -> Any:
    """A dict with its snake_case keys in camelCase; anything else as it is."""
    if not isinstance(item, Mapping):
        return item
    return {_HUMP.sub(lambda m: m[1].upper(), str(key)): value for key, value in item.items()}


def given(**values: Any) -> dict[str, Any]:
    """The arguments that are not None."""
    return {name: value for name, value in values.items() if value is not None}
