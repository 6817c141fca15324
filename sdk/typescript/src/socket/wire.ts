/**
 * A WebSocket with an `Authorization` header: the platform's own where there is one that takes headers (Node.js 22, Bun),
 * else one over Node's HTTP client; through a proxy that of undici. Those of browsers take none, and session tokens reach no socket.
 */

import { RuntimeError } from "../errors.js";
import type { Through } from "../transport/proxy.js";
import { upgrade } from "./upgrade.js";

/** The largest message that is taken from a server. */
export const MAX_MESSAGE = 16 * 1024 * 1024;

/** What happens on a socket. */
export interface WireEvents {
  onFrame: (frame: string | Uint8Array) => void;
  /** Once, when nothing comes any more, whoever ended it. */
  onEnd: (end: WireEnd) => void;
}

/** How a socket ended, as far as one can know. */
export interface WireEnd {
  /** The server answered the request for it with this instead. */
  refused?: { status: number; body: Uint8Array };
  cause?: unknown;
}

/** An open, or opening, socket. */
export interface Wire {
  send: (frame: string | Uint8Array) => void;
  /** Bytes handed over that have not left this program. */
  waiting: () => number;
  close: () => void;
}

/** Begins to open a socket. Nothing can be sent before the first frame came. */
export function openWire(
  url: string,
  headers: Record<string, string>,
  open: Through["socket"] | undefined,
  events: WireEvents,
): Wire {
  if (open !== undefined) return platform(url, headers, open, events);
  if (typeof globalThis.WebSocket === "function") return platform(url, headers, ownSocket, events);
  const made = upgrade(url, headers, events);
  if (made !== undefined) return made;
  throw unsupported();
}

/** Beyond the standard; a browser takes the object for the name of a protocol and throws. */
const ownSocket: Through["socket"] = (url, headers) => new WebSocket(url, { headers } as unknown as string[]);

function platform(
  url: string,
  headers: Record<string, string>,
  open: Through["socket"],
  { onFrame, onEnd }: WireEvents,
): Wire {
  let socket: WebSocket;
  try {
    socket = open(url, headers);
  } catch (cause) {
    throw unsupported(cause);
  }
  let ended = false;
  const end = (how: WireEnd): void => {
    if (ended) return;
    ended = true;
    onEnd(how);
  };
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>): void => {
    if (!ended) onFrame(typeof data === "string" ? data : new Uint8Array(data));
  };
  socket.onerror = (event): void => {
    end({ cause: (event as { error?: unknown }).error });
  };
  socket.onclose = (): void => {
    end({});
  };
  return {
    send: (frame) => {
      if (!ended) socket.send(frame);
    },
    waiting: () => socket.bufferedAmount,
    close: () => {
      socket.close(1000);
    },
  };
}

function unsupported(cause?: unknown): RuntimeError {
  return new RuntimeError({
    code: "unsupported",
    message: "there is no WebSocket here that can carry a key",
    hint: "Terminals and tunnels need Node.js 20.16, Bun, or newer; pages in a browser run commands by exec and spawn.",
    cause,
  });
}
