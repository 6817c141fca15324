/**
 * Reading what a server answered: bodies up to a limit, errors whatever their shape, answers that come late.
 */

import { ConnectionError, errorOf, RuntimeError } from "../errors.js";
import { Failure } from "./failure.js";

/** The largest body read into memory; file bytes are not bound by it. */
const MAX_BODY = 64 * 1024 * 1024;
/** The most of a refusal's body that is worth reading. */
const MAX_ERROR_BODY = 1024 * 1024;
/** How much of a body that is not JSON becomes the message. */
const MESSAGE_BYTES = 500;

/** Reads a success as JSON; a late failure inside it becomes one. */
export async function readJson(response: Response): Promise<unknown> {
  const late = isLate(response);
  const body = await readBytes(response, MAX_BODY);
  let value: unknown;
  try {
    value = body.length === 0 ? {} : JSON.parse(new TextDecoder().decode(body));
  } catch (cause) {
    if (late) {
      throw new Failure(refusal(502, body), { late });
    }
    throw new Failure(
      new RuntimeError({
        code: "invalid_answer",
        message: "the server answered with something that is not JSON",
        hint: "RUNTIME_API_URL may name another program's address.",
        cause,
      }),
    );
  }
  const error = late ? loneError(value) : undefined;
  if (error !== undefined) {
    throw new Failure(errorFrom(error), { late });
  }
  return value;
}

/** Whether the answer began before its outcome was known. */
export function isLate(response: Response): boolean {
  return response.headers.get("runtime-late-answer")?.toLowerCase() === "true";
}

/** Reads a refusal; one whose body is cut is still that refusal. */
export async function readRefusal(response: Response): Promise<RuntimeError> {
  const body = await readBytes(response, MAX_ERROR_BODY).catch(() => new Uint8Array());
  return refusal(response.status, body, retryAfterMs(response.headers));
}

/** The object under `error` when it is the only thing said. */
export function loneError(value: unknown): Record<string, unknown> | undefined {
  if (!isObject(value) || !isObject(value["error"])) return undefined;
  return Object.keys(value).length === 1 ? value["error"] : undefined;
}

/** An error object of the contract as an error of this package; fields of a wrong type say nothing. */
export function errorFrom(error: Record<string, unknown>, status = asStatus(error["status"]) ?? 500): RuntimeError {
  const { retryable, details } = error;
  return errorOf({
    status,
    code: asText(error["code"]) ?? "request_failed",
    message: asText(error["message"]) ?? `the request failed with status ${String(status)}`,
    hint: asText(error["hint"]),
    requestId: asText(error["requestId"]),
    details: isObject(details) ? details : undefined,
    retryable: typeof retryable === "boolean" ? retryable : undefined,
    retryAfterMs: asWait(error["retryAfterMs"]),
  });
}

/** A refusal out of its status and body. */
export function refusal(status: number, body: Uint8Array, named?: number): RuntimeError {
  const text = new TextDecoder().decode(body.subarray(0, MAX_ERROR_BODY));
  let error: Record<string, unknown> = { message: text.slice(0, MESSAGE_BYTES).trim() };
  try {
    const value: unknown = JSON.parse(text);
    if (isObject(value) && isObject(value["error"])) {
      error = value["error"];
    }
  } catch {
    // Not of our making, then: its text is the message.
  }
  return errorFrom({ ...error, retryAfterMs: asWait(error["retryAfterMs"]) ?? named }, status);
}

/** Reads a body to its end, up to a limit that is checked before a piece is kept. */
export async function readBytes(response: Response, limit: number): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  const reader = response.body?.getReader();
  while (reader !== undefined) {
    const { done, value } = await reader.read();
    if (done) break;
    length += value.length;
    if (length > limit) {
      await reader.cancel().catch(() => undefined);
      const message = `the answer is larger than ${String(limit / (1024 * 1024))} MiB`;
      throw new Failure(new RuntimeError({ code: "answer_too_large", message }));
    }
    pieces.push(value);
  }
  return concat(pieces, length);
}

/** One array out of many. */
export function concat(pieces: readonly Uint8Array[], length: number): Uint8Array {
  if (pieces.length === 1 && pieces[0] !== undefined) return pieces[0];
  const whole = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** `Retry-After` in seconds, with a fraction or not; a date or anything else says nothing. */
export function retryAfterMs(headers: Headers): number | undefined {
  const text = headers.get("retry-after")?.trim() ?? "";
  return /^\d+(\.\d+)?$/.test(text) ? Math.round(Number(text) * 1000) : undefined;
}

/** The codes by which runtimes say that a connection was never made. */
const NEVER_OPENED: ReadonlySet<string> = new Set([
  "ECONNREFUSED",
  "ConnectionRefused",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
]);

/** A connection that failed, whatever `fetch` threw. */
export function connectionFailure(origin: string, cause: unknown): Failure {
  const neverOpened = codesOf(cause).some((code) => NEVER_OPENED.has(code));
  const message = neverOpened
    ? `cannot connect to ${origin}`
    : `the connection to ${origin} was cut before the answer was complete`;
  return new Failure(new ConnectionError({ code: "connection_error", message, cause }), { neverOpened });
}

function codesOf(error: unknown, depth = 0): string[] {
  if (!isObject(error) || depth > 4) return [];
  const { code, cause, errors } = error as { code?: unknown; cause?: unknown; errors?: unknown };
  const inner = Array.isArray(errors) ? errors.flatMap((one: unknown) => codesOf(one, depth + 1)) : [];
  return [...(typeof code === "string" ? [code] : []), ...codesOf(cause, depth + 1), ...inner];
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function asText(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

function asWait(value: unknown): number | undefined {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

function asStatus(value: unknown): number | undefined {
  return typeof value === "number" && Number.isInteger(value) && value >= 100 && value <= 599 ? value : undefined;
}
