/**
 * Running a command: answered when it has ended, or as it goes.
 */

import { CommandError, RuntimeError } from "../errors.js";
import { path } from "../transport/path.js";
import type { Transport } from "../transport/transport.js";
import type { Schema } from "../types.js";
import { toBase64, utf8, text } from "./bytes.js";
import { follow } from "./follow.js";
import type { Command, CommandResult, ExecEvent, ExecOptions, ExecStreamOptions } from "./types.js";

/** What a command gets if nothing is said; up to it the answer is not streamed. */
const SHORT_MS = 60_000;
/** A day: what a stream gets if nothing is said. The server takes it for "no limit of mine". */
const LONGEST_MS = 86_400_000;
const SHORT_KEEPS = 64 * 1024;
/** Enough for all output of nearly every command; only a bound for those that never stop talking. */
const LONG_KEEPS = 64 * 1024 * 1024;
/** How long the end of a command whose caller gave up may take to send. */
const LAST_WORD_MS = 10_000;

/** Where a command runs. */
export interface Place {
  transport: Transport;
  sandboxId: string;
}

export async function exec(place: Place, command: Command, options: ExecOptions): Promise<CommandResult> {
  const { onStdout, onStderr, timeoutMs, signal } = options;
  const hasCallback = onStdout !== undefined || onStderr !== undefined;
  // With a signal the id of the process must be known before it ends, so that it can be ended.
  const streams = hasCallback || (timeoutMs ?? 0) > SHORT_MS || signal !== undefined;
  const result = streams
    ? await collect(place, command, hasCallback ? unhurried(options) : options)
    : await answered(place, command, options);
  if (options.check === true) throwUnlessGood(result);
  return result;
}

function unhurried<Options extends ExecStreamOptions>(options: Options): Options {
  return { ...options, timeoutMs: options.timeoutMs ?? LONGEST_MS };
}

async function answered(place: Place, command: Command, options: ExecOptions): Promise<CommandResult> {
  const answer = await place.transport.json<Schema["ExecAnswer"]>({
    method: "POST",
    path: `${path("sandboxes", place.sandboxId)}:exec`,
    body: commandBody(command, options),
    options: { idempotencyKey: options.idempotencyKey },
  });
  const { exitCode, durationMs, replayed, outOfMemory, files, ...rest } = answer;
  return {
    ...rest,
    exitCode: exitCode ?? null,
    ...(typeof durationMs === "number" ? { durationMs } : {}),
    ...(replayed === true ? { replayed } : {}),
    ...(outOfMemory == null ? {} : { outOfMemory }),
    ...(files == null ? {} : { files }),
  };
}

/** Runs it as a stream and keeps the head of what it says, as an answer that is not streamed would. */
async function collect(place: Place, command: Command, options: ExecOptions): Promise<CommandResult> {
  const { onStdout, onStderr, timeoutMs = SHORT_MS } = options;
  const isLong = onStdout !== undefined || onStderr !== undefined || timeoutMs > SHORT_MS;
  const collected = new Collected(isLong ? LONG_KEEPS : SHORT_KEEPS);
  for await (const event of openStream(place, command, options)) {
    collected.take(event);
    if (event.type === "stdout") onStdout?.(event.data);
    if (event.type === "stderr") onStderr?.(event.data);
  }
  return collected.result();
}

export function execStream(
  place: Place,
  command: Command,
  options: ExecStreamOptions,
): AsyncGenerator<ExecEvent, void, undefined> {
  return openStream(place, command, unhurried(options));
}

async function* openStream(
  place: Place,
  command: Command,
  options: ExecStreamOptions,
): AsyncGenerator<ExecEvent, void, undefined> {
  const { signal, idempotencyKey } = options;
  let processId: string | undefined;
  try {
    const first = await place.transport.open({
      method: "POST",
      path: `${path("sandboxes", place.sandboxId)}:exec`,
      body: { ...commandBody(command, options), stream: true },
      accept: "application/x-ndjson",
      options: { idempotencyKey, signal },
    });
    for await (const event of follow({ ...place, first, signal })) {
      if (event.type === "start") processId = event.processId;
      yield event;
    }
  } catch (error) {
    if (signal?.aborted !== true || !(error instanceof RuntimeError) || error.code !== "timeout") throw error;
    throw await cancel(place, processId, error);
  }
}

/** The caller gave up: the command must not go on in secret. */
async function cancel(place: Place, processId: string | undefined, cause: RuntimeError): Promise<RuntimeError> {
  let stopped = false;
  if (processId !== undefined) {
    stopped = await signalProcess(place, processId, "SIGTERM", { timeoutMs: LAST_WORD_MS }).then(
      () => true,
      () => false,
    );
  }
  return new RuntimeError({
    code: "cancelled",
    message: stopped ? "the command was cancelled and told to end" : "the command was cancelled; it may still run",
    details: { sandboxId: place.sandboxId, processId: processId ?? null, stopped },
    idempotencyKey: cause.idempotencyKey,
    cause: cause.cause,
  });
}

/** Sends a signal to a process and all it started. */
export async function signalProcess(
  place: Place,
  processId: string,
  signal: Schema["SignalName"],
  options: { idempotencyKey?: string | undefined; signal?: AbortSignal | undefined; timeoutMs?: number | undefined },
): Promise<void> {
  await place.transport.json({
    method: "POST",
    path: `${path("sandboxes", place.sandboxId, "processes", processId)}:signal`,
    body: { signal },
    options,
  });
}

/** What exec and spawn say alike. */
export function commandBody(command: Command, options: Omit<ExecStreamOptions, "signal">): Record<string, unknown> {
  const { cwd, env, user, timeoutMs, traceFiles, stdin } = options;
  return {
    ...(typeof command === "string" ? { command } : { argv: command }),
    cwd,
    env,
    user,
    timeoutMs,
    traceFiles,
    ...(stdin === undefined ? {} : typeof stdin === "string" ? { stdin } : { stdinBase64: toBase64(stdin) }),
  };
}

/** The head of each output, up to a limit of bytes, and how it ended. */
export class Collected {
  readonly #keeps: number;
  readonly #heads = { stdout: new Head(), stderr: new Head() };
  #lost = false;
  #result: Partial<CommandResult> = {};

  constructor(keeps: number) {
    this.#keeps = keeps;
  }

  take(event: ExecEvent): void {
    switch (event.type) {
      case "start":
        this.#result.processId = event.processId;
        if (event.replayed === true) this.#result.replayed = true;
        break;
      case "stdout":
      case "stderr":
        this.#heads[event.type].add(event.data, this.#keeps);
        break;
      case "truncated":
        // Nobody can say any more whose output it was.
        this.#lost = true;
        break;
      case "exit": {
        const { exitCode, timedOut, durationMs, outOfMemory, files } = event;
        Object.assign(this.#result, { exitCode, timedOut });
        if (durationMs !== undefined) this.#result.durationMs = durationMs;
        if (outOfMemory !== undefined) this.#result.outOfMemory = outOfMemory;
        if (files !== undefined) this.#result.files = files;
      }
    }
  }

  result(): CommandResult {
    const { stdout, stderr } = this.#heads;
    return {
      exitCode: null,
      timedOut: false,
      ...this.#result,
      stdout: stdout.text(),
      stderr: stderr.text(),
      stdoutTruncated: stdout.isCut || this.#lost,
      stderrTruncated: stderr.isCut || this.#lost,
    };
  }
}

class Head {
  readonly #pieces: string[] = [];
  #bytes = 0;
  isCut = false;

  add(piece: string, keeps: number): void {
    if (this.isCut) return;
    const bytes = utf8(piece);
    const room = keeps - this.#bytes;
    if (bytes.length <= room) {
      this.#pieces.push(piece);
      this.#bytes += bytes.length;
      return;
    }
    this.isCut = true;
    // A character that the limit falls into goes as a whole.
    const end = [0, 1, 2, 3].map((back) => room - back).find((at) => at <= 0 || ((bytes[at] ?? 0) & 0xc0) !== 0x80);
    this.#pieces.push(text(bytes.subarray(0, Math.max(0, end ?? 0))));
  }

  text(): string {
    return this.#pieces.join("");
  }
}

function throwUnlessGood(result: CommandResult): void {
  const { exitCode, stdout, stderr, timedOut, outOfMemory, processId } = result;
  if (exitCode === 0 && !timedOut) return;
  const details = { exitCode, processId: processId ?? null };
  if (outOfMemory !== undefined) {
    const { message, hint } = outOfMemory;
    throw new CommandError({ code: "out_of_memory", message, hint, exitCode, stdout, stderr, details });
  }
  const code = timedOut ? "command_timeout" : "command_failed";
  const message = timedOut ? "the command ran out of its time" : `the command ended with ${howItEnded(exitCode)}`;
  throw new CommandError({ code, message, exitCode, stdout, stderr, details });
}

function howItEnded(exitCode: number | null): string {
  if (exitCode === null) return "an exit code that nobody knows";
  return exitCode < 0 ? `signal ${String(-exitCode)}` : `exit code ${String(exitCode)}`;
}
