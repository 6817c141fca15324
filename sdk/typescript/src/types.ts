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

/** What a sandbox may reach. Left out: nothing. */
export interface NetworkSettings {
  internet?: boolean;
  allow?: readonly string[];
  deny?: readonly string[];
  connect?: readonly string[];
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
  network?: NetworkSettings | undefined;
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
}

/** How a process is doing. */
export type ProcessState = Schema["ProcessState"];

/** A process as every call answers it. */
export type ProcessInfo = Schema["ProcessInfo"];

/** Signals that may be sent. */
export type SignalName = Schema["SignalName"];

/** Memory ran out. */
export type OutOfMemory = Schema["OutOfMemory"];

/** A file as the sandbox shows it; links are not followed. */
export type FileEntry = Schema["FileEntry"];

/** What is at a path. */
export type FileStat = (FileEntry & { exists: true }) | { exists: false; path: string };

/** Who the key is. */
export type Me = Schema["Me"];

/** What the key may use, and what of it is in use. Money is whole millionths of a dollar, as text. */
export type Limits = Schema["Limits"];
