import { createHash } from "node:crypto";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { afterEach, beforeEach, describe, expect, test } from "vitest";

import { utf8 } from "../../src/commands/bytes.js";
import { Sandbox, type RuntimeError } from "../../src/index.js";
import { BINARY, CLOSE, encodeFrame, FrameReader, PING, TEXT } from "../../src/socket/frames.js";
import { failure } from "../support/runtime.js";

/** A frame as a server sends it. */
function served(kind: number, payload: Uint8Array | string, isLast = true): Buffer {
  const bytes = typeof payload === "string" ? utf8(payload) : payload;
  const { length } = bytes;
  const head = Buffer.alloc(length < 126 ? 2 : length < 65_536 ? 4 : 10);
  head[0] = (isLast ? 0x80 : 0) | kind;
  head[1] = head.length === 2 ? length : head.length === 4 ? 126 : 127;
  if (head.length === 4) head.writeUInt16BE(length, 2);
  if (head.length === 10) head.writeBigUInt64BE(BigInt(length), 2);
  return Buffer.concat([head, bytes]);
}

describe("frames", () => {
  const payloads = [0, 1, 125, 126, 65_535, 65_536, 70_000].map((length) => new Uint8Array(length).fill(length % 251));

  test("come out whole however they came in", () => {
    const all = Buffer.concat([served(TEXT, "ü€"), ...payloads.map((one) => served(BINARY, one)), served(PING, "?")]);
    for (const size of [1, 2, 3, 1000, all.length]) {
      const reader = new FrameReader(1 << 20);
      const found = [];
      for (let at = 0; at < all.length; at += size) found.push(...reader.push(all.subarray(at, at + size)));
      expect(found.map(({ kind, payload }) => [kind, payload.length])).toEqual([
        [TEXT, 5],
        ...payloads.map(({ length }) => [BINARY, length]),
        [PING, 1],
      ]);
    }
  });

  test("in parts are one message, with control frames between", () => {
    const reader = new FrameReader(100);
    const parts = [served(TEXT, "a", false), served(PING, ""), served(0, "b", false), served(0, "c")];
    const found = reader.push(Buffer.concat(parts));
    expect(found.map(({ kind, payload }) => [kind, Buffer.from(payload).toString()])).toEqual([
      [PING, ""],
      [TEXT, "abc"],
    ]);
  });

  test("that break the rules, or are larger than is good, are refused before they are waited for", () => {
    const refused = (...frames: Buffer[]): void => {
      expect(() => new FrameReader(100).push(Buffer.concat(frames))).toThrow();
    };
    refused(served(BINARY, new Uint8Array(101)).subarray(0, 10));
    refused(served(TEXT, new Uint8Array(60), false), served(0, new Uint8Array(60)));
    refused(served(0, "no beginning"));
    refused(served(TEXT, "a", false), served(TEXT, "b"));
    refused(served(3, ""));
    refused(served(PING, "", false));
    refused(Buffer.of(0xc1, 0));
    refused(Buffer.from(encodeFrame(TEXT, utf8("masked"))));
  });

  test("of a client are masked", () => {
    for (const payload of payloads) {
      const frame = Buffer.from(encodeFrame(BINARY, payload));
      const head = payload.length < 126 ? 2 : payload.length < 65_536 ? 4 : 10;
      expect([frame[0], (frame[1] ?? 0) & 0x80]).toEqual([0x82, 0x80]);
      const mask = frame.subarray(head, head + 4);
      const plain = frame.subarray(head + 4).map((byte, at) => byte ^ (mask[at & 3] ?? 0));
      expect(Buffer.compare(plain, payload)).toBe(0);
    }
  });
});

describe("a server that misbehaves", () => {
  let server: ReturnType<typeof createServer>;
  let answer: (socket: Socket, accept: string) => void;
  const platform = Object.getOwnPropertyDescriptor(globalThis, "WebSocket");

  beforeEach(async () => {
    Reflect.deleteProperty(globalThis, "WebSocket");
    server = createServer((socket) => {
      let head = "";
      socket.on("error", () => undefined);
      socket.on("data", (piece: Buffer) => {
        if (head.includes("\r\n\r\n")) return;
        head += piece.toString("latin1");
        const nonce = /sec-websocket-key: (.*)\r\n/i.exec(head)?.[1] ?? "";
        const salted = `${nonce}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`;
        if (head.includes("\r\n\r\n")) answer(socket, createHash("sha1").update(salted).digest("base64"));
      });
    }).listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
  });
  afterEach(() => {
    server.close();
    if (platform !== undefined) Object.defineProperty(globalThis, "WebSocket", platform);
  });

  const sandbox = (): Sandbox => {
    const apiUrl = `http://127.0.0.1:${String((server.address() as AddressInfo).port)}`;
    return Sandbox.fromSession({ token: "k", sandboxId: "s", apiUrl });
  };
  const opened = (socket: Socket, accept: string, ...frames: Buffer[]): void => {
    const lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"];
    socket.write(`${lines.join("\r\n")}\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
    for (const frame of frames) socket.write(frame);
  };
  const refusal = async (kind: abstract new (...args: never[]) => RuntimeError): Promise<string> =>
    (await failure(sandbox().terminal(), kind)).code;
  const any = Error as unknown as abstract new (...args: never[]) => RuntimeError;

  test("is refused by what it did", async () => {
    answer = (socket) => {
      opened(socket, "wrong");
    };
    expect(await refusal(any)).toBe("connection_error");
    answer = (socket, accept) => {
      opened(socket, accept, served(BINARY, "bytes first"));
    };
    expect(await refusal(any)).toBe("terminal_refused");
    answer = (socket, accept) => {
      opened(socket, accept, served(TEXT, "nonsense"));
    };
    expect(await refusal(any)).toBe("terminal_refused");
    answer = (socket, accept) => {
      const error = { code: "sandbox_stopped", status: 409, message: "It is stopped." };
      opened(socket, accept, served(TEXT, JSON.stringify({ type: "error", error })), served(CLOSE, Buffer.of(3, 232)));
    };
    expect(await refusal(any)).toBe("sandbox_stopped");
    answer = (socket) => {
      const body = JSON.stringify({ error: { code: "forbidden", message: "no", status: 403 } });
      socket.end(`HTTP/1.1 403 Forbidden\r\nContent-Length: ${String(body.length)}\r\n\r\n${body}`);
    };
    expect(await refusal(any)).toBe("forbidden");
  });

  test("that cuts a terminal is told by its end, and one that is closed here is not", async () => {
    const ready = served(TEXT, JSON.stringify({ type: "ready", processId: "p" }));
    let cut: () => void = () => undefined;
    answer = (socket, accept) => {
      opened(socket, accept, ready);
      cut = () => socket.destroy();
    };
    const terminal = await sandbox().terminal();
    expect(terminal.processId).toBe("p");
    cut();
    await expect(terminal.exited).rejects.toMatchObject({ code: "connection_error" });
    const second = await sandbox().terminal();
    second.close();
    cut();
    expect(await second.exited).toBeNull();
  });

  test("that gives no credit holds up whoever writes, and cuts who opened nothing", async () => {
    const ready = served(TEXT, JSON.stringify({ type: "ready" }));
    let received = 0;
    let socket: Socket | undefined;
    const frame = (kind: string, id: number, payload: Uint8Array = new Uint8Array()): Buffer => {
      const head = Buffer.alloc(5);
      head.write(kind);
      head.writeUInt32BE(id, 1);
      return served(BINARY, Buffer.concat([head, payload]));
    };
    answer = (opening, accept) => {
      socket = opening;
      opened(opening, accept, ready);
      opening.on("data", (piece: Buffer) => (received += piece.length));
    };
    const tunnel = await sandbox().tunnel();
    const opening = tunnel.connect(80);
    await expect.poll(() => received).toBeGreaterThan(0);
    socket?.write(frame("o", 1));
    const connection = await opening;
    let isWritten = false;
    const writing = connection.write(new Uint8Array(2 * 1024 * 1024)).then(() => (isWritten = true));
    await expect.poll(() => received).toBeGreaterThan(1024 * 1024);
    expect(isWritten).toBe(false);
    expect(received).toBeLessThan(1024 * 1024 + 64 * 1024);
    const credit = Buffer.alloc(8);
    credit.writeBigUInt64BE(BigInt(1024 * 1024));
    socket?.write(frame("a", 0, credit));
    await writing;
    socket?.write(frame("c", 1, utf8("gone")));
    await expect(new Response(connection.readable).text()).rejects.toThrow();
    socket?.write(frame("a", 0, Buffer.of(1)));
    await tunnel.closed;
    await expect(tunnel.connect(80)).rejects.toMatchObject({ code: "tunnel_failed" });
  });
});
