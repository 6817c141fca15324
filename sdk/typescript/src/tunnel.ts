/**
 * Connections to ports of a sandbox's own loopback, many over one WebSocket. No port is opened to anyone else.
 *
 * A frame is a letter, the number of the connection, and what it says: `o` open, `d` data, `e` the end of one side's data,
 * `c` closed and why, `a` (connection 0) how many bytes of data the sandbox has taken in all.
 */

import { text, utf8 } from "./commands/bytes.js";
import type { Place } from "./commands/exec.js";
import { ConnectionError, RuntimeError } from "./errors.js";
import { openChannel, type Channel } from "./socket/channel.js";
import { path } from "./transport/path.js";

/** Bytes that may be on their way beyond what the sandbox has taken. */
const WINDOW = 1024 * 1024;
const MAX_DATA = 64 * 1024;
/** Bytes of one connection that wait here to be read; one whose reader is so far behind is given up. */
const MAX_UNREAD = 64 * 1024 * 1024;
const HEAD = 5;

/** A connection through a {@link Tunnel}. */
export class TunnelConnection {
  /** What the other side sends, until it ends its side; it fails if the connection is cut. */
  readonly readable: ReadableStream<Uint8Array>;
  readonly #tunnel: Streams;
  readonly #id: number;

  /** @internal */
  constructor(tunnel: Streams, id: number, readable: ReadableStream<Uint8Array>) {
    this.#tunnel = tunnel;
    this.#id = id;
    this.readable = readable;
  }

  /** Sends; resolves when all of it is on its way. A side that does not read holds it up. */
  async write(data: string | Uint8Array): Promise<void> {
    await this.#tunnel.write(this.#id, typeof data === "string" ? utf8(data) : data);
  }

  /** Ends this side; the other may go on. */
  end(): void {
    this.#tunnel.end(this.#id);
  }

  /** Cuts the connection. */
  close(): void {
    this.#tunnel.abort(this.#id);
  }
}

/** A way to the ports of a sandbox; {@link Sandbox.forwardPort} listens for one here. */
export class Tunnel implements AsyncDisposable {
  /** Resolves when it is closed, whoever closed it; its connections are cut then. */
  readonly closed: Promise<void>;
  readonly #streams: Streams;

  /** @internal */
  constructor(streams: Streams) {
    this.#streams = streams;
    this.closed = streams.closed;
  }

  /**
   * Connects to a port.
   *
   * @throws {@link ConnectionError} `tunnel_refused`: nothing listens there, or the port is not to be had.
   */
  async connect(port: number): Promise<TunnelConnection> {
    return await this.#streams.open(port);
  }

  close(): void {
    this.#streams.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
    await this.closed;
  }
}

interface Stream {
  opened: (error?: RuntimeError) => void;
  isOpen: boolean;
  incoming: ReadableStreamDefaultController<Uint8Array>;
  unread: () => number;
  isReadOver: boolean;
  /** Writes take their turn. */
  lastWrite: Promise<void>;
  /** Why nothing can be written any more. */
  broken: RuntimeError | undefined;
}

/** The connections of one tunnel. @internal */
export class Streams {
  readonly closed: Promise<void>;
  readonly #all = new Map<number, Stream>();
  #channel: Channel | undefined;
  #next = 1;
  #sent = 0;
  #taken = 0;
  /** Those that wait for the sandbox to take bytes. */
  #waiting: (() => void)[] = [];
  #over: RuntimeError | undefined;
  #isClosed: () => void = () => undefined;

  constructor() {
    this.closed = new Promise((resolve) => {
      this.#isClosed = resolve;
    });
  }

  carriedBy(channel: Channel): void {
    this.#channel = channel;
  }

  async open(port: number): Promise<TunnelConnection> {
    if (this.#over !== undefined) throw this.#over;
    const id = this.#next++;
    let incoming: ReadableStreamDefaultController<Uint8Array> | undefined;
    const readable = new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          incoming = controller;
        },
        cancel: () => {
          this.abort(id);
        },
      },
      { highWaterMark: MAX_UNREAD, size: (piece) => piece.length },
    );
    await new Promise<void>((resolve, reject) => {
      if (incoming === undefined) throw new Error("a stream starts at once");
      const { desiredSize } = incoming;
      const controller = incoming;
      this.#all.set(id, {
        opened: (error) => {
          if (error === undefined) resolve();
          else reject(error);
        },
        isOpen: false,
        incoming: controller,
        unread: () => (desiredSize ?? 0) - (controller.desiredSize ?? 0),
        isReadOver: false,
        lastWrite: Promise.resolve(),
        broken: undefined,
      });
      this.#send("o", id, utf8(`tcp ${String(port)}`));
    });
    return new TunnelConnection(this, id, readable);
  }

  async write(id: number, bytes: Uint8Array): Promise<void> {
    const stream = this.#all.get(id);
    if (stream === undefined) throw this.#over ?? failed("the connection is closed");
    const turn = stream.lastWrite.then(async () => {
      for (let at = 0; at < bytes.length; at += MAX_DATA)
        await this.#data(stream, id, bytes.subarray(at, at + MAX_DATA));
    });
    stream.lastWrite = turn.catch(() => undefined);
    await turn;
  }

  async #data(stream: Stream, id: number, piece: Uint8Array): Promise<void> {
    for (;;) {
      if (stream.broken !== undefined) throw stream.broken;
      if (this.#sent - this.#taken + piece.length <= WINDOW) break;
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
    this.#sent += piece.length;
    this.#send("d", id, piece);
  }

  end(id: number): void {
    const stream = this.#all.get(id);
    if (stream === undefined) return;
    void stream.lastWrite.then(() => {
      if (stream.broken !== undefined) return;
      stream.broken = failed("this side of the connection was ended");
      this.#send("e", id);
    });
  }

  abort(id: number): void {
    if (!this.#all.has(id)) return;
    this.#send("c", id);
    this.#lose(id, failed("the connection was closed"));
  }

  close(): void {
    this.#channel?.close();
    this.ended(failed("the tunnel was closed"));
  }

  ended(error: RuntimeError): void {
    this.#over ??= error;
    for (const id of [...this.#all.keys()]) this.#lose(id, error);
    this.#isClosed();
  }

  /** A frame came. */
  take(frame: Uint8Array): void {
    if (frame.length < HEAD) {
      this.#broke("a frame is too short");
      return;
    }
    const view = new DataView(frame.buffer, frame.byteOffset, frame.length);
    const id = view.getUint32(1);
    const payload = frame.subarray(HEAD);
    const kind = String.fromCharCode(frame[0] ?? 0);
    if (kind === "a") {
      if (payload.length !== 8) {
        this.#broke("a credit is not a number");
        return;
      }
      this.#taken = Math.max(this.#taken, Number(view.getBigUint64(HEAD)));
      this.#wake();
      return;
    }
    const stream = this.#all.get(id);
    // What was still on its way when a connection was given up.
    if (stream === undefined) return;
    if (!stream.isOpen) {
      this.#answered(id, stream, kind, payload);
      return;
    }
    if (kind === "d") this.#incoming(id, stream, payload);
    else if (kind === "e") this.#endReading(stream);
    else if (kind === "c") {
      const why = text(payload);
      if (why === "done") this.#endReading(stream);
      this.#lose(id, failed(`the connection was cut: ${why === "" ? "no reason was given" : why}`));
    }
  }

  #answered(id: number, stream: Stream, kind: string, payload: Uint8Array): void {
    if (kind === "o") {
      stream.isOpen = true;
      stream.opened();
      return;
    }
    const why = text(payload);
    const message = why === "closed" ? "nothing listens on that port" : `the connection was refused: ${why}`;
    stream.opened(new ConnectionError({ code: "tunnel_refused", message, details: { reason: why } }));
    this.#all.delete(id);
  }

  #incoming(id: number, stream: Stream, payload: Uint8Array): void {
    if (stream.isReadOver) return;
    if (stream.unread() + payload.length > MAX_UNREAD) {
      this.#send("c", id);
      this.#lose(id, failed("too much of the connection was left unread"));
      return;
    }
    stream.incoming.enqueue(payload);
  }

  #endReading(stream: Stream): void {
    if (stream.isReadOver) return;
    stream.isReadOver = true;
    stream.incoming.close();
  }

  #lose(id: number, error: RuntimeError): void {
    const stream = this.#all.get(id);
    if (stream === undefined) return;
    this.#all.delete(id);
    stream.broken ??= error;
    if (!stream.isOpen) stream.opened(error);
    if (!stream.isReadOver) {
      stream.isReadOver = true;
      stream.incoming.error(error);
    }
    this.#wake();
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const go of waiting) go();
  }

  #broke(message: string): void {
    this.#channel?.close();
    this.ended(failed(message));
  }

  #send(kind: string, id: number, payload: Uint8Array = new Uint8Array()): void {
    const frame = new Uint8Array(HEAD + payload.length);
    frame[0] = kind.charCodeAt(0);
    new DataView(frame.buffer).setUint32(1, id);
    frame.set(payload, HEAD);
    this.#channel?.send(frame);
  }
}

/** @internal */
export async function openTunnel(place: Place, options: { signal?: AbortSignal | undefined }): Promise<Tunnel> {
  const streams = new Streams();
  const channel = await openChannel(place.transport, {
    path: path("sandboxes", place.sandboxId, "tunnel"),
    signal: options.signal,
    refusedCode: "tunnel_refused",
    onBytes: (frame) => {
      streams.take(frame);
    },
    onMessage: () => undefined,
    onEnd: (error) => {
      streams.ended(error ?? failed("the server closed the tunnel"));
    },
  });
  streams.carriedBy(channel);
  return new Tunnel(streams);
}

function failed(message: string): RuntimeError {
  return new ConnectionError({ code: "tunnel_failed", message });
}
