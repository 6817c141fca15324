/** A page in a real browser: served from `http://localhost`, run once, and what it found out. */

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** The browser of Debian's package `chromium`, or another by `CHROMIUM`. */
export const chromium = [process.env["CHROMIUM"], "/usr/bin/chromium"].find(
  (path) => path !== undefined && existsSync(path),
);

/** Whether pages are left out: there is no browser, and nobody said that there must be one, as CI does. */
export const isBrowserless = chromium === undefined && process.env["RUNTIME_BROWSER"] !== "required";

const ANSWER_MS = 200_000;

/** An origin of its own, that serves one script and the package. */
export class Page implements AsyncDisposable {
  readonly #server: Server;
  #script = "";
  #told: (result: unknown) => void = () => undefined;

  private constructor(library: string) {
    this.#server = createServer((request, response) => {
      if (request.method === "POST") {
        let body = "";
        request.on("data", (piece: Buffer) => (body += piece.toString()));
        request.on("end", () => {
          this.#told(JSON.parse(body));
          response.end();
        });
        return;
      }
      const [type, text] =
        request.url === "/withruntime.js"
          ? ["text/javascript", library]
          : ["text/html", `<!doctype html><meta charset="utf-8"><script type="module">${this.#script}</script>`];
      response.writeHead(200, { "content-type": type }).end(text);
    });
  }

  static async serve(library: string): Promise<Page> {
    const page = new Page(library);
    await new Promise<void>((resolve) => page.#server.listen(0, "localhost", resolve));
    return page;
  }

  get origin(): string {
    return `http://localhost:${String((this.#server.address() as AddressInfo).port)}`;
  }

  /** Opens the page with a function's body, which has `Sandbox` and `given`, and answers with what it returns. */
  async run(body: string, given: unknown): Promise<unknown> {
    this.#script = `
      import * as withruntime from "/withruntime.js";
      const play = async (withruntime, given) => {${body}};
      const result = await play(withruntime, ${JSON.stringify(given)}).catch((error) => ({ thrown: String(error), code: error.code }));
      await fetch("/result", { method: "POST", body: JSON.stringify(result ?? null) });`;
    if (chromium === undefined) throw new Error("there is no chromium, and RUNTIME_BROWSER says that it is required");
    const profile = mkdtempSync(join(tmpdir(), "withruntime-browser-"));
    const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"];
    const browser = spawn(chromium, [...flags, "--no-first-run", `--user-data-dir=${profile}`, `${this.origin}/`], {
      stdio: "ignore",
      detached: true,
    });
    try {
      return await new Promise((resolve, reject) => {
        this.#told = resolve;
        browser.on("error", reject);
        setTimeout(() => {
          reject(new Error("the page did not answer"));
        }, ANSWER_MS).unref();
      });
    } finally {
      const ended = new Promise((resolve) => browser.once("exit", resolve));
      // All its processes are of one group.
      if (browser.pid !== undefined && browser.exitCode === null) {
        process.kill(-browser.pid, "SIGKILL");
        await ended;
      }
      rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
