/**
 * A command's output, followed to its end.
 *
 * When the server ends a slice of it (`continue`) or the connection is cut, the output is taken up again at the byte that
 * came last. What the sandbox no longer holds is told as `truncated`, never skipped in silence; what comes twice is told
 * once. Before a command's `start` there is nothing to take up, and the stream fails.
 */

import { ConnectionError, type RuntimeError } from "../errors.js";
import { connectionFailure, errorFrom, isObject } from "../transport/answer.js";
import { path } from "../transport/path.js";
import { sleep } from "../transport/sleep.js";
import type { Opened, Transport } from "../transport/transport.js";
import type { OutOfMemory, ProcessState, TracedFiles } from "../types.js";
import { fromBase64, text, toBase64, utf8 } from "./bytes.js";
import { badStream, Lines } from "./lines.js";
import type { ExecEvent, ExitEvent, OutputEvent } from "./types.js";

/** Silence after which a followed output is taken for dead; the server sends heartbeats. */
const SILENCE_MS = 180_000;
/** How long reconnecting may fail in a row. */
const FAILING_MS = 300_000;
const EMPTY_CLOSES = 4;
const FIRST_BACKOFF_MS = 50;
const LONGEST_BACKOFF_MS = 5_000;

/** Where to read, and from where on. */
export interface FollowOptions {
  transport: Transport;
  sandboxId: string;
  /** Known for a process; an exec tells it in its `start`. */
  processId?: string;
  /** The answer to the exec, which streams from the `start` on. */
  first?: Opened;
  /** The first byte wanted, in both outputs together. */
  cursor?: number;
  signal?: AbortSignal | undefined;
}

/** Reads events until the exit. Leaving the loop early lets the connection go; the process goes on. */
export async function* follow(options: FollowOptions): AsyncGenerator<ExecEvent, void, undefined> {
  const follower = new Follower(options);
  try {
    yield* follower.events();
  } finally {
    follower.close();
  }
}

/** What a connection's last line was: of all, or of this slice. */
type Last = "exit" | "continue";

class Follower {
  readonly #options: FollowOptions;
  #processId: string | undefined;
  /** Bytes of both outputs together that were told, or told as lost. */
  #cursor: number;
  #source: Opened | undefined;
  /** Connections in a row that said nothing and ended without a fault. */
  #emptyCloses = 0;
  /** Connections in a row that ended at once. */
  #hurried = 0;
  /** Connections in a row that failed, and since when. */
  #failures = 0;
  #failingSince: number | undefined;

  constructor(options: FollowOptions) {
    this.#options = options;
    this.#processId = options.processId;
    this.#cursor = options.cursor ?? 0;
    this.#source = options.first;
  }

  close(): void {
    this.#source?.close();
    this.#source = undefined;
  }

  async *events(): AsyncGenerator<ExecEvent, void, undefined> {
    for (;;) {
      const source = this.#source ?? (await this.#connect());
      if (source === undefined) continue;
      const isFirst = source === this.#options.first;
      const began = performance.now();
      let spoke = false;
      let last: Last | undefined;
      try {
        for await (const line of linesOf(source, isFirst ? undefined : SILENCE_MS, this.#options)) {
          spoke = true;
          if (line["type"] !== "continue" && line["type"] !== "error") this.#isWell();
          last = yield* this.#take(line);
          if (last !== undefined) break;
        }
      } catch (error) {
        this.close();
        this.#tolerate(error as RuntimeError);
        continue;
      }
      this.close();
      if (last === "exit") return;
      this.#closed(spoke, performance.now() - began);
    }
  }

  #isWell(): void {
    this.#emptyCloses = 0;
    this.#failures = 0;
    this.#failingSince = undefined;
  }

  /** A body that ends without saying why is a connection that was dropped. */
  #closed(spoke: boolean, lastedMs: number): void {
    if (this.#processId === undefined) throw dropped("the server ended the stream before the command started");
    // One that is sent on and on, as by a server that is about to stop, must not ask in a tight loop.
    this.#hurried = spoke && lastedMs < FIRST_BACKOFF_MS ? this.#hurried + 1 : 0;
    if (spoke) return;
    this.#emptyCloses += 1;
    if (this.#emptyCloses >= EMPTY_CLOSES) throw dropped("the server keeps ending the output without a word");
  }

  async #connect(): Promise<Opened | undefined> {
    const { transport, sandboxId, signal } = this.#options;
    if (this.#processId === undefined) throw dropped("the stream was cut before the command started");
    const tries = this.#failures + this.#emptyCloses + Math.max(0, this.#hurried - 1);
    if (tries > 0) {
      const backoff = Math.min(FIRST_BACKOFF_MS * 2 ** (tries - 1), LONGEST_BACKOFF_MS);
      if (!(await sleep(backoff, signal))) throw stopped(signal);
    }
    try {
      this.#source = await transport.open({
        method: "GET",
        path: `${path("sandboxes", sandboxId, "processes", this.#processId)}/output`,
        query: { cursor: this.#cursor, follow: true },
        accept: "application/x-ndjson",
        once: true,
        options: { signal },
      });
      return this.#source;
    } catch (error) {
      this.#tolerate(error as RuntimeError);
      return undefined;
    }
  }

  /** A failure that may pass is borne for a while; any other ends the stream. */
  #tolerate(error: RuntimeError): void {
    if (this.#processId === undefined || this.#options.signal?.aborted === true) throw error;
    const passes = error.code === "connection_error" || error.status === 429 || error.status >= 500;
    const isOff = error.status >= 500 && error.status !== 500 && !error.passes;
    this.#failingSince ??= performance.now();
    const tooLong = performance.now() - this.#failingSince > FAILING_MS;
    if (!passes || isOff || error.said === false || tooLong) throw error;
    this.#failures += 1;
  }

  /** Tells what a line says; answers if it was the connection's last, and why. */
  *#take(line: Record<string, unknown>): Generator<ExecEvent, Last | undefined, undefined> {
    switch (line["type"]) {
      case "start": {
        const { processId } = line;
        if (typeof processId !== "string") throw badStream("a start without a process id");
        this.#processId = processId;
        yield { type: "start", processId, ...(line["replayed"] === true ? { replayed: true } : {}) };
        return undefined;
      }
      case "stdout":
      case "stderr":
        yield* this.#output(line["type"], line);
        return undefined;
      case "truncated": {
        const droppedBytes = count(line["droppedBytes"]) ?? 0;
        this.#cursor = Math.max(this.#cursor, count(line["resumeAt"]) ?? this.#cursor + droppedBytes);
        yield { type: "truncated", droppedBytes, resumeAt: this.#cursor };
        return undefined;
      }
      case "exit":
        yield exitOf(line);
        return "exit";
      case "continue":
        return "continue";
      case "error":
        this.#refused(line["error"]);
        return "continue";
      default:
        // A late answer's failure has no type; what else a later server may say is not for this client.
        if (line["type"] === undefined && isObject(line["error"])) throw errorFrom(line["error"]);
        return undefined;
    }
  }

  #refused(error: unknown): void {
    const parts = isObject(error) ? error : {};
    this.close();
    // Without a status nothing says that it may pass.
    this.#tolerate(errorFrom(parts, typeof parts["status"] === "number" ? parts["status"] : 0));
  }

  *#output(type: OutputEvent["type"], line: Record<string, unknown>): Generator<ExecEvent, void, undefined> {
    const given = typeof line["data"] === "string" ? line["data"] : "";
    const base64 = typeof line["base64"] === "string" ? line["base64"] : undefined;
    const bytes = base64 === undefined ? utf8(given) : fromBase64(base64);
    if (bytes === undefined) throw badStream("output that is not base64");
    const offset = count(line["offset"]) ?? this.#cursor;
    if (offset > this.#cursor) {
      yield { type: "truncated", droppedBytes: offset - this.#cursor, resumeAt: offset };
      this.#cursor = offset;
    }
    const known = Math.min(this.#cursor - offset, bytes.length);
    if (known === bytes.length) return;
    // Moved before it is told: a caller that throws in its loop has been told all the same.
    this.#cursor = offset + bytes.length;
    if (known === 0) {
      yield { type, data: given, offset, ...(base64 === undefined ? {} : { base64 }) };
      return;
    }
    const rest = bytes.subarray(known);
    const event: OutputEvent = { type, data: text(rest), offset: offset + known };
    yield base64 === undefined ? event : { ...event, base64: toBase64(rest) };
  }
}

/** The lines of a connection until its body ends; what cuts it is thrown as a connection error. */
export async function* linesOf(
  source: Opened,
  silenceMs: number | undefined,
  { transport, signal }: Pick<FollowOptions, "transport" | "signal">,
): AsyncGenerator<Record<string, unknown>, void, undefined> {
  const reader = source.body.getReader();
  const split = new Lines();
  const heard = { silence: false };
  for (;;) {
    const alarm =
      silenceMs === undefined
        ? undefined
        : setTimeout(() => {
            heard.silence = true;
            source.close();
          }, silenceMs);
    let piece: ReadableStreamReadResult<Uint8Array>;
    try {
      piece = await reader.read();
    } catch (cause) {
      if (signal?.aborted === true) throw stopped(signal);
      throw heard.silence ? dropped("the output fell silent") : connectionFailure(transport.origin, cause).error;
    } finally {
      clearTimeout(alarm);
    }
    if (piece.done) return;
    yield* split.push(piece.value);
  }
}

function exitOf(line: Record<string, unknown>): ExitEvent {
  const { exitCode, state, timedOut, durationMs, outOfMemory, files } = line;
  return {
    type: "exit",
    exitCode: typeof exitCode === "number" ? exitCode : null,
    state: typeof state === "string" ? (state as ProcessState) : "unknown",
    timedOut: timedOut === true,
    ...(typeof durationMs === "number" ? { durationMs } : {}),
    ...(isObject(outOfMemory) ? { outOfMemory: outOfMemory as unknown as OutOfMemory } : {}),
    ...(isObject(files) ? { files: files as unknown as TracedFiles } : {}),
  };
}

function count(value: unknown): number | undefined {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

/** A connection that ended before it should. */
export function dropped(message: string): ConnectionError {
  return new ConnectionError({ code: "connection_error", message });
}

/** Reading was ended by its caller. */
export function stopped(signal: AbortSignal | undefined): ConnectionError {
  const message = "reading the output was cancelled by its signal";
  return new ConnectionError({ code: "timeout", message, cause: signal?.reason });
}
