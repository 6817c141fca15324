/**
 * A WebSocket over Node's HTTP client, for Node.js before 22, which has none of its own.
 */

import { toBase64, utf8 } from "../commands/bytes.js";
import { concat } from "../transport/answer.js";
import { builtin } from "../transport/environment.js";
import { BINARY, CLOSE, encodeFrame, FrameReader, PING, PONG, TEXT } from "./frames.js";
import { MAX_MESSAGE, type Wire, type WireEnd, type WireEvents } from "./wire.js";

/** The most of a refusal that is worth reading. */
const MAX_REFUSAL = 64 * 1024;
/** How long the server's close is waited for. */
const GOODBYE_MS = 5_000;
/** What a server appends to our key before it hashes it: RFC 6455, section 1.3. */
const ACCEPT_SALT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** What is used of Node's sockets and messages. */
interface Emitter {
  on: (event: string, listener: (...args: never[]) => void) => unknown;
}
interface Socket extends Emitter {
  readonly writableLength: number;
  write: (bytes: Uint8Array) => boolean;
  end: () => unknown;
  destroy: () => unknown;
  setNoDelay?: (on: boolean) => unknown;
}
interface Answer extends Emitter {
  statusCode?: number;
  headers: Record<string, string | undefined>;
}
interface Request extends Emitter {
  end: () => unknown;
  destroy: () => unknown;
}
interface Http {
  request: (url: string, options: { headers: Record<string, string>; agent: false }) => Request;
}
interface Crypto {
  createHash: (name: string) => { update: (text: string) => { digest: (form: "base64") => string } };
}

/** Begins to open a socket; undefined where this is not Node. */
export function upgrade(
  url: string,
  headers: Record<string, string>,
  { onFrame, onEnd }: WireEvents,
): Wire | undefined {
  const http = builtin(url.startsWith("wss:") ? "node:https" : "node:http") as Http | undefined;
  const hash = builtin("node:crypto") as Crypto | undefined;
  if (http === undefined || hash === undefined) return undefined;
  const nonce = toBase64(crypto.getRandomValues(new Uint8Array(16)));
  const accepts = hash.createHash("sha1").update(`${nonce}${ACCEPT_SALT}`).digest("base64");

  let ended = false;
  let socket: Socket | undefined;
  const end = (how: WireEnd): void => {
    if (ended) return;
    ended = true;
    socket?.destroy();
    request.destroy();
    onEnd(how);
  };
  const request = http.request(url.replace(/^ws/, "http"), {
    agent: false,
    headers: {
      ...headers,
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-key": nonce,
      "sec-websocket-version": "13",
    },
  });
  request.on("error", (cause: Error) => {
    end({ cause });
  });
  request.on("response", (answer: Answer) => {
    readRefusal(answer, end);
  });
  request.on("upgrade", (answer: Answer, opened: Socket, head: Uint8Array) => {
    socket = opened;
    opened.on("error", (cause: Error) => {
      end({ cause });
    });
    if (answer.headers["sec-websocket-accept"] !== accepts || ended) {
      opened.destroy();
      end({ cause: new Error("the server's answer is not that of a WebSocket") });
      return;
    }
    opened.setNoDelay?.(true);
    const reader = new FrameReader(MAX_MESSAGE);
    const take = (piece: Uint8Array): void => {
      if (ended) return;
      try {
        for (const { kind, payload } of reader.push(piece)) {
          if (kind === TEXT) onFrame(new TextDecoder().decode(payload));
          else if (kind === BINARY) onFrame(payload);
          else if (kind === PING) opened.write(encodeFrame(PONG, payload));
          else if (kind === CLOSE) {
            opened.write(encodeFrame(CLOSE, payload.subarray(0, 2)));
            opened.end();
            end({});
            return;
          }
        }
      } catch (cause) {
        end({ cause });
      }
    };
    opened.on("data", take);
    opened.on("close", () => {
      end({});
    });
    take(head);
  });
  request.end();

  return {
    send: (frame) => {
      if (ended) return;
      const isText = typeof frame === "string";
      socket?.write(encodeFrame(isText ? TEXT : BINARY, isText ? utf8(frame) : frame));
    },
    waiting: () => socket?.writableLength ?? 0,
    close: () => {
      if (ended) return;
      if (socket === undefined) {
        end({});
        return;
      }
      socket.write(encodeFrame(CLOSE, Uint8Array.of(1000 >> 8, 1000 & 0xff)));
      const timer = setTimeout(end, GOODBYE_MS, {});
      (timer as { unref?: () => void }).unref?.();
    },
  };
}

function readRefusal(answer: Answer, end: (how: WireEnd) => void): void {
  const pieces: Uint8Array[] = [];
  let length = 0;
  const told = (): void => {
    end({ refused: { status: answer.statusCode ?? 0, body: concat(pieces, length) } });
  };
  answer.on("data", (piece: Uint8Array) => {
    if (length + piece.length > MAX_REFUSAL) {
      told();
      return;
    }
    pieces.push(piece);
    length += piece.length;
  });
  answer.on("end", told);
  answer.on("error", told);
}
