import { request } from "node:http";
import { beforeAll, expect, inject, test } from "vitest";

import { InvalidRequestError, NotFoundError, type Sandbox } from "../../src/index.js";
import { box, failure } from "../support/runtime.js";

let sandbox: Sandbox;
beforeAll(async () => {
  sandbox = await box();
  await sandbox.files.write("/workspace/site/index.html", "from inside");
  const server = await sandbox.spawn(["python3", "-u", "-m", "http.server", "8000", "-d", "/workspace/site"]);
  for await (const event of server.output()) if (event.type === "stdout" || event.type === "stderr") break;
});

/** The address's name need not resolve here: it is said to the server as a browser says it. */
async function visit(url: string, token?: string | null): Promise<[number, string]> {
  const { host, pathname, search } = new URL(url);
  const { hostname, port } = new URL(inject("url"));
  const headers = { host, ...(token ? { "x-runtime-preview-token": token } : {}) };
  return await new Promise((resolve, reject) => {
    const asked = request({ hostname, port, path: pathname + search, headers }, (answer) => {
      let body = "";
      answer.on("data", (piece: Buffer) => (body += piece.toString()));
      answer.on("end", () => {
        resolve([answer.statusCode ?? 0, body]);
      });
      answer.on("error", reject);
    });
    asked.on("error", reject);
    asked.end();
  });
}

test("a port is shared, its token replaced, opened to all and taken back", async () => {
  const made = await sandbox.previews.create(8000, { ttlSeconds: 600 });
  expect(made).toMatchObject({ sandboxId: sandbox.id, port: 8000, visibility: "private", embedOrigins: null });
  expect((await visit(made.url))[0]).toBe(401);
  expect(await visit(made.url, made.token)).toEqual([200, "from inside"]);
  expect(await visit(made.urlWithToken ?? "")).toEqual([200, "from inside"]);
  expect((await sandbox.previews.list()).map(({ id }) => id)).toEqual([made.id]);

  const rotated = await sandbox.previews.rotate(8000);
  expect((await visit(made.url, made.token))[0]).toBe(401);
  expect((await visit(made.url, rotated.token))[0]).toBe(200);
  const expiresAt = new Date(Date.now() + 90_000).toISOString();
  const bounded = await sandbox.previews.get(8000, { expiresAt });
  expect(Date.parse(bounded.tokenExpiresAt ?? "")).toBeLessThanOrEqual(Date.parse(expiresAt));

  const open = await sandbox.previews.create(8000, { visibility: "public", embedOrigins: ["https://a.example"] });
  expect(open).toMatchObject({ token: null, urlWithToken: null, embedOrigins: ["https://a.example"] });
  expect(await visit(made.url)).toEqual([200, "from inside"]);
  expect((await sandbox.previews.create(8000, { embedOrigins: null })).embedOrigins).toBeNull();
  expect(await sandbox.previews.delete(8000)).toMatchObject({ id: made.id, deleted: true });
  expect((await visit(made.url))[0]).toBe(404);
  await failure(sandbox.previews.get(8000), NotFoundError);
  await failure(sandbox.previews.create(10_800), InvalidRequestError);
});
