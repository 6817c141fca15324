/**
 * What happens to the files of a sandbox, as it happens. A watch lives in the sandbox, not in the connection that reads it.
 */

import type { Place } from "../commands/exec.js";
import { dropped, linesOf, stopped } from "../commands/follow.js";
import { badStream } from "../commands/lines.js";
import { ConnectionError, type RuntimeError } from "../errors.js";
import { errorFrom } from "../transport/answer.js";
import { path } from "../transport/path.js";
import { sleep } from "../transport/sleep.js";
import type { RequestOptions } from "../transport/transport.js";
import type { FileChange, FileChangeType, Schema, WatchInfo } from "../types.js";

/** Silence after which a followed watch is taken for dead; the server sends heartbeats. */
const SILENCE_MS = 180_000;
/** How long following may fail in a row. */
const FAILING_MS = 300_000;
const FIRST_BACKOFF_MS = 50;
const LONGEST_BACKOFF_MS = 5_000;

type Line = Schema["WatchLine"];

/** Why a watch tells no more: it `stopped`, its `timeout` came, its path is gone, or the sandbox is `paused`. */
export type WatchExit = Schema["WatchEndReason"] | "paused";

/** Word that not everything was told. Look at the files themselves then. */
export type WatchNotice =
  /** Changes were dropped; how many, where somebody counted. */
  | { type: "overflow"; reason: Schema["OverflowReason"]; dropped: number | undefined }
  /** So many bytes of what was seen were no longer held when they were read. */
  | { type: "lost"; bytes: number }
  /** There are more folders than so many, which are looked at. */
  | { type: "limit"; watches: number };

/** What {@link Watches.start} watches, and how. */
export interface WatchOptions {
  /** With all folders below. Default false. */
  recursive?: boolean | undefined;
  /** Which changes. Default all but `access`. */
  events?: FileChangeType[] | undefined;
  /** Only what matches one of these: with a slash it is for the path below the watched one, without for each name. */
  include?: string[] | undefined;
  /** Nothing that matches one of these; a folder is left out with all below. */
  exclude?: string[] | undefined;
  /** Milliseconds that changes are collected for after the first one. Default 100. */
  batchMs?: number | undefined;
  /** Milliseconds after which the watch ends by itself; 0 is never. Default an hour. */
  timeoutMs?: number | undefined;
  /** Folders that are looked at, at most. */
  maxWatches?: number | undefined;
  /** Its name, of small letters, digits and dashes. Default: one is made. */
  id?: string | undefined;
  /** Told that not everything was told. */
  onNotice?: ((notice: WatchNotice) => void) | undefined;
  /** How the call that starts it is made. */
  request?: RequestOptions | undefined;
}

/** How {@link Files.watch} watches. */
export interface FollowedWatchOptions extends WatchOptions {
  /**
   * Told once that nothing more comes, and why. With an error the watch may go on, and is not read any more: a connection
   * that cannot be mended, or whatever `onEvent` threw.
   */
  onExit?: ((reason: WatchExit | undefined, error?: Error) => void) | undefined;
}

/**
 * A watch that goes on. Two readers of one handle share its place; for two that do not, start two watches.
 */
export class Watch {
  /** Its record as of the start. */
  readonly info: WatchInfo;
  readonly #place: Place;
  readonly #path: string;
  readonly #onNotice: ((notice: WatchNotice) => void) | undefined;
  /** Told by the server and not handed on yet. */
  readonly #waiting: FileChange[] = [];
  #cursor: number;
  #exitReason: WatchExit | undefined;
  #isOver = false;

  /** @internal */
  constructor(place: Place, info: WatchInfo, onNotice: ((notice: WatchNotice) => void) | undefined) {
    this.info = info;
    this.#place = place;
    this.#path = path("sandboxes", place.sandboxId, "files", "watches", info.id);
    this.#cursor = info.cursor;
    this.#onNotice = onNotice;
  }

  /** For {@link Watches.stop}. */
  get id(): string {
    return this.info.id;
  }

  /** What is watched. */
  get path(): string {
    return this.info.path;
  }

  /** Where the next read begins. */
  get cursor(): number {
    return this.#cursor;
  }

  /** Why {@link Watch.events} ended; after `paused` it goes on with the wake, where it left off. */
  get exitReason(): WatchExit | undefined {
    return this.#exitReason;
  }

  /**
   * Each change as it happens, until the watch ends or the sandbox pauses. A connection that breaks is taken up again where
   * it was. Leaving the loop lets it go; the watch goes on.
   *
   * @throws {@link NotFoundError}: it is gone, the sandbox was stopped meanwhile; {@link ConnectionError}: it cannot be
   * followed any more.
   */
  async *events({ signal }: { signal?: AbortSignal | undefined } = {}): AsyncGenerator<FileChange, void, undefined> {
    if (!this.#isOver) this.#exitReason = undefined;
    let failures = 0;
    let failingSince: number | undefined;
    for (;;) {
      yield* this.#hand();
      if (this.#exitReason !== undefined) return;
      try {
        for await (const line of this.#lines(signal)) {
          const kind = this.#take(line);
          failures = 0;
          failingSince = undefined;
          yield* this.#hand();
          if (kind === "continue") break;
          if (this.exitReason !== undefined) return;
        }
      } catch (error) {
        const failure = error as RuntimeError;
        failingSince ??= performance.now();
        const passes = failure.code === "connection_error" || failure.status === 429 || failure.status >= 500;
        if (signal?.aborted === true || !passes || performance.now() - failingSince > FAILING_MS) throw error;
        const backoff = Math.min(FIRST_BACKOFF_MS * 2 ** Math.min(failures, 8), LONGEST_BACKOFF_MS);
        failures += 1;
        if (!(await sleep(backoff, signal))) throw stopped(signal);
      }
    }
  }

  /**
   * The changes since the last read.
   *
   * @param options - `waitMs`: how long to wait for some, at most 8,000.
   * @throws {@link NotFoundError}: it is gone, the sandbox was stopped meanwhile.
   */
  async getNewEvents(options: RequestOptions & { waitMs?: number | undefined } = {}): Promise<FileChange[]> {
    const { waitMs = 0, ...request } = options;
    if (!this.#isOver) this.#exitReason = undefined;
    const told = await this.#place.transport.json<Schema["WatchPoll"]>({
      method: "GET",
      path: `${this.#path}/events`,
      query: { cursor: this.#cursor, waitMs },
      options: request,
    });
    this.#waiting.push(...told.events);
    if (told.lostBytes > 0) this.#onNotice?.({ type: "lost", bytes: told.lostBytes });
    for (const notice of told.notices) this.#take(notice);
    this.#cursor = Math.max(this.#cursor, told.nextCursor);
    this.#isOver ||= told.ended;
    return this.#waiting.splice(0);
  }

  /**
   * Ends it. False if it had ended. What it saw until then can still be read.
   *
   * @throws {@link NotFoundError}: it is gone, the sandbox was stopped meanwhile.
   */
  async stop(options?: RequestOptions): Promise<boolean> {
    return await stop(this.#place, this.id, options);
  }

  *#hand(): Generator<FileChange, void, undefined> {
    for (;;) {
      const next = this.#waiting.shift();
      if (next === undefined) return;
      yield next;
    }
  }

  async *#lines(signal: AbortSignal | undefined): AsyncGenerator<Line, void, undefined> {
    const { transport } = this.#place;
    const source = await transport.open({
      method: "GET",
      path: `${this.#path}/events`,
      query: { cursor: this.#cursor, follow: true },
      accept: "application/x-ndjson",
      once: true,
      options: { signal },
    });
    try {
      let said = false;
      for await (const line of linesOf(source, SILENCE_MS, { transport, signal })) {
        said = true;
        yield line as Line;
      }
      // Its last line says that it is the last.
      throw dropped(said ? "the connection to the watch was cut" : "the server ended the watch without a word");
    } finally {
      source.close();
    }
  }

  #take(line: Line): Line["k"] {
    if (!Number.isSafeInteger(line.cursor)) throw badStream("a line of a watch without a cursor");
    this.#cursor = Math.max(this.#cursor, line.cursor);
    switch (line.k) {
      case "events":
        this.#waiting.push(...line.events);
        break;
      case "overflow":
        this.#onNotice?.({ type: "overflow", reason: line.reason, dropped: line.dropped ?? undefined });
        break;
      case "lost":
        this.#onNotice?.({ type: "lost", bytes: line.bytes });
        break;
      case "limit":
        this.#onNotice?.({ type: "limit", watches: line.watches });
        break;
      case "paused":
        this.#exitReason = "paused";
        break;
      case "end":
        this.#exitReason = line.reason;
        this.#isOver = true;
        break;
      case "failure":
        throw errorFrom(line, line.status);
      case "continue":
        break;
    }
    return line.k;
  }
}

/** A watch that is read behind the caller's back, by {@link Files.watch}. */
export class FollowedWatch {
  readonly #watch: Watch;
  readonly #reading: AbortController;
  /** Settles once nothing more is told. Never rejects: `onExit` has the error. */
  readonly exited: Promise<WatchExit | undefined>;

  /** @internal */
  constructor(watch: Watch, onEvent: (change: FileChange) => unknown, options: FollowedWatchOptions) {
    this.#watch = watch;
    this.#reading = new AbortController();
    this.exited = this.#read(onEvent, options.onExit);
  }

  /** Its id. */
  get id(): string {
    return this.#watch.id;
  }

  /** What is watched. */
  get path(): string {
    return this.#watch.path;
  }

  /** Ends the watch, having told what it saw. False if it had ended. */
  async stop(options?: RequestOptions): Promise<boolean> {
    try {
      const wasOn = await this.#watch.stop(options);
      await this.exited;
      return wasOn;
    } finally {
      this.#reading.abort();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #read(
    onEvent: (change: FileChange) => unknown,
    onExit: FollowedWatchOptions["onExit"],
  ): Promise<WatchExit | undefined> {
    try {
      for await (const change of this.#watch.events({ signal: this.#reading.signal })) await onEvent(change);
      onExit?.(this.#watch.exitReason);
    } catch (error) {
      const isOurs = this.#reading.signal.aborted && error instanceof ConnectionError;
      if (isOurs) onExit?.(this.#watch.exitReason);
      else onExit?.(undefined, error instanceof Error ? error : new Error(String(error)));
    }
    return this.#watch.exitReason;
  }
}

/** The watches of one sandbox. */
export class Watches {
  readonly #place: Place;

  /** @internal */
  constructor(place: Place) {
    this.#place = place;
  }

  /**
   * Starts a watch. What changes from then on is seen, also while nobody reads.
   *
   * @throws {@link NotFoundError} `file_not_found`; {@link ConflictError} `watch_limit`: four go on, `already_exists`: one
   * of this `id` does.
   */
  async start(watched: string, options: WatchOptions = {}): Promise<Watch> {
    const { recursive, events, include, exclude, batchMs, timeoutMs, maxWatches, id, onNotice, request } = options;
    const body = {
      path: watched,
      ...given({ recursive, events, include, exclude, batchMs, timeoutMs, maxWatches, id }),
    };
    const info = await this.#place.transport.json<WatchInfo>({
      method: "POST",
      path: path("sandboxes", this.#place.sandboxId, "files", "watches"),
      body,
      options: request,
    });
    return new Watch(this.#place, info, onNotice);
  }

  /**
   * Those that go on, oldest first.
   *
   * @throws {@link ConflictError} `sandbox_paused`: looking wakes nothing.
   */
  async list(options?: RequestOptions): Promise<WatchInfo[]> {
    const answer = await this.#place.transport.json<Schema["WatchList"]>({
      method: "GET",
      path: path("sandboxes", this.#place.sandboxId, "files", "watches"),
      options,
    });
    return answer.data;
  }

  /**
   * Ends one. False if it had ended.
   *
   * @throws {@link NotFoundError}: there is none of this id.
   */
  async stop(id: string, options?: RequestOptions): Promise<boolean> {
    return await stop(this.#place, id, options);
  }
}

async function stop({ transport, sandboxId }: Place, id: string, options?: RequestOptions): Promise<boolean> {
  const answer = await transport.json<Schema["WatchStopped"]>({
    method: "DELETE",
    path: path("sandboxes", sandboxId, "files", "watches", id),
    options,
  });
  return answer.stopped;
}

function given(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}
