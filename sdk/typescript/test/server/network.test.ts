import { expect, test } from "vitest";

import { InvalidRequestError } from "../../src/index.js";
import { box, failure } from "../support/runtime.js";

test("rules are read, replaced, and in force when they were set", async () => {
  const sandbox = await box({ network: { internet: true, allow: ["example.com", "*.example.com"] } });
  const { network } = sandbox;
  expect(await network.get()).toMatchObject({
    sandboxId: sandbox.id,
    internet: true,
    allow: ["example.com", "*.example.com"],
    deny: [],
    connect: [],
    enforced: true,
  });
  const { version } = await network.get();
  const set = await network.set({ internet: true, deny: ["203.0.113.0/24"] });
  expect(set).toMatchObject({ allow: [], deny: ["203.0.113.0/24"], enforced: true });
  expect(set.version).toBeGreaterThan(version);
  expect(await network.on()).toMatchObject({ internet: true, deny: [] });
  expect(await network.off()).toMatchObject({ internet: false, enforced: true });
  await sandbox.update({ network: { internet: true, allow: ["192.0.2.1"] } });
  expect(await network.get()).toMatchObject({ internet: true, allow: ["192.0.2.1"] });
  const wrong = await failure(network.set({ internet: true, allow: ["https://example.com/"] }), InvalidRequestError);
  expect(wrong.code).toBe("invalid_request");
  expect(wrong.details?.["issues"]).toBeTruthy();
});

test("what was decided about connections can be read, page by page", async () => {
  const sandbox = await box({ network: { internet: false } });
  const ask = 'for i in 1 2 3; do curl -s -o /dev/null --max-time 10 "http://192.0.2.$i/"; done; true';
  await sandbox.exec(ask, { check: true, timeoutMs: 40_000 });
  const decided = await sandbox.network.decisions({ limit: 2 });
  expect(decided.data).toHaveLength(2);
  expect(decided.hasMore).toBe(true);
  const all = await sandbox.network.decisions({ limit: 2 }).toArray();
  expect(all.map(({ host }) => host)).toEqual(["192.0.2.3", "192.0.2.2", "192.0.2.1"]);
  expect(all[0]).toMatchObject({ verdict: "refused", reason: "internet-off", port: 80, process: { program: "curl" } });
});
