/** A proxy between a client and the real server that loses, cuts, delays and repeats what passes through it. */

import { createServer, request, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export type Fault =
  /** The request never arrives. */
  | { kind: "lose-request" }
  /** The request takes effect, its answer never arrives. */
  | { kind: "lose-answer" }
  /** The request arrives twice; the second answer comes back. */
  | { kind: "deliver-twice" }
  /** The answer's body is cut after so many bytes. */
  | { kind: "cut"; afterBytes: number }
  /** As `cut`, but the body ends as if it were whole. */
  | { kind: "end"; afterBytes: number }
  /** The answer waits this long. */
  | { kind: "delay"; ms: number }
  /** Nothing ever comes back. */
  | { kind: "hang" }
  /** Another answer, without the server being asked. */
  | { kind: "answer"; status: number; body: unknown; headers?: Record<string, string> };

/** A request that passed, and what was done to it. */
export interface Passed {
  method: string;
  url: string;
  key: string | undefined;
  fault: Fault["kind"] | undefined;
}

type Choose = (request: Passed, nth: number) => Fault | undefined;

export class FaultyProxy implements AsyncDisposable {
  readonly passed: Passed[] = [];
  readonly #server: Server;
  readonly #target: URL;
  #choose: Choose = () => undefined;

  private constructor(target: string) {
    this.#target = new URL(target);
    this.#server = createServer((incoming, outgoing) => {
      this.#pass(incoming, outgoing).catch(() => outgoing.destroy());
    });
  }

  static async start(target: string): Promise<FaultyProxy> {
    const proxy = new FaultyProxy(target);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${String((this.#server.address() as AddressInfo).port)}`;
  }

  /** `choose` is asked for each request that contains `part` in its URL, with how many of those came before. */
  on(part: string, choose: (nth: number, request: Passed) => Fault | undefined): void {
    let nth = 0;
    this.passed.length = 0;
    this.#choose = (request) => (request.url.includes(part) ? choose(nth++, request) : undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #pass(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    const body = await all(incoming);
    const { method = "", url = "", headers } = incoming;
    const passed: Passed = { method, url, key: headers["idempotency-key"] as string | undefined, fault: undefined };
    const fault = this.#choose(passed, this.passed.length);
    passed.fault = fault?.kind;
    this.passed.push(passed);
    switch (fault?.kind) {
      case "lose-request":
        outgoing.destroy();
        return;
      case "hang":
        return;
      case "answer":
        outgoing.writeHead(fault.status, { "content-type": "application/json", ...fault.headers });
        outgoing.end(JSON.stringify(fault.body));
        return;
      case "lose-answer":
        await all(await this.#forward(incoming, body));
        outgoing.destroy();
        return;
      case "deliver-twice":
        await all(await this.#forward(incoming, body));
        break;
      case "delay":
        await new Promise((resolve) => setTimeout(resolve, fault.ms));
        break;
      default:
    }
    const answer = await this.#forward(incoming, body);
    outgoing.on("close", () => answer.destroy());
    outgoing.writeHead(answer.statusCode ?? 500, answer.headers);
    let left = fault?.kind === "cut" || fault?.kind === "end" ? fault.afterBytes : Infinity;
    for await (const piece of answer as AsyncIterable<Buffer>) {
      outgoing.write(piece.subarray(0, left));
      left -= piece.length;
      if (left <= 0) {
        // What was written must be on its way before the connection goes.
        await new Promise((resolve) => setTimeout(resolve, 20));
        if (fault?.kind === "cut") outgoing.destroy();
        break;
      }
    }
    outgoing.end();
  }

  #forward(incoming: IncomingMessage, body: Buffer): Promise<IncomingMessage> {
    const { method, url, headers } = incoming;
    const { hostname, port } = this.#target;
    return new Promise((resolve, reject) => {
      const onward = request({ hostname, port, method, path: url, headers: { ...headers, host: this.#target.host } });
      onward.on("response", resolve);
      onward.on("error", reject);
      onward.end(body);
    });
  }
}

async function all(stream: IncomingMessage): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of stream as AsyncIterable<Buffer>) pieces.push(piece);
  return Buffer.concat(pieces);
}
