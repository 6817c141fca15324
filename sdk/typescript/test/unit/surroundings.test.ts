import { createHash } from "node:crypto";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { Runtime, RuntimeError } from "../../src/index.js";
import { chooseProxy } from "../../src/transport/proxy.js";
import { savedKey } from "../../src/transport/saved.js";

const ORIGIN = "https://runtime.example.com";

test("a proxy is chosen by its variables, and named without its password", () => {
  const choose = (variables: Record<string, string>, origin = ORIGIN) => chooseProxy(origin, (name) => variables[name]);
  const proxy = { name: "http://proxy:3128", authorization: undefined };
  expect(choose({})).toBeUndefined();
  expect(choose({ HTTPS_PROXY: "http://proxy:3128" })).toEqual(proxy);
  expect(choose({ HTTPS_PROXY: "proxy:3128" })).toEqual(proxy);
  expect(choose({ HTTPS_PROXY: "http://other", https_proxy: "http://proxy:3128" })).toEqual(proxy);
  expect(choose({ HTTPS_PROXY: "http://u:p%40ss@proxy:3128" })).toEqual({
    name: "http://proxy:3128",
    authorization: `Basic ${Buffer.from("u:p@ss").toString("base64")}`,
  });
  // What is on this machine is not asked of a proxy.
  expect(choose({ HTTPS_PROXY: "http://proxy", HTTP_PROXY: "http://proxy" }, "http://127.0.0.1:8787")).toBeUndefined();
  for (const rule of ["*", "example.com", ".example.com", "*.example.com", "a, runtime.example.com:443 ,b"]) {
    expect(choose({ HTTPS_PROXY: "http://proxy", NO_PROXY: rule }), rule).toBeUndefined();
  }
  for (const rule of ["", "ample.com", "example.com:8443", "example.org", "x.runtime.example.com"]) {
    expect(choose({ HTTPS_PROXY: "http://proxy:3128", no_proxy: rule }), rule).toEqual(proxy);
  }
  for (const address of ["socks5://u:secret@proxy:1080", "http://"]) {
    const wrong = () => choose({ HTTPS_PROXY: address });
    expect(wrong).toThrow(RuntimeError);
    expect(wrong).toThrow(
      expect.objectContaining({ code: "invalid_proxy", message: expect.not.stringContaining("secret") as string }),
    );
  }
});

test("old names lead to the same", () => {
  const runtime = new Runtime({ apiKey: "k", baseUrl: ORIGIN });
  /* eslint-disable @typescript-eslint/no-deprecated */
  expect(runtime.sandbox).toBe(runtime.sandboxes);
  expect(runtime.snapshot).toBe(runtime.snapshots);
  /* eslint-enable @typescript-eslint/no-deprecated */
});

let home: string;

beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "withruntime-home-"));
  vi.stubEnv("XDG_CONFIG_HOME", home);
  vi.stubEnv("RUNTIME_API_KEY", "");
});

afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(home, { recursive: true, force: true });
});

test("a saved login is used where no key was given, and only one that nobody else could have written", async () => {
  const key = `rtcloud_${"0".repeat(8)}-0000-4000-8000-${"0".repeat(12)}_${"k".repeat(43)}`;
  const name = `${createHash("sha256").update(`https://withruntime.com\n${ORIGIN}`).digest("hex")}.json`;
  const file = join(home, "runtime-cloud", name);
  const save = (content: object, mode = 0o600) => {
    rmSync(file, { force: true });
    writeFileSync(file, JSON.stringify(content), { mode });
  };
  mkdirSync(join(home, "runtime-cloud"));
  expect(savedKey(ORIGIN)).toBeUndefined();
  const good = { version: 1, apiOrigin: ORIGIN, key };
  save(good);
  expect(savedKey(ORIGIN)).toBe(key);
  expect(savedKey("https://other.example.com")).toBeUndefined();
  const sent: unknown[] = [];
  const fetch = (_url: unknown, init?: RequestInit) => {
    sent.push((init?.headers as Record<string, string>)["authorization"]);
    return Promise.resolve(new Response("{}"));
  };
  await new Runtime({ baseUrl: ORIGIN, fetch }).me();
  await new Runtime({ baseUrl: ORIGIN, fetch, apiKey: "given" }).me();
  expect(sent).toEqual([`Bearer ${key}`, "Bearer given"]);

  chmodSync(file, 0o644);
  expect(savedKey(ORIGIN)).toBeUndefined();
  for (const bad of [
    { ...good, version: 2 },
    { ...good, apiOrigin: "x" },
    { ...good, key: "k" },
    { ...good, pad: "x".repeat(4096) },
  ]) {
    save(bad);
    expect(savedKey(ORIGIN)).toBeUndefined();
  }
  save(good);
  symlinkSync(file, `${file}.link`);
  rmSync(file);
  writeFileSync(`${file}.real`, JSON.stringify(good), { mode: 0o600 });
  symlinkSync(`${file}.real`, file);
  expect(savedKey(ORIGIN)).toBeUndefined();
});
