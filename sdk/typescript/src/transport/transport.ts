/**
 * How a call is sent until it is answered: one idempotency key for all its attempts, a deadline over all of them, a place
 * in line for each, and the rules of {@link Retry} in between.
 */

import { ConnectionError, RuntimeError, invalidRequest } from "../errors.js";
import { VERSION } from "../version.js";
import { connectionFailure, errorFrom, isLate, loneError, readJson, readRefusal } from "./answer.js";
import { environmentVariable } from "./environment.js";
import { Failure } from "./failure.js";
import { Gate, type Release } from "./gate.js";
import { newKey } from "./key.js";
import { apiOrigin } from "./origin.js";
import { encodeQuery, type Query } from "./path.js";
import { through, type Through } from "./proxy.js";
import { savedKey } from "./saved.js";
import { Retry } from "./retry.js";
import { sleep } from "./sleep.js";

/** An answer that has not begun by then is not coming: the call is sent again with the same key. */
const ANSWER_STARTS_WITHIN_MS = 125_000;
const DEFAULT_TIMEOUT_MS = 300_000;
const DEFAULT_MAX_RETRIES = 4;
const DEFAULT_MAX_CONNECTIONS = 48;
const DEFAULT_WAIT_FOR_CAPACITY_MS = 120_000;
const KEY_SHAPE = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$/;

/** The last argument of every method. */
export interface RequestOptions {
  /**
   * Makes the call safe to repeat: for 24 hours the same key with the same request does nothing again and answers as the
   * first did. 1 to 128 of `A-Z a-z 0-9 _ . : -`, the first a letter or digit. One is made for every change if not given.
   */
  idempotencyKey?: string | undefined;
  /** Ends the call: it then throws {@link ConnectionError} `timeout`, or `cancelled` for a command that ran. */
  signal?: AbortSignal | undefined;
  /** Milliseconds for the whole call, its waiting in line and its retries; 0: no limit. Default 300,000. */
  timeoutMs?: number | undefined;
}

/** Told before each wait for room: the refusal, and for how many milliseconds the client now waits. */
export type CapacityWait = (refusal: RuntimeError, waitMs: number) => void;

/** How a client reaches its server. */
export interface TransportOptions {
  /** Default: the variable `RUNTIME_API_KEY`, else that of a saved login. */
  apiKey?: string | undefined;
  /** The server's origin. Default: the variable `RUNTIME_API_URL`, else the public service. */
  baseUrl?: string | undefined;
  /** What sends the requests. Default: the global `fetch`. */
  fetch?: typeof fetch | undefined;
  /** Milliseconds for each call; 0: no limit. Default 300,000. */
  timeoutMs?: number | undefined;
  /** How often a failure that usually passes is met with another try. Default 4. */
  maxRetries?: number | undefined;
  /** Requests under way at once; further ones wait in line. At least 2, default 48, of which streams may use all but 8. */
  maxConnections?: number | undefined;
  /** Told how many requests wait in line, whenever one joins it. */
  onQueued?: ((waiting: number) => void) | undefined;
  /** Milliseconds that create, wake and restart wait for room; 0: fail at once. Default 120,000. */
  waitForCapacityMs?: number | undefined;
}

/** One request of the API. */
export interface Call {
  method: "GET" | "POST" | "PUT" | "DELETE";
  /** Already percent-encoded, from `/v1` on. */
  path: string;
  query?: Query | undefined;
  /** Sent as JSON. */
  body?: unknown;
  /** Sent as it is; not together with `body`. */
  bytes?: Uint8Array | undefined;
  accept?: "application/json" | "application/octet-stream" | "application/x-ndjson";
  /** Seconds that the server may hold the answer until the change has settled. */
  preferWaitSeconds?: number | undefined;
  /** Wait for room when there is none. */
  room?: { waitMs?: number | undefined; onWait?: CapacityWait | undefined } | undefined;
  /** One attempt only: the caller has its own rules for trying again. */
  once?: boolean;
  options?: RequestOptions | undefined;
}

/** An answer whose body is still coming. It holds a place in line until it is closed. */
export interface Opened {
  readonly headers: Headers;
  readonly body: ReadableStream<Uint8Array>;
  /** Lets the connection go, whether the body has ended or not. */
  close: () => void;
}

type AbortCause = "deadline" | "silence" | "caller";

/** Sends requests to one server with one key. Use it directly for routes that this package has no method for. */
export class Transport {
  /** Scheme, host and port of the server. */
  readonly origin: string;
  /** Milliseconds that create, wake and restart wait for room. */
  readonly waitForCapacityMs: number;
  readonly #apiKey: string | undefined;
  readonly #fetch: typeof fetch;
  readonly #through: Through | undefined;
  readonly #timeoutMs: number;
  readonly #maxRetries: number;
  readonly #gate: Gate;

  /**
   * @throws {@link RuntimeError} `invalid_request`: the address is not an origin, or an option is out of range;
   * `invalid_proxy`: `HTTPS_PROXY` names no proxy that can be used.
   */
  constructor(options: TransportOptions = {}) {
    this.origin = apiOrigin(options.baseUrl);
    const named = options.apiKey ?? environmentVariable("RUNTIME_API_KEY");
    this.#apiKey = named === undefined || named === "" ? savedKey(this.origin) : named;
    this.#through = options.fetch === undefined ? through(this.origin) : undefined;
    // Called without a receiver, as browsers demand.
    const send = options.fetch ?? this.#through?.fetch ?? globalThis.fetch;
    this.#fetch = (input, init) => send(input, init);
    this.#timeoutMs = atLeast(0, "timeoutMs", options.timeoutMs ?? DEFAULT_TIMEOUT_MS);
    this.#maxRetries = atLeast(0, "maxRetries", options.maxRetries ?? DEFAULT_MAX_RETRIES);
    this.waitForCapacityMs = atLeast(0, "waitForCapacityMs", options.waitForCapacityMs ?? DEFAULT_WAIT_FOR_CAPACITY_MS);
    const places = atLeast(2, "maxConnections", options.maxConnections ?? DEFAULT_MAX_CONNECTIONS);
    this.#gate = new Gate(places, options.onQueued);
  }

  /**
   * Sends a call until it is answered, and reads the answer as JSON.
   *
   * @throws {@link RuntimeError} the server's refusal; {@link ConnectionError} when no answer came.
   */
  async json<T = unknown>(call: Call): Promise<T> {
    return (await this.#send(call, false, (response) => readJson(response))) as T;
  }

  /**
   * Sends a call until an answer begins, and hands that over: its body may be long. The deadline is only for the start.
   *
   * @throws As {@link Transport.json}.
   */
  async open(call: Call): Promise<Opened> {
    return await this.#send(call, true, async (response, release) => {
      // A late answer to a stream can only be an error: nothing else of it would be JSON.
      if (isLate(response) && response.headers.get("content-type")?.startsWith("application/json") === true) {
        const error = loneError(await readJson(response));
        if (error !== undefined) throw new Failure(errorFrom(error), { late: true });
      }
      const body =
        response.body ??
        new ReadableStream<Uint8Array>({
          start: (controller) => {
            controller.close();
          },
        });
      return { headers: response.headers, body, close: release };
    });
  }

  async #send<T>(call: Call, stream: boolean, read: (response: Response, release: Release) => Promise<T>): Promise<T> {
    const options = call.options ?? {};
    const key = call.method === "GET" ? undefined : checkedKey(options.idempotencyKey);
    const headers = this.#headers(call, key);
    const url = `${this.origin}${call.path}${encodeQuery(call.query)}`;
    // What cannot be said as JSON is the caller's mistake, and no failure of a connection.
    const body = call.bytes ?? (call.body === undefined ? undefined : JSON.stringify(call.body));
    const retry = new Retry({
      deadlineMs: atLeast(0, "timeoutMs", options.timeoutMs ?? this.#timeoutMs),
      maxRetries: call.once === true ? 0 : this.#maxRetries,
      roomMs: call.room === undefined ? 0 : (call.room.waitMs ?? this.waitForCapacityMs),
    });
    const began = performance.now();
    const elapsed = (): number => performance.now() - began;
    let last: RuntimeError | undefined;

    for (;;) {
      const left = retry.deadlineMs === 0 ? 0 : Math.max(1, retry.deadlineMs - elapsed());
      const attempt = new Attempt(left, options.signal);
      try {
        attempt.release = await this.#gate.enter(stream, attempt.signal);
        const response = await attempt.start(this.#fetch, url, { method: call.method, headers, body });
        const answer = await read(response, () => {
          attempt.end();
        });
        if (stream) attempt.hold();
        else attempt.end();
        return answer;
      } catch (thrown) {
        attempt.end();
        const failure = this.#failureOf(thrown, attempt.why, call, key, last);
        last = failure.error;
        if (attempt.why === "deadline" || attempt.why === "caller") throw last;
        const verdict = call.once === true ? undefined : retry.decide(failure, elapsed(), Math.random());
        if (verdict === undefined || verdict.kind === "give-up") throw last;
        if (verdict.kind === "room") call.room?.onWait?.(last, verdict.delayMs);
        if (!(await sleep(verdict.delayMs, options.signal))) throw cancelled(call, key, options.signal);
      }
    }
  }

  /** Where a WebSocket goes, and with which headers. @internal */
  socket(
    path: string,
    query?: Query,
  ): { url: string; headers: Record<string, string>; open: Through["socket"] | undefined } {
    const url = `${this.origin.replace(/^http/, "ws")}${path}${encodeQuery(query)}`;
    return { url, headers: this.#who(), open: this.#through?.socket };
  }

  #headers(call: Call, key: string | undefined): Record<string, string> {
    return {
      ...this.#who(),
      accept: call.accept ?? "application/json",
      ...(key === undefined ? {} : { "idempotency-key": key }),
      ...(call.preferWaitSeconds === undefined ? {} : { prefer: `wait=${String(call.preferWaitSeconds)}` }),
      ...(call.bytes === undefined ? {} : { "content-type": "application/octet-stream" }),
      ...(call.body === undefined ? {} : { "content-type": "application/json" }),
    };
  }

  #who(): Record<string, string> {
    if (this.#apiKey === undefined || this.#apiKey === "") {
      throw new RuntimeError({
        code: "missing_api_key",
        message: "no API key was given",
        hint: "Set RUNTIME_API_KEY, or pass apiKey. A server writes its owner's key to owner.key in its data directory.",
      });
    }
    if (!/^[\x21-\x7e]+$/.test(this.#apiKey)) {
      throw invalidRequest("the API key holds blanks or characters that no key has");
    }
    return { authorization: `Bearer ${this.#apiKey}`, "x-runtime-client": `sdk-js/${VERSION}` };
  }

  /** What went wrong, as an error that names the call's key. */
  #failureOf(
    thrown: unknown,
    why: AbortCause | undefined,
    call: Call,
    key: string | undefined,
    last: RuntimeError | undefined,
  ): Failure {
    if (thrown instanceof Failure) return withKey(thrown, key);
    if (why === "caller") return new Failure(cancelled(call, key, call.options?.signal));
    const target = `${call.method} ${call.path}`;
    if (why === "deadline") {
      return new Failure(
        new ConnectionError({
          code: "timeout",
          message: `${target} was not answered in time`,
          hint: "The same call with the same idempotency key cannot take effect twice.",
          idempotencyKey: key,
          cause: last,
        }),
      );
    }
    if (why === "silence") {
      const message = `${this.origin} did not begin to answer ${target} within ${String(ANSWER_STARTS_WITHIN_MS / 1000)} s`;
      return new Failure(new ConnectionError({ code: "connection_error", message, idempotencyKey: key }));
    }
    return withKey(connectionFailure(this.origin, thrown), key);
  }
}

/** What every attempt of a call sends alike. */
interface Sent {
  method: string;
  headers: Record<string, string>;
  body: string | Uint8Array | undefined;
}

/** One attempt's timers and its place in line; whatever ends it, both are given back. */
class Attempt {
  readonly #controller = new AbortController();
  readonly #caller: AbortSignal | undefined;
  readonly #onCaller = (): void => {
    this.#abort("caller");
  };
  #deadline: ReturnType<typeof setTimeout> | undefined;
  #silence: ReturnType<typeof setTimeout> | undefined;
  /** Why it was aborted, if it was. */
  why: AbortCause | undefined;
  release: Release = () => undefined;

  constructor(deadlineMs: number, caller: AbortSignal | undefined) {
    this.#caller = caller;
    if (caller?.aborted === true) this.#abort("caller");
    caller?.addEventListener("abort", this.#onCaller, { once: true });
    if (deadlineMs > 0)
      this.#deadline = timer(() => {
        this.#abort("deadline");
      }, deadlineMs);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Sends the request and waits for the head of a success; any other answer is thrown. */
  async start(send: typeof fetch, url: string, { method, headers, body }: Sent): Promise<Response> {
    this.#silence = timer(() => {
      this.#abort("silence");
    }, ANSWER_STARTS_WITHIN_MS);
    const response = await send(url, {
      method,
      headers,
      ...(body === undefined ? {} : { body: body as string | Uint8Array<ArrayBuffer> }),
      signal: this.signal,
      // A redirect is no answer of this API, and the key must not follow it.
      redirect: "manual",
      cache: "no-store",
      credentials: "omit",
    });
    clearTimeout(this.#silence);
    if (response.ok) return response;
    throw new Failure(await readRefusal(response));
  }

  /** The answer has begun and its body goes on: only the caller ends it now. */
  hold(): void {
    clearTimeout(this.#deadline);
  }

  end(): void {
    clearTimeout(this.#deadline);
    clearTimeout(this.#silence);
    this.#caller?.removeEventListener("abort", this.#onCaller);
    // A body that nobody reads to its end must not hold its connection.
    this.#controller.abort();
    this.release();
  }

  #abort(why: AbortCause): void {
    if (this.signal.aborted) return;
    this.why = why;
    this.#controller.abort(new Error(why));
  }
}

/** The longest wait that timers take; whatever is longer never ends in practice. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

function timer(run: () => void, ms: number): ReturnType<typeof setTimeout> {
  return setTimeout(run, Math.min(ms, LONGEST_TIMER_MS));
}

function checkedKey(given: string | undefined): string {
  if (given === undefined) return newKey();
  if (KEY_SHAPE.test(given)) return given;
  throw invalidRequest("idempotencyKey must be 1 to 128 of A-Z a-z 0-9 _ . : - and begin with a letter or digit");
}

function atLeast(least: number, name: string, value: number): number {
  if (Number.isFinite(value) && value >= least) return value;
  throw invalidRequest(`${name} must be a number of at least ${String(least)}`);
}

function cancelled(call: Call, key: string | undefined, signal: AbortSignal | undefined): RuntimeError {
  const message = `${call.method} ${call.path} was cancelled by its signal`;
  return new ConnectionError({ code: "timeout", message, idempotencyKey: key, cause: signal?.reason });
}

function withKey(failure: Failure, key: string | undefined): Failure {
  if (key !== undefined) failure.error.nameKey(key);
  return failure;
}
