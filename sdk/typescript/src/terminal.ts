/**
 * A terminal in a sandbox.
 */

import { utf8 } from "./commands/bytes.js";
import type { Place } from "./commands/exec.js";
import type { CommandUser } from "./commands/types.js";
import { ConnectionError, type RuntimeError } from "./errors.js";
import { openChannel, type Channel } from "./socket/channel.js";
import { path } from "./transport/path.js";

/** The most of one message; longer input is sent in several. */
const MAX_INPUT = 64 * 1024;

/** How {@link Sandbox.terminal} opens a terminal. */
export interface TerminalOptions {
  /** Columns. Default 80. */
  cols?: number | undefined;
  /** Lines. Default 24. */
  rows?: number | undefined;
  /** A line for the shell. Default `bash -l`. */
  command?: string | undefined;
  /** An absolute path. Default `/workspace`. */
  cwd?: string | undefined;
  user?: CommandUser | undefined;
  /** Show this process, which has a terminal, instead of starting one: from the oldest output that is kept. */
  processId?: string | undefined;
  /** Given the output as it comes. */
  onData?: ((bytes: Uint8Array) => void) | undefined;
  /** Ends the opening. */
  signal?: AbortSignal | undefined;
}

/** An open terminal. */
export class Terminal implements AsyncDisposable {
  /** The process that it shows: one of {@link Processes}. */
  readonly processId: string;
  /**
   * The exit code, once the process has ended; negative: ended by that signal; null: nobody knows, or this was closed.
   * Fails with a {@link ConnectionError} if the connection is lost first; the process can be shown again by its id.
   */
  readonly exited: Promise<number | null>;
  readonly #channel: Channel;

  /** @internal */
  constructor(channel: Channel, exited: Promise<number | null>) {
    const { processId } = channel.ready;
    this.processId = typeof processId === "string" ? processId : "";
    this.#channel = channel;
    this.exited = exited;
  }

  /** Types. Nothing is sent after the end. */
  write(data: string | Uint8Array): void {
    const bytes = typeof data === "string" ? utf8(data) : data;
    for (let at = 0; at < bytes.length; at += MAX_INPUT) this.#channel.send(bytes.subarray(at, at + MAX_INPUT));
  }

  /** Gives it another size. */
  resize(cols: number, rows: number): void {
    this.#channel.send(JSON.stringify({ type: "resize", cols, rows }));
  }

  /** Lets go of it. A shell that was started for it is hung up, unless another terminal shows it. */
  close(): void {
    this.#channel.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
    await this.exited.catch(() => undefined);
  }
}

/** @internal */
export async function openTerminal(place: Place, options: TerminalOptions): Promise<Terminal> {
  const { cols, rows, command, cwd, user, processId, onData, signal } = options;
  let exit: (code: number | null) => void = () => undefined;
  let lose: (error: RuntimeError) => void = () => undefined;
  const exited = new Promise<number | null>((resolve, reject) => {
    exit = resolve;
    lose = reject;
  });
  // Who does not ask how it ended must not be ended by that.
  exited.catch(() => undefined);
  let closing = false;
  const channel = await openChannel(place.transport, {
    path: path("sandboxes", place.sandboxId, "terminal"),
    query: { cols, rows, command, cwd, user, processId },
    signal,
    refusedCode: "terminal_refused",
    onBytes: (bytes) => onData?.(bytes),
    onMessage: ({ type, exitCode }) => {
      if (type === "exit") exit(typeof exitCode === "number" ? exitCode : null);
    },
    onEnd: (error) => {
      const message = "the connection to the terminal ended before its process did";
      if (closing) exit(null);
      else lose(error ?? new ConnectionError({ code: "connection_error", message }));
    },
  });
  const close = (): void => {
    closing = true;
    channel.close();
  };
  return new Terminal({ ...channel, close }, exited);
}
