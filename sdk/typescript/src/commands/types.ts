/** Commands: what is asked, what comes back. */

import type { RequestOptions } from "../transport/transport.js";
import type { OutOfMemory, ProcessState, PtySize, TracedFiles } from "../types.js";

/** Who a command runs as: `sandbox` is the user `runtime`, uid 1000. */
export type CommandUser = "sandbox" | "root";

/** A line for `bash -c`, or a program and its arguments with no shell between. */
export type Command = string | readonly string[];

/** Where and as whom something runs. */
export interface CommandSettings {
  /** An absolute path. Default `/workspace`. */
  cwd?: string | undefined;
  /** Variables over those of the sandbox: at most 64, 128 KiB in all. */
  env?: Record<string, string> | undefined;
  /** Default: the sandbox's own `user`. */
  user?: CommandUser | undefined;
}

/** How {@link Sandbox.execStream} runs a command. */
export interface ExecStreamOptions extends CommandSettings, Pick<RequestOptions, "idempotencyKey" | "signal"> {
  /** Standard input, at most 1 MiB; then it is closed. */
  stdin?: string | Uint8Array | undefined;
  /**
   * Milliseconds until the command and all it started are killed, 1 to 86,400,000. More than the sandbox has left is
   * refused with `time_limit_too_short`. Default: 60,000, for streams a day, and never more than the sandbox has left.
   */
  timeoutMs?: number | undefined;
  /** Tell the files it opened, in `files` of its end: opening gets slower, and nothing in it can be debugged. */
  traceFiles?: boolean | undefined;
}

/** How {@link Sandbox.exec} runs a command. */
export interface ExecOptions extends ExecStreamOptions {
  /** Called with each piece of standard output as it comes. */
  onStdout?: ((text: string) => void) | undefined;
  /** Called with each piece of standard error as it comes. */
  onStderr?: ((text: string) => void) | undefined;
  /** Throw {@link CommandError} unless the command exits with 0 in time. */
  check?: boolean | undefined;
}

/** How a command ended. */
export interface CommandResult {
  /** The exit code; ended by a signal: its number, negative; null if nobody knows. */
  exitCode: number | null;
  /** Its first 64 KiB, or 64 MiB with a callback or a `timeoutMs` above 60,000; bytes that are no UTF-8 become U+FFFD. */
  stdout: string;
  /** As `stdout`. */
  stderr: string;
  /** The time was up: everything it had started was killed. */
  timedOut: boolean;
  /** There was more standard output than `stdout` holds. */
  stdoutTruncated: boolean;
  /** There was more standard error than `stderr` holds. */
  stderrTruncated: boolean;
  /** Milliseconds it ran. */
  durationMs?: number;
  processId?: string;
  /** The answer to an earlier call with the same idempotency key; nothing ran now. */
  replayed?: boolean;
  /** Memory ran out and it, or something it started, was ended for that. */
  outOfMemory?: OutOfMemory;
  /** The files it opened, if it ran with `traceFiles`. */
  files?: TracedFiles;
}

/** What a running command tells, in order. */
export type ExecEvent =
  /** First, of a command that was started by this call. */
  | { type: "start"; processId: string; replayed?: boolean }
  | OutputEvent
  /** Output that nobody can give back any more. */
  | { type: "truncated"; droppedBytes: number; resumeAt: number }
  /** Last: it has ended. */
  | ExitEvent;

/** A piece of output. */
export interface OutputEvent {
  type: "stdout" | "stderr";
  /** Text; U+FFFD where the bytes are no UTF-8. */
  data: string;
  /** The place of its first byte in both outputs together. */
  offset: number;
  /** The bytes themselves, where `data` cannot stand for them. */
  base64?: string;
}

/** How a command or process ended. */
export interface ExitEvent {
  type: "exit";
  exitCode: number | null;
  state: ProcessState;
  timedOut: boolean;
  durationMs?: number;
  outOfMemory?: OutOfMemory;
  /** The files that a command of `exec` opened, if it ran with `traceFiles`; a process is asked for them. */
  files?: TracedFiles;
}

/** How {@link Sandbox.spawn} starts a process. */
export interface SpawnOptions extends CommandSettings {
  /** `"pipe"` keeps standard input open for {@link Process.write}; other text, or bytes, is given and then closed: 1 MiB. */
  stdin?: string | Uint8Array | undefined;
  /** Give it a terminal of this size; all output is then `stdout`, and {@link Process.write} types into it. */
  pty?: PtySize | undefined;
  /** `base64`: every piece of output carries its bytes. Default `utf8`. */
  outputEncoding?: "utf8" | "base64" | undefined;
  /** Milliseconds until it is killed, 1 to 86,400,000. Default: none of its own. */
  timeoutMs?: number | undefined;
  /** Record the files it opens, for {@link Process.files}. */
  traceFiles?: boolean | undefined;
  /** Of the request that starts it. */
  request?: RequestOptions | undefined;
}
