/**
 * One real server for all tests: `runtime serve` on a port of its own and a data directory in the machine's pool. With
 * RUNTIME_API_URL and RUNTIME_API_KEY set, that server is used instead. RUNTIME_TEST_ENGINE names the engine that it runs,
 * where that is not to be the server's own choice.
 */

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdirSync, openSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";

import { Runtime } from "../../src/index.js";

declare module "vitest" {
  interface ProvidedContext {
    url: string;
    key: string;
  }
}

const UP_MS = 120_000;
const DOWN_MS = 120_000;

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const { RUNTIME_API_URL: url, RUNTIME_API_KEY: key, RUNTIME_BIN: program } = process.env;
  if (url !== undefined && key !== undefined) {
    project.provide("url", url);
    project.provide("key", key);
    return () => Promise.resolve();
  }
  if (program === undefined) {
    throw new Error("set RUNTIME_BIN to the built `runtime`, or RUNTIME_API_URL and RUNTIME_API_KEY to a server");
  }
  const data = process.env["RUNTIME_TEST_DATA"] ?? `/var/lib/runtime/pool/sdk-ts-${String(process.pid)}`;
  remove(data);
  mkdirSync(data, { recursive: true });
  const log = join(tmpdir(), `sdk-ts-${String(process.pid)}.log`);
  const server = start(program, data, log);
  try {
    await until(UP_MS, () => {
      if (server.exitCode !== null) throw new Error("the server ended at its start");
      return existsSync(join(data, "address")) && existsSync(join(data, "owner.key"));
    });
  } catch (cause) {
    const said = readFileSync(log, "utf8");
    await stop(server);
    remove(data);
    throw new Error(`the server did not come up; its log:\n${said}`, { cause });
  }
  const address = readFileSync(join(data, "address"), "utf8").trim();
  const at = address.startsWith("http") ? address : `http://${address}`;
  const owner = readFileSync(join(data, "owner.key"), "utf8").trim();
  project.provide("url", at);
  project.provide("key", owner);

  return async () => {
    const runtime = new Runtime({ baseUrl: at, apiKey: owner });
    for await (const sandbox of runtime.sandboxes.list({ includeStopped: true })) await sandbox.delete();
    // A deletion is answered before it is done. What stands ready for others goes with the server.
    const spares = (): string[] => names(join(data, "spares"));
    await until(DOWN_MS, () => names(join(data, "sandboxes")).every((id) => spares().includes(id)));
    await stop(server);
    await until(DOWN_MS, () => names(join(data, "sandboxes")).length === 0);
    remove(data);
    rmSync(log, { force: true });
  };
}

function start(program: string, data: string, log: string): ChildProcess {
  const out = openSync(log, "a");
  const { RUNTIME_API_URL: _url, RUNTIME_API_KEY: _key, ...env } = process.env;
  const engine = process.env["RUNTIME_TEST_ENGINE"] ?? "auto";
  return spawn(program, ["serve", "--engine", engine, "--data-dir", data, "--listen", "127.0.0.1:0"], {
    stdio: ["ignore", out, out],
    env: { ...env, NO_PROXY: "127.0.0.1" },
  });
}

async function stop(server: ChildProcess): Promise<void> {
  if (server.exitCode !== null) return;
  const ended = new Promise((resolve) => server.once("exit", resolve));
  server.kill("SIGTERM");
  const timer = setTimeout(() => server.kill("SIGKILL"), DOWN_MS);
  await ended;
  clearTimeout(timer);
}

/** Takes a data directory away; inode 256 is the root of a btrfs subvolume, which `rm` cannot remove. */
function remove(data: string): void {
  if (!existsSync(data)) return;
  const find = [data, "-maxdepth", "4", "-depth", "-type", "d", "-inum", "256"];
  execFileSync("find", [...find, "-exec", "btrfs", "subvolume", "delete", "{}", "+"], { stdio: "ignore" });
  rmSync(data, { recursive: true, force: true });
}

function names(dir: string): string[] {
  return existsSync(dir) ? readdirSync(dir) : [];
}

async function until(ms: number, done: () => boolean): Promise<void> {
  const end = Date.now() + ms;
  while (!done()) {
    if (Date.now() > end) throw new Error(`waited ${String(ms)} ms in vain`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
