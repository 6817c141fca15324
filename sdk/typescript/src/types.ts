/**
 * The records of the API, as the server sends them: generated from its description, with the words of the contract where
 * the description only says text.
 */

import type { components } from "./generated/api.js";

/** The records by their names in the description. */
export type Schema = components["schemas"];

/** Where a sandbox is in its life. */
export type SandboxState = "starting" | "running" | "pausing" | "paused" | "resuming" | "stopping" | "stopped";

/** What a sandbox's time limit does to it. */
export type OnTimeout = "pause" | "stop" | "delete";

/** A sandbox as every call answers it. Times are ISO 8601 in UTC, money is whole millionths of a dollar. */
export interface SandboxInfo extends Omit<Schema["Sandbox"], "state" | "onTimeout" | "onLeaseEnd" | "user"> {
  state: SandboxState;
  onTimeout: OnTimeout;
  onLeaseEnd: OnTimeout;
  user: "sandbox" | "root";
}

/** What is left to say of a deleted sandbox. */
export type DeletedSandbox = Schema["DeletedSandbox"];

/**
 * What a sandbox may reach. An entry of `allow` and `deny` is a name, `*.` and a domain (all below it), an address, or a
 * range of addresses.
 */
export interface NetworkSettings {
  /** False: nothing, unless `allow` says what; true: everything public, or what `allow` says. */
  internet: boolean;
  /** Filled: only these. */
  allow?: readonly string[] | undefined;
  /** Wins over everything. */
  deny?: readonly string[] | undefined;
  /** `host:port`, reachable beside `allow`. */
  connect?: readonly string[] | undefined;
}

/** The rules of a sandbox as they are kept. */
export type SandboxNetwork = Schema["SandboxNetwork"];

/** What was decided about one connection, or one request on a connection to the proxy. */
export interface NetworkDecision extends Omit<Schema["NetworkDecision"], "verdict"> {
  verdict: "allowed" | "refused";
}

/** Whose shape a new sandbox has. Every field may be left out. */
export interface CreateSandbox {
  /** Unique while the sandbox lives or its disk is kept. */
  name?: string | undefined;
  /** At most 32. */
  labels?: Record<string, string> | undefined;
  /** Variables of every command: at most 32, 32 KiB in all. Never answered again. */
  env?: Record<string, string> | undefined;
  /** Who commands run as unless they say. Default `sandbox`. */
  user?: "sandbox" | "root" | undefined;
  region?: string | undefined;
  /** 1 to 16. Default 2. */
  vcpu?: number | undefined;
  /** MiB of memory, 128 to 65,536. Default 4,096. */
  memoryMiB?: number | undefined;
  /** MiB of disk, 3,072 to 409,600. Default 4,096. */
  diskMiB?: number | undefined;
  cpu?: "shared" | "reserved" | undefined;
  /** Thousandths of a CPU that are always its own. Default 50. */
  cpuFloorMillis?: number | undefined;
  /** Seconds it may run, 60 to 86,400; 0: no limit. Default 0. */
  timeoutSeconds?: number | undefined;
  /** What happens then. Default `pause`. */
  onTimeout?: OnTimeout | undefined;
  /** The older name of `onTimeout`. */
  onLeaseEnd?: OnTimeout | undefined;
  /** Seconds without use until it pauses, 60 to 86,400; 0: never. Default 300. */
  idlePauseSeconds?: number | undefined;
  /** A call to a paused sandbox wakes it. Default true. */
  autoWake?: boolean | undefined;
  /** No time limit and no idle pause unless they are given. */
  persistent?: boolean | undefined;
  /** Millionths of a dollar after which it stops. */
  maxTotalCostMicros?: number | null | undefined;
  /** Left out: every public address. */
  network?: NetworkSettings | undefined;
  /** The id of a snapshot to begin from. One of mode `memory` goes on as it was, at its own size. */
  snapshot?: string | undefined;
}

/** What of a sandbox can be changed. Fields left out stay as they are. */
export interface UpdateSandbox {
  /** Null gives the name up. */
  name?: string | null | undefined;
  /** Replaces all labels. */
  labels?: Record<string, string> | undefined;
  /** Adds and replaces, for commands started from now on; null removes a variable. */
  env?: Record<string, string | null> | undefined;
  user?: "sandbox" | "root" | undefined;
  autoWake?: boolean | undefined;
  /** Seconds, counted from now; 0: never. */
  idlePauseSeconds?: number | undefined;
  persistent?: boolean | undefined;
  /** Null removes the limit. */
  maxTotalCostMicros?: number | null | undefined;
  /** Seconds from now, 60 to 86,400; 0 removes the limit. */
  timeoutSeconds?: number | undefined;
  onTimeout?: OnTimeout | undefined;
  /** Replaces all rules, as {@link Network.set}. */
  network?: NetworkSettings | undefined;
}

/** What a snapshot keeps: `memory` is disk, memory and processes; `disk` the disk alone. */
export type SnapshotMode = "memory" | "disk";

/** How a snapshot is doing. */
export type SnapshotState = "capturing" | "ready" | "failed" | "deleting" | "deleted";

/** A snapshot as every call answers it. */
export interface Snapshot extends Omit<Schema["Snapshot"], "mode" | "state"> {
  mode: SnapshotMode;
  state: SnapshotState;
}

/** How a snapshot is taken. */
export interface TakeSnapshot {
  name?: string | undefined;
  /** Left out: those of the sandbox. */
  labels?: Record<string, string> | undefined;
  /** Days until it is removed, 1 to 365. Left out: as long as it may be kept. */
  retentionDays?: number | undefined;
  /** Default `memory`. */
  mode?: SnapshotMode | undefined;
}

/** What of a snapshot can be changed. */
export interface UpdateSnapshot {
  /** Null gives the name up. */
  name?: string | null | undefined;
  /** Replaces all labels. */
  labels?: Record<string, string> | undefined;
  /** Change nothing unless these are its labels. */
  ifLabels?: Record<string, string> | undefined;
}

/** How a sandbox is copied. */
export interface ForkSandbox {
  /** How many copies, 1 to 16. With it the answer is a list. */
  count?: number | undefined;
  /** Of the first copy; the others are `name-1`, `name-2` and so on. */
  name?: string | undefined;
  /** Left out: those of the sandbox. */
  labels?: Record<string, string> | undefined;
  /** Keep the snapshot that the copies are made from. Default false. */
  keepSnapshot?: boolean | undefined;
}

/** Where a session is in its life. */
export type SessionState = "active" | "expired" | "revoked";

/** A way into one sandbox for a web page. */
export interface Session {
  id: string;
  sandboxId: string;
  name: string | null;
  /** Origins whose pages may use it, as browsers write them. */
  origins: string[];
  /** The id of the key that made it; with that key it ends. */
  createdBy: string;
  createdAt: string;
  expiresAt: string;
  revokedAt: string | null;
  state: SessionState;
}

/** A new session; no later answer has its token. */
export interface NewSession extends Session {
  /** What {@link Sandbox.fromSession} takes. */
  token: string;
  /** Where pages find the server. */
  apiUrl: string;
}

/** How a session is made. */
export interface CreateSession {
  /** Seconds it lasts, 60 to 86,400. Default 3,600. */
  ttlSeconds?: number | undefined;
  /** At most 16: `https://host[:port]` or `http://localhost[:port]`. None: only programs may use it, no page. */
  origins?: readonly string[] | undefined;
  name?: string | undefined;
}

/** How a process is doing. */
export type ProcessState = Schema["ProcessState"];

/** A process as every call answers it. */
export type ProcessInfo = Schema["ProcessInfo"];

/** Signals that may be sent. */
export type SignalName = Schema["SignalName"];

/** A size for {@link Sandbox.resize}; one of them is needed. */
export interface SandboxSize {
  /** Processors, 1 to 16. */
  vcpu?: number | undefined;
  memoryMiB?: number | undefined;
  /** It only grows. */
  diskMiB?: number | undefined;
}

/** Memory ran out. */
export type OutOfMemory = Schema["OutOfMemory"];

/** The files that a traced command opened: absolute paths, sorted, links resolved, folders end in `/`. */
export type TracedFiles = Schema["TracedFiles"];

/** The size of a terminal, in characters. */
export type PtySize = Schema["PtySize"];

/** A file as the sandbox shows it; links are not followed. */
export type FileEntry = Schema["FileEntry"];

/** A change to a file; a `rename` has its `oldPath`, and one that stands for several a `count`. */
export type FileChange = Schema["FileChange"];

/** What may happen to a file. */
export type FileChangeType = Schema["ChangeType"];

/** A watch as the server has it. */
export type WatchInfo = Schema["WatchInfo"];

/** What is at a path. */
export type FileStat = (FileEntry & { exists: true }) | { exists: false; path: string };

/** Who the key is. */
export type Me = Schema["Me"];

/** What the key may use, and what of it is in use. Money is whole millionths of a dollar, as text. */
export type Limits = Schema["Limits"];
