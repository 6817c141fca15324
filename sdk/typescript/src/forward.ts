/**
 * A port here that leads to a port of a sandbox. Only where programs may listen: Node.js and Bun.
 */

import type { Place } from "./commands/exec.js";
import { RuntimeError } from "./errors.js";
import { builtin } from "./transport/environment.js";
import { openTunnel, type Tunnel, type TunnelConnection } from "./tunnel.js";

/** How {@link Sandbox.forwardPort} listens. */
export interface ForwardOptions {
  /** 0: any that is free. Default: the same as in the sandbox. */
  localPort?: number | undefined;
  /** Default `127.0.0.1`. */
  host?: string | undefined;
  /** Told of a connection that did not come to be. */
  onError?: ((error: unknown) => void) | undefined;
  signal?: AbortSignal | undefined;
}

/** What is used of Node's sockets and servers. */
interface Local {
  on: (event: string, listener: (...args: never[]) => void) => unknown;
  write: (bytes: Uint8Array, done: (error?: Error | null) => void) => boolean;
  end: () => unknown;
  destroy: () => unknown;
  [Symbol.asyncIterator]: () => AsyncIterator<Uint8Array>;
}
interface Server {
  on: (event: string, listener: (...args: never[]) => void) => unknown;
  listen: (port: number, host: string, done: () => void) => unknown;
  address: () => { port: number } | string | null;
  close: (done: () => void) => unknown;
}
interface Net {
  createServer: (options: { allowHalfOpen: boolean }, onConnection: (socket: Local) => void) => Server;
}

/** A port here that leads into a sandbox, until it is closed. */
export class PortForward implements AsyncDisposable {
  /** The address that it listens on. */
  readonly host: string;
  /** The port that it listens on. */
  readonly localPort: number;
  /** The port of the sandbox. */
  readonly port: number;
  readonly #close: () => Promise<void>;

  /** @internal */
  constructor(facts: { host: string; localPort: number; port: number }, close: () => Promise<void>) {
    this.host = facts.host;
    this.localPort = facts.localPort;
    this.port = facts.port;
    this.#close = close;
  }

  /** Listens no more, and cuts the connections. */
  async close(): Promise<void> {
    await this.#close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** @internal */
export async function forwardPort(place: Place, port: number, options: ForwardOptions): Promise<PortForward> {
  const { localPort = port, host = "127.0.0.1", onError, signal } = options;
  const net = builtin("node:net") as Net | undefined;
  if (net === undefined) {
    throw new RuntimeError({
      code: "unsupported",
      message: "a port can be listened on in Node.js and Bun only",
      hint: "Sandbox.tunnel connects without one.",
    });
  }
  const tunnels = new Tunnels(place, await openTunnel(place, { signal }));
  const open = new Set<Local>();
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    open.add(socket);
    socket.on("close", () => open.delete(socket));
    socket.on("error", () => socket.destroy());
    void tunnels.connect(port).then(
      (connection) => {
        join(socket, connection);
      },
      (error: unknown) => {
        socket.destroy();
        onError?.(error);
      },
    );
  });
  try {
    await new Promise<void>((resolve, reject) => {
      server.on("error", reject);
      server.listen(localPort, host, resolve);
    });
  } catch (cause) {
    tunnels.close();
    const message = `cannot listen on ${host} port ${String(localPort)}: ${(cause as Error).message}`;
    throw new RuntimeError({ code: "tunnel_failed", message, hint: "localPort: 0 takes any that is free.", cause });
  }
  const address = server.address();
  const found = typeof address === "object" && address !== null ? address.port : localPort;
  return new PortForward({ host, localPort: found, port }, async () => {
    const closed = new Promise<void>((resolve) => server.close(resolve));
    for (const socket of open) socket.destroy();
    tunnels.close();
    await closed;
  });
}

/** The tunnel in use; when it has ended, the next connection opens another. */
class Tunnels {
  readonly #place: Place;
  #current: Promise<Tunnel> | undefined;
  #isClosed = false;

  constructor(place: Place, first: Tunnel) {
    this.#place = place;
    void this.#use(Promise.resolve(first));
  }

  async connect(port: number): Promise<TunnelConnection> {
    return await (await (this.#current ?? this.#use(openTunnel(this.#place, {})))).connect(port);
  }

  close(): void {
    this.#isClosed = true;
    this.#current
      ?.then((tunnel) => {
        tunnel.close();
      })
      .catch(() => undefined);
  }

  #use(opening: Promise<Tunnel>): Promise<Tunnel> {
    this.#current = opening;
    const over = (): void => {
      if (this.#current === opening) this.#current = undefined;
    };
    opening
      .then((tunnel) => {
        if (this.#isClosed) tunnel.close();
        return tunnel.closed;
      })
      .finally(over)
      .catch(() => undefined);
    return opening;
  }
}

/** Carries both ways until both have ended. */
function join(socket: Local, connection: TunnelConnection): void {
  const out = async (): Promise<void> => {
    for await (const piece of socket as AsyncIterable<Uint8Array>) await connection.write(piece);
    connection.end();
  };
  const back = async (): Promise<void> => {
    const reader = connection.readable.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      await new Promise<void>((resolve, reject) => {
        socket.write(value, (error) => {
          if (error == null) resolve();
          else reject(error);
        });
      });
    }
    socket.end();
  };
  const cut = (): void => {
    connection.close();
    socket.destroy();
  };
  out().catch(cut);
  back().catch(cut);
}
