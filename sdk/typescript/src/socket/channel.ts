/**
 * A socket of this API: the server says `ready` first, or why not.
 */

import { ConnectionError, RuntimeError } from "../errors.js";
import { connectionFailure, errorFrom, isObject, refusal } from "../transport/answer.js";
import type { Query } from "../transport/path.js";
import type { Transport } from "../transport/transport.js";
import { openWire, type Wire, type WireEnd } from "./wire.js";

/** A sandbox may have to wake before it says anything. */
const READY_WITHIN_MS = 125_000;

/** What is to be opened, and who is told what comes on it. */
export interface ChannelOptions {
  path: string;
  query?: Query | undefined;
  signal?: AbortSignal | undefined;
  /** The code of a refusal to open: `terminal_refused`, `tunnel_refused`. The server's own is among its details. */
  refusedCode: string;
  onBytes: (bytes: Uint8Array) => void;
  onMessage: (message: Record<string, unknown>) => void;
  /** Once, after it was ready. The error says why if it did not end well. */
  onEnd: (error: RuntimeError | undefined) => void;
}

/** An open socket, and what `ready` said. */
export interface Channel extends Wire {
  ready: Record<string, unknown>;
}

/** Opens a socket and waits until it is ready. */
export async function openChannel(transport: Transport, options: ChannelOptions): Promise<Channel> {
  const { path, query, signal, refusedCode, onBytes, onMessage, onEnd } = options;
  if (signal?.aborted === true) throw cancelled(path, signal);
  const { url, headers, open } = transport.socket(path, query);
  return await new Promise<Channel>((resolve, reject) => {
    let ready = false;
    let hasFailed = false;
    let said: RuntimeError | undefined;
    const timer = setTimeout(() => {
      const message = `${transport.origin} did not open ${path} within ${String(READY_WITHIN_MS / 1000)} s`;
      fail(new ConnectionError({ code: "timeout", message }));
    }, READY_WITHIN_MS);
    const onAbort = (): void => {
      fail(cancelled(path, signal));
    };
    const settled = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", onAbort);
    };
    const fail = (error: RuntimeError): void => {
      hasFailed = true;
      settled();
      reject(error);
      wire.close();
    };
    const wire = opened(settled, url, headers, open, {
      onFrame: (frame) => {
        if (typeof frame !== "string") {
          if (ready) onBytes(frame);
          else fail(refused(refusedCode, "the server sent bytes before it said that it is ready"));
          return;
        }
        const message = parse(frame);
        if (message["type"] === "error") {
          const { error } = message;
          said = ready ? errorFrom(isObject(error) ? error : {}) : toldRefusal(error, refusedCode);
          if (!ready) fail(said);
        } else if (ready) {
          onMessage(message);
        } else if (message["type"] === "ready") {
          ready = true;
          settled();
          resolve({ ...wire, ready: message });
        } else {
          fail(refused(refusedCode, "the server's first word is not that it is ready"));
        }
      },
      onEnd: (end) => {
        if (ready) {
          onEnd(said ?? (end.cause === undefined ? undefined : connectionFailure(transport.origin, end.cause).error));
          return;
        }
        if (hasFailed) return;
        // A platform's own WebSocket does not tell how the server answered; a plain request to the same path does.
        void (said !== undefined ? Promise.resolve(said) : why(transport, options, end)).then(fail);
      },
    });
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** What cannot even begin leaves no timer behind. */
function opened(settled: () => void, ...args: Parameters<typeof openWire>): Wire {
  try {
    return openWire(...args);
  } catch (error) {
    settled();
    throw error;
  }
}

async function why(transport: Transport, options: ChannelOptions, end: WireEnd): Promise<RuntimeError> {
  const { path, query, signal, refusedCode } = options;
  if (end.refused !== undefined) return refusal(end.refused.status, end.refused.body);
  const closed = refused(refusedCode, "the server closed the connection before it was ready");
  const answer: unknown = await transport.json({ method: "GET", path, query, once: true, options: { signal } }).then(
    () => undefined,
    (error: unknown) => error,
  );
  // Of one that may connect it says only that this was no upgrade.
  const isTold = answer instanceof RuntimeError && answer.code !== "invalid_request";
  if (isTold) return answer;
  return end.cause === undefined ? closed : connectionFailure(transport.origin, end.cause).error;
}

function parse(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : {};
  } catch {
    return {};
  }
}

/** Why a socket that was upgraded is not opened: of the class of the server's error, whose code is among the details. */
function toldRefusal(error: unknown, code: string): RuntimeError {
  if (!isObject(error)) return errorFrom({ code });
  const { code: own, details } = error;
  return errorFrom({ ...error, code, details: { ...(isObject(details) ? details : {}), code: own } });
}

function refused(code: string, message: string): RuntimeError {
  return new RuntimeError({ code, message });
}

function cancelled(path: string, signal: AbortSignal | undefined): RuntimeError {
  const message = `opening ${path} was cancelled by its signal`;
  return new ConnectionError({ code: "timeout", message, cause: signal?.reason });
}
