import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { beforeAll, describe, expect, inject, test } from "vitest";

import {
  AuthenticationError,
  InvalidRequestError,
  PermissionDeniedError,
  Sandbox,
  type NewSession,
} from "../../src/index.js";
import { chromium, Page } from "../support/browser.js";
import { browserBundle } from "../support/bundle.js";
import { FaultyProxy } from "../support/faulty-proxy.js";
import { box, client, failure } from "../support/runtime.js";

let sandbox: Sandbox;
beforeAll(async () => {
  sandbox = await box();
});

function enter({ token, sandboxId, apiUrl }: NewSession): Sandbox {
  return Sandbox.fromSession({ token, sandboxId, apiUrl });
}

test("a session reaches what runs in its sandbox and its files, until it is revoked", async () => {
  const session = await sandbox.sessions.create({ ttlSeconds: 120, name: "page" });
  expect(session).toMatchObject({ sandboxId: sandbox.id, name: "page", origins: [], state: "active", revokedAt: null });
  expect(session.token).toMatch(/^rtsess_/);
  expect(session.apiUrl).toBe(inject("url"));
  expect(Date.parse(session.expiresAt) - Date.parse(session.createdAt)).toBe(120_000);

  await using inside = enter(session);
  expect(JSON.parse(JSON.stringify(inside))).toEqual({ id: sandbox.id });
  expect(() => inside.state).toThrow(InvalidRequestError);
  expect((await inside.exec("echo in")).stdout).toBe("in\n");
  await inside.files.write("/workspace/by-session", new Uint8Array(1_500_000));
  expect((await inside.files.stat("/workspace/by-session")).exists).toBe(true);
  const process = await inside.spawn(["cat"], { stdin: "pipe" });
  await process.write("typed", { eof: true });
  expect((await process.wait()).stdout).toBe("typed");
  expect((await inside.refresh()).state).toBe("running");

  for (const forbidden of [
    inside.stop(),
    inside.delete(),
    inside.snapshot(),
    inside.network.get(),
    inside.sessions.list(),
    inside.terminal(),
    Sandbox.list({}, { client: client({ apiKey: session.token }) }),
  ]) {
    expect(await failure(Promise.resolve(forbidden), PermissionDeniedError)).toMatchObject({ code: "forbidden" });
  }

  const listed = await sandbox.sessions.list();
  expect(listed[0]).toMatchObject({ id: session.id, state: "active" });
  expect(listed[0]).not.toHaveProperty("token");
  expect(await sandbox.sessions.revoke(session.id)).toMatchObject({ id: session.id, state: "revoked" });
  expect(await sandbox.sessions.revoke(session.id)).toMatchObject({ state: "revoked" });
  expect(await failure(inside.exec("true"), AuthenticationError)).toMatchObject({ code: "unauthorized" });
});

test("the end of a block does nothing to the sandbox of a session", async () => {
  const session = await sandbox.sessions.create();
  {
    await using inside = enter(session);
    await inside.refresh();
  }
  expect((await sandbox.refresh()).state).toBe("running");
});

test("a session whose answer was lost is revoked, and another is made", async () => {
  await using proxy = await FaultyProxy.start(inject("url"));
  const through = await client({ baseUrl: proxy.url }).sandboxes.get(sandbox.id);
  proxy.on("/sessions", (nth) => (nth === 0 ? { kind: "lose-answer" } : undefined));
  const session = await through.sessions.create({ name: "lost" }, { idempotencyKey: `lost-${crypto.randomUUID()}` });
  expect((await enter({ ...session, apiUrl: inject("url") }).exec("true")).exitCode).toBe(0);
  const made = (await sandbox.sessions.list()).filter(({ name }) => name === "lost");
  expect(made.map(({ id, state }) => [id === session.id, state])).toEqual([
    [true, "active"],
    [false, "revoked"],
  ]);
});

test("origins that no browser writes are refused", async () => {
  for (const origin of ["*", "https://example.com/", "http://example.com"]) {
    const error = await failure(sandbox.sessions.create({ origins: [origin] }), InvalidRequestError);
    expect(error.code).toBe("invalid_request");
  }
});

if (chromium === undefined) console.warn("there is no chromium: pages are not tried in a browser");

describe.skipIf(chromium === undefined)("in a browser", () => {
  let library: string;
  beforeAll(async () => {
    const entry = fileURLToPath(new URL("../../dist/index.js", import.meta.url));
    if (!existsSync(entry)) throw new Error("npm run build first");
    library = (await browserBundle(entry)).code;
  });

  const use = `
    const sandbox = withruntime.Sandbox.fromSession(given);
    const { stdout } = await sandbox.exec("echo from a page; cat > typed", { stdin: "ü€" });
    const events = [];
    for await (const event of sandbox.execStream("echo one; echo two >&2")) events.push(event.type);
    const typed = await sandbox.files.readText("/workspace/typed");
    const large = crypto.getRandomValues(new Uint8Array(60_000));
    await sandbox.files.write("/workspace/large", new Blob(Array.from({ length: 40 }, () => large)));
    const back = await sandbox.files.read("/workspace/large");
    await sandbox.files.writeStream("/workspace/streamed", new Blob(Array.from({ length: 40 }, () => large)).stream());
    const same = (await sandbox.exec("cmp large streamed && echo same")).stdout;
    const missing = await sandbox.files.read("/workspace/none").catch((error) => error.code);
    const forbidden = await sandbox.stop().catch((error) => error.code);
    const socket = await sandbox.terminal().catch((error) => error.code);
    return { stdout, events: events.sort(), typed, length: back.length, same, missing, forbidden, socket };`;

  test("a page of the session's origin runs commands and reads and writes files", async () => {
    await using page = await Page.serve(library);
    const session = await sandbox.sessions.create({ origins: [page.origin] });
    expect(await page.run(use, session)).toEqual({
      stdout: "from a page\n",
      events: ["exit", "start", "stderr", "stdout"],
      typed: "ü€",
      length: 2_400_000,
      same: "same\n",
      missing: "file_not_found",
      forbidden: "forbidden",
      socket: "unsupported",
    });
  });

  test("a page of any other origin is refused, with a token that is good", async () => {
    await using page = await Page.serve(library);
    const session = await sandbox.sessions.create({ origins: ["https://example.com", "http://localhost:1"] });
    const steal = `
      const sandbox = withruntime.Sandbox.fromSession(given);
      return await sandbox.exec("touch stolen").then(() => "ran", (error) => error.code);`;
    expect(await page.run(steal, session)).toBe("connection_error");
    expect(await sandbox.files.exists("/workspace/stolen")).toBe(false);
    // The same token where nobody says which page asks.
    expect((await enter(session).exec("true")).exitCode).toBe(0);
  });
});
