/**
 * A process that outlives the call that started it.
 */

import { invalidRequest, RuntimeError } from "../errors.js";
import { path } from "../transport/path.js";
import { sleep } from "../transport/sleep.js";
import type { RequestOptions } from "../transport/transport.js";
import type { OutOfMemory, ProcessInfo, ProcessState, Schema, SignalName, TracedFiles } from "../types.js";
import { fromBase64, toBase64, utf8 } from "./bytes.js";
import { Collected, commandBody, signalProcess, type Place } from "./exec.js";
import { follow } from "./follow.js";
import type { Command, CommandResult, ExecEvent, SpawnOptions } from "./types.js";

/** The most of one write. */
const MAX_WRITE = 1024 * 1024;
/** What is tried when the process takes nothing, and how long after. */
const SMALL_WRITE = 64 * 1024;
const FULL_WAIT_MS = 100;
/** The sandbox keeps this much output of each process. */
const KEPT_OUTPUT = 1024 * 1024;

/** How output is read. */
export interface OutputOptions {
  /** The first byte wanted, of both outputs together. Default 0: from the start, or from the oldest that is kept. */
  cursor?: number | undefined;
  /** Ends the reading; the process goes on. */
  signal?: AbortSignal | undefined;
}

/** A piece of output as bytes. */
export interface OutputBytes {
  stream: "stdout" | "stderr";
  data: Uint8Array;
  /** The place of its first byte in both outputs together. */
  offset: number;
}

/** How {@link Process.write} ends. */
export interface WriteOptions extends Omit<RequestOptions, "idempotencyKey"> {
  /** Close standard input behind the data. */
  eof?: boolean | undefined;
}

/**
 * A process in a sandbox, started by {@link Sandbox.spawn} or found by {@link Processes}. It lives until it ends, is
 * signalled, or the sandbox stops.
 */
export class Process {
  readonly id: string;
  readonly sandboxId: string;
  readonly #place: Place;
  #info: ProcessInfo;
  /** Input bytes that the sandbox has; unknown after a write that failed. */
  #inputOffset: number | undefined;
  /** Writes take their turn: bytes must not overtake each other. */
  #lastWrite: Promise<void> = Promise.resolve();

  /** @internal */
  constructor(place: Place, info: ProcessInfo) {
    this.id = info.id;
    this.sandboxId = place.sandboxId;
    this.#place = place;
    this.#info = info;
    this.#inputOffset = info.stdinOffset;
  }

  /** The record of the last answer; {@link Process.refresh} asks for a new one. */
  get info(): ProcessInfo {
    return this.#info;
  }

  /** Its command line, cut at 256 characters. */
  get command(): string {
    return this.#info.command;
  }

  get state(): ProcessState {
    return this.#info.state;
  }

  /** Null while it runs; negative: ended by that signal. */
  get exitCode(): number | null {
    return this.#info.exitCode ?? null;
  }

  get outOfMemory(): OutOfMemory | undefined {
    return this.#info.outOfMemory ?? undefined;
  }

  /** Asks how it is doing now. */
  async refresh(options?: RequestOptions): Promise<this> {
    this.#info = await this.#place.transport.json<ProcessInfo>({ method: "GET", path: this.#path(), options });
    return this;
  }

  /**
   * Its output to the end, the exit last. A cut connection is taken up again at the byte that came last.
   *
   * @throws {@link ConnectionError} when the server could not be reached for five minutes.
   */
  output(options: OutputOptions = {}): AsyncGenerator<ExecEvent, void, undefined> {
    const { cursor, signal } = options;
    return follow({ ...this.#place, processId: this.id, signal, ...(cursor === undefined ? {} : { cursor }) });
  }

  /**
   * As {@link Process.output}, as bytes: for output that is no text, of a process that was spawned with `outputEncoding`
   * `"base64"`. Gaps show in the offsets.
   *
   * @throws {@link RuntimeError} `binary_output_unavailable`: it was spawned with another encoding;
   * `invalid_process_output`: what came is no base64.
   */
  async *outputBytes(options: OutputOptions = {}): AsyncGenerator<OutputBytes, void, undefined> {
    if (this.#info.outputEncoding !== "base64") {
      throw new RuntimeError({
        code: "binary_output_unavailable",
        message: "the exact bytes of this process are not kept",
        hint: 'Spawn it with outputEncoding: "base64".',
      });
    }
    for await (const event of this.output(options)) {
      if (event.type !== "stdout" && event.type !== "stderr") continue;
      const { type: stream, offset, base64 } = event;
      const data = base64 === undefined ? undefined : fromBase64(base64);
      if (data === undefined) {
        throw new RuntimeError({ code: "invalid_process_output", message: "a piece of output is no base64" });
      }
      yield { stream, offset, data };
    }
  }

  /** Waits until it has ended, and answers with what is kept of its output: up to 1 MiB. */
  async wait(options: Pick<OutputOptions, "signal"> = {}): Promise<CommandResult> {
    const collected = new Collected(KEPT_OUTPUT);
    for await (const event of this.output(options)) {
      collected.take(event);
      // Its record may be gone by now: a sandbox remembers only the last ones that ended.
      if (event.type === "exit") this.#info = { ...this.#info, state: event.state, exitCode: event.exitCode };
    }
    return { ...collected.result(), processId: this.id };
  }

  /**
   * Writes to its standard input, which must have been opened with `stdin: "pipe"` or `pty`. Resolves once the sandbox has all of
   * it; a process that does not read holds it up.
   *
   * @throws {@link RuntimeError} the input is closed, or the process has ended.
   */
  async write(data: string | Uint8Array, options: WriteOptions = {}): Promise<void> {
    if ("idempotencyKey" in options) {
      throw invalidRequest("write takes no idempotencyKey: it counts bytes instead");
    }
    const bytes = typeof data === "string" ? utf8(data) : data;
    const turn = this.#lastWrite.then(() => this.#write(bytes, options));
    this.#lastWrite = turn.catch(() => {
      this.#inputOffset = undefined;
    });
    await turn;
  }

  async #write(bytes: Uint8Array, { eof = false, ...options }: WriteOptions): Promise<void> {
    let at = 0;
    let most = MAX_WRITE;
    for (;;) {
      const piece = bytes.subarray(at, at + most);
      const last = at + piece.length === bytes.length;
      const offset = (this.#inputOffset ??= (await this.refresh(options)).info.stdinOffset);
      const answer = await this.#place.transport.json<Schema["InputAnswer"]>({
        method: "POST",
        path: `${this.#path()}:write`,
        body: { base64: toBase64(piece), offset, eof: eof && last },
        options,
      });
      const taken = answer.offset - offset;
      if (!Number.isSafeInteger(taken) || taken < 0 || taken > piece.length) {
        throw new RuntimeError({
          code: "invalid_process_output",
          message: `the server took ${String(taken)} of ${String(piece.length)} bytes`,
        });
      }
      this.#inputOffset = offset + taken;
      at += taken;
      if (taken === 0 && piece.length > 0) {
        most = SMALL_WRITE;
        if (!(await sleep(FULL_WAIT_MS, options.signal))) options.signal?.throwIfAborted();
      } else if (last && taken === piece.length) {
        return;
      }
    }
  }

  /**
   * Sends a signal to it and all it started; one that has ended is left alone.
   *
   * @param signal - Default `SIGTERM`.
   */
  async kill(signal: SignalName = "SIGTERM", options: RequestOptions = {}): Promise<void> {
    await signalProcess(this.#place, this.id, signal, options);
  }

  /** Gives its terminal another size; it must have been started with `pty`. */
  async resize(cols: number, rows: number, options?: RequestOptions): Promise<void> {
    await this.#place.transport.json({ method: "POST", path: `${this.#path()}:resize`, body: { cols, rows }, options });
  }

  /**
   * The files it opened, if it was spawned with `traceFiles`.
   *
   * @throws {@link ConflictError} `process_running`: it has not ended; {@link NotFoundError}: it was not traced.
   */
  async files(options?: RequestOptions): Promise<TracedFiles> {
    return await this.#place.transport.json<TracedFiles>({ method: "GET", path: `${this.#path()}/files`, options });
  }

  /** Its record, for `JSON.stringify`. */
  toJSON(): ProcessInfo {
    return this.#info;
  }

  #path(): string {
    return path("sandboxes", this.sandboxId, "processes", this.id);
  }
}

/** The processes of a sandbox: those that run and the last 16 that ended, commands of `exec` among them. */
export class Processes {
  readonly #place: Place;

  /** @internal */
  constructor(place: Place) {
    this.#place = place;
  }

  async list(options?: RequestOptions): Promise<Process[]> {
    const answer = await this.#place.transport.json<Schema["ProcessList"]>({
      method: "GET",
      path: path("sandboxes", this.#place.sandboxId, "processes"),
      options,
    });
    return answer.data.map((info) => new Process(this.#place, info));
  }

  /** @throws {@link NotFoundError} `not_found`: there is none, or it ended long ago. */
  async get(id: string, options?: RequestOptions): Promise<Process> {
    const info = await this.#place.transport.json<ProcessInfo>({
      method: "GET",
      path: path("sandboxes", this.#place.sandboxId, "processes", id),
      options,
    });
    return new Process(this.#place, info);
  }

  /** The output of a process whose id is all that is known; as {@link Process.output}. */
  follow(id: string, options: OutputOptions = {}): AsyncGenerator<ExecEvent, void, undefined> {
    const { cursor, signal } = options;
    return follow({ ...this.#place, processId: id, signal, ...(cursor === undefined ? {} : { cursor }) });
  }
}

/** Starts a process and answers at once. @internal */
export async function spawn(place: Place, command: Command, options: SpawnOptions): Promise<Process> {
  const { stdin, pty, outputEncoding, request } = options;
  const isPipe = stdin === "pipe";
  const info = await place.transport.json<ProcessInfo>({
    method: "POST",
    path: path("sandboxes", place.sandboxId, "processes"),
    body: {
      ...commandBody(command, { ...options, stdin: isPipe ? undefined : stdin }),
      ...(isPipe ? { stdinMode: "pipe" } : {}),
      pty,
      outputEncoding,
    },
    options: request,
  });
  return new Process(place, info);
}
