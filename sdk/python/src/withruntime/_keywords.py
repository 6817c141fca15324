"""The keyword arguments of a create and an update, for type checkers. Never imported at run time."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from typing_extensions import Any, Literal, TypedDict

AtEnd = Literal["pause", "stop", "delete"]


class Network(TypedDict, total=False):
    """What a sandbox may reach."""

    internet: bool
    allow: Sequence[str]
    deny: Sequence[str]
    connect: Sequence[str]


class NamedFields(TypedDict, total=False):
    """Fields of a get-or-create; None is as if left out."""

    labels: Optional[Mapping[str, str]]
    env: Optional[Mapping[str, str]]
    user: Optional[Literal["sandbox", "root"]]
    funding: Optional[Literal["trial", "paid"]]
    region: Optional[str]
    vcpu: Optional[int]
    memory_mib: Optional[int]
    disk_mib: Optional[int]
    cpu: Optional[Literal["shared", "reserved"]]
    cpu_floor_millis: Optional[int]
    timeout_seconds: Optional[int]
    on_lease_end: Optional[AtEnd]
    idle_pause_seconds: Optional[int]
    auto_wake: Optional[bool]
    persistent: Optional[bool]
    pausable: Optional[bool]
    max_total_cost_micros: Optional[int]
    max_cost_micros: Optional[int]
    network: Optional[Network]
    image: Optional[str]
    snapshot: Optional[str]
    snapshot_id: Optional[str]
    spread_from: Optional[Sequence[str]]
    volumes: Optional[Sequence[Mapping[str, Any]]]
    tailscale: Optional[Mapping[str, Any]]
    secrets: Optional[Sequence[str]]


class CreateFields(NamedFields, total=False):
    """Fields of a create."""

    name: Optional[str]
    get_or_create: Optional[bool]


class UpdateFields(TypedDict, total=False):
    """Settings of an update; None is sent, and clears what can be cleared."""

    name: Optional[str]
    labels: Mapping[str, str]
    env: Mapping[str, Optional[str]]
    user: Literal["sandbox", "root"]
    auto_wake: bool
    idle_pause_seconds: int
    persistent: bool
    max_total_cost_micros: Optional[int]
    timeout_seconds: int
    on_timeout: AtEnd
    on_lease_end: AtEnd
    tailscale: Optional[Mapping[str, Any]]


class SnapshotFields(TypedDict, total=False):
    """Fields of a snapshot's update; a name of None gives it up."""

    name: Optional[str]
    labels: Mapping[str, str]
    if_labels: Mapping[str, str]
