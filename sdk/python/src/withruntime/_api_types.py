"""The API's objects, as it sends them. Written by scripts/api_types.py: do not edit."""

from __future__ import annotations

from typing import Any, Optional, TypedDict


class OutOfMemory(TypedDict):
    """Memory ran out and the program, or one it started, was ended for it."""

    #: Always `out_of_memory`.
    code: str
    hint: str
    memoryMiB: int
    message: str
    processesKilled: int


class TracedFilesInfo(TypedDict):
    """Files that a traced command, and all that it started, opened: absolute paths with links resolved, sorted; directories end in `/`. What is below `/proc`, `/sys` and `/dev` is left out."""

    #: Opened for reading, or run.
    read: list[str]
    #: There were more: the lists are not complete.
    truncated: bool
    #: Opened for writing, or made: a rename's new name, a link, a directory.
    written: list[str]


class _SandboxInfo(TypedDict):
    autoWake: bool
    chargedMicros: int
    #: `shared` or `reserved`.
    cpu: str
    cpuFloorMillis: int
    createdAt: str
    diskKept: bool
    diskMiB: int
    funding: str
    heldMicros: int
    #: A lower-case UUID with dashes.
    id: str
    #: 0 = never.
    idlePauseSeconds: int
    #: `sandbox`.
    kind: str
    labels: dict[str, str]
    memoryMiB: int
    #: The same as `onTimeout`.
    onLeaseEnd: str
    onTimeout: str
    pausable: bool
    persistent: bool
    region: str
    #: `starting`, `running`, `pausing`, `paused`, `resuming`, `stopping`, `stopped`.
    state: str
    #: Coarse: `pending`, `active`, `paused`, `stopping`, `stopped`.
    status: str
    #: 0 = no limit.
    timeoutSeconds: int
    #: Who commands run as unless they say: `sandbox` or `root`.
    user: str
    vcpu: int


class SandboxInfo(_SandboxInfo, total=False):
    """A sandbox as every call answers it."""

    endedAt: Optional[str]
    endsAt: Optional[str]
    #: Which engine runs it.
    engine: Optional[str]
    #: Names only; not in lists.
    envNames: Optional[list[str]]
    expiresAt: Optional[str]
    image: Optional[str]
    lastActiveAt: Optional[str]
    maxTotalCostMicros: Optional[int]
    memoryRestored: Optional[bool]
    name: Optional[str]
    pausedAt: Optional[str]
    pausedExpiresAt: Optional[str]
    readyAt: Optional[str]
    #: On the answer to a repeated request.
    replayed: Optional[bool]
    #: On the answer of a create that found the named sandbox.
    reused: Optional[bool]
    #: Null: every secret.
    secrets: Optional[list[str]]
    snapshot: Optional[str]
    stopReason: Optional[str]


class _DeletedSandbox(TypedDict):
    deletedAt: str
    endedAt: str
    id: str
    kind: str
    labels: dict[str, str]
    #: `stopping` if a machine was there, else `stopped`.
    state: str
    #: `deleted`.
    status: str


class DeletedSandbox(_DeletedSandbox, total=False):
    """The answer to a delete, the same each time."""

    name: Optional[str]


class _ProcessInfo(TypedDict):
    #: The command line for people, cut at 256 characters.
    command: str
    cwd: str
    #: The oldest byte that can still be read.
    firstOffset: int
    id: str
    #: Always `process`.
    kind: str
    #: Bytes of output so far, both streams: the cursor of the end.
    outputBytes: int
    outputEncoding: str
    #: Inside the sandbox.
    pid: int
    pty: bool
    startedAt: str
    state: str
    #: Input bytes accepted so far.
    stdinOffset: int
    stdinOpen: bool
    user: str


class ProcessInfo(_ProcessInfo, total=False):
    """`ProcessInfo` of the API."""

    endedAt: Optional[str]
    #: Null while it runs; negative: ended by that signal.
    exitCode: Optional[int]
    outOfMemory: Optional[OutOfMemory]
    replayed: bool
    timeoutMs: Optional[int]


class _FileEntry(TypedDict):
    gid: int
    group: str
    #: Four octal digits, like `0644`.
    mode: str
    modifiedAt: str
    mtimeMs: int
    name: str
    owner: str
    path: str
    size: int
    type: str
    uid: int


class FileEntry(_FileEntry, total=False):
    """A file as the sandbox shows it; links are not followed."""

    symlinkTarget: Optional[str]


class _FileStat(TypedDict):
    path: str
    exists: bool


class FileStat(_FileStat, total=False):
    """What is at a path: an entry with `exists: true`, or `exists: false` and the path."""

    gid: int
    group: str
    #: Four octal digits, like `0644`.
    mode: str
    modifiedAt: str
    mtimeMs: int
    name: str
    owner: str
    size: int
    symlinkTarget: Optional[str]
    type: str
    uid: int


class FileWritten(TypedDict):
    """`FileWritten` of the API."""

    path: str
    size: int


class WatchInfo(TypedDict):
    """`WatchInfo` of the API."""

    #: Where to read from: of a start its beginning, in a list after all that was seen.
    cursor: int
    id: str
    path: str
    #: The same as `id`: no process of the sandbox is behind it.
    processId: str
    #: Milliseconds since 1970.
    startedAt: int
    state: str


class _SnapshotShape(TypedDict):
    diskMiB: int
    memoryMiB: int
    vcpu: int


class SnapshotShape(_SnapshotShape, total=False):
    """The size of its source."""

    memoryGuarantee: Optional[int]


class _SnapshotDurability(TypedDict):
    #: `none`: it lies on this host alone.
    state: str


class SnapshotDurability(_SnapshotDurability, total=False):
    """Its copy off this host."""

    durableAt: Optional[str]
    storedBytes: Optional[int]


class _SnapshotInfo(TypedDict):
    #: A copy lies on another host.
    backedUp: bool
    createdAt: str
    durability: SnapshotDurability
    expiresAt: str
    #: A lower-case UUID with dashes.
    id: str
    #: `snapshot`.
    kind: str
    labels: dict[str, str]
    #: `memory`: disk, memory and processes; `disk`: the disk alone.
    mode: str
    shape: SnapshotShape
    sourceSandboxId: str
    #: `capturing`, `ready`, `failed`, `deleting`, `deleted`.
    state: str
    #: The same as `state`.
    status: str


class SnapshotInfo(_SnapshotInfo, total=False):
    """What a sandbox was, kept apart from it."""

    engine: Optional[str]
    error: Optional[str]
    meteredBytes: Optional[int]
    name: Optional[str]
    readyAt: Optional[str]
    replayed: Optional[bool]
    #: What was asked for; null = as long as it may be kept.
    retentionDays: Optional[int]
    #: What it took up by itself when it was taken.
    storedBytes: Optional[int]


class _NetworkInfo(TypedDict):
    allow: list[str]
    connect: list[str]
    connectAllowed: bool
    connectReason: str
    deny: list[str]
    #: The host holds it to this version.
    enforced: bool
    enforcedVersion: int
    forbiddenPorts: list[int]
    internet: bool
    #: Every port is, but the forbidden ones.
    openPorts: bool
    #: Reachable without a `connect` entry, whoever asks.
    ports: list[int]
    sandboxId: str
    #: Grows with each change.
    version: int


class NetworkInfo(_NetworkInfo, total=False):
    """The rules as they are kept."""

    updatedAt: Optional[str]


class _DecidedProcess(TypedDict):
    pid: int
    program: str


class DecidedProcess(_DecidedProcess, total=False):
    """`DecidedProcess` of the API."""

    #: The command or process of this API that it belongs to.
    processId: Optional[str]


class _NetworkDecision(TypedDict):
    at: str
    host: str
    #: `CONNECT`, or a method of HTTP.
    method: str
    number: int
    port: int
    #: What allowed it (`open`, `allow`, `connect`), or the value of `X-Runtime-Egress`.
    reason: str
    #: To the sandbox.
    receivedBytes: int
    rulesVersion: int
    #: By the sandbox.
    sentBytes: int
    #: `allowed` or `refused`.
    verdict: str


class NetworkDecision(_NetworkDecision, total=False):
    """One connection, or one request on a connection to the proxy."""

    address: Optional[str]
    endedAt: Optional[str]
    process: Optional[DecidedProcess]
    #: The entry that decided.
    rule: Optional[str]


class _SessionInfo(TypedDict):
    createdAt: str
    #: The id of the key that made it. When that key is revoked, the session ends.
    createdBy: str
    expiresAt: str
    #: A lower-case UUID with dashes.
    id: str
    #: Origins whose pages may use it, as browsers write them.
    origins: list[str]
    sandboxId: str
    #: `active`, `expired` or `revoked`.
    state: str


class SessionInfo(_SessionInfo, total=False):
    """A way into one sandbox for a web page, without a key. Its token reaches `:exec`, processes, files, uploads, the interpreter, the record and the list of previews of that sandbox, and nothing else."""

    name: Optional[str]
    revokedAt: Optional[str]


class _NewSessionInfo(TypedDict):
    createdAt: str
    #: The id of the key that made it. When that key is revoked, the session ends.
    createdBy: str
    expiresAt: str
    #: A lower-case UUID with dashes.
    id: str
    #: Origins whose pages may use it, as browsers write them.
    origins: list[str]
    sandboxId: str
    #: `active`, `expired` or `revoked`.
    state: str
    #: Where the page finds this API.
    apiUrl: str


class NewSessionInfo(_NewSessionInfo, total=False):
    """The only answer that holds the token."""

    name: Optional[str]
    revokedAt: Optional[str]
    replayed: Optional[bool]
    #: Sent as `Authorization: Bearer`. Null where the answer repeats an earlier one: only a hash of it is kept.
    token: Optional[str]


class _PreviewInfo(TypedDict):
    createdAt: str
    disabled: bool
    #: A lower-case UUID with dashes.
    id: str
    port: int
    sandboxId: str
    url: str
    #: `private`: with a token; `public`: for everybody.
    visibility: str


class PreviewInfo(_PreviewInfo, total=False):
    """A port of a sandbox that browsers and programs reach under an address of its own."""

    #: Sites that may show it in a frame; null = any.
    embedOrigins: Optional[list[str]]
    hint: Optional[str]
    replayed: Optional[bool]
    #: Sent as `X-Runtime-Preview-Token`. Null if it is public, and for a key that may only read.
    token: Optional[str]
    tokenExpiresAt: Optional[str]
    #: To be opened in a browser, which keeps the token as a cookie.
    urlWithToken: Optional[str]


class DeletedPreviewInfo(TypedDict):
    """`DeletedPreview` of the API."""

    deleted: bool
    id: str
    port: int
    sandboxId: str


class _AccountLimit(TypedDict):
    label: str
    #: `<kind>.<dimension>`.
    limit: str
    #: `count` or `mib`.
    unit: str
    used: int


class AccountLimit(_AccountLimit, total=False):
    """One row: how much of what is in use."""

    #: Null: as much as the host has.
    max: Optional[int]


class _Credit(TypedDict):
    addedBy: str
    availableMicros: str
    dailyPaceMicros: str
    lowBelowDays: int
    #: `ok`, `low` or `empty`.
    state: str


class Credit(_Credit, total=False):
    """Nothing is charged on a server of one's own."""

    runwayDays: Optional[int]


class _DailyLimit(TypedDict):
    usedMicros: str
    window: str


class DailyLimit(_DailyLimit, total=False):
    """What a key may spend in a day; a server of one's own has no such limit."""

    limitMicros: Optional[str]
    remainingMicros: Optional[str]


class _LimitsInfo(TypedDict):
    #: `full` or `read`.
    access: str
    account: list[AccountLimit]
    credit: Credit
    daily: DailyLimit


class LimitsInfo(_LimitsInfo, total=False):
    """Money is whole microdollars, as text."""

    #: No trial on a server of one's own.
    trial: Any


class _MeInfo(TypedDict):
    apiVersion: str
    orgId: str
    principalId: str


class MeInfo(_MeInfo, total=False):
    """`Me` of the API."""

    credentialId: Optional[str]
    orgName: Optional[str]
    #: `owner` for an account-wide key, else `developer`.
    role: Optional[str]
