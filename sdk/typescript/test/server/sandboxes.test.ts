import { inject, describe, expect, test, vi } from "vitest";

import { ConflictError, InvalidRequestError, NotFoundError, Runtime, RuntimeError, Sandbox } from "../../src/index.js";
import { box, client, failure, unique } from "../support/runtime.js";

const small = { vcpu: 1, memoryMiB: 512 };

/** What the server under test serves, by its own word. */
async function serves(path: string): Promise<boolean> {
  const answer = await fetch(`${inject("url")}/v1/openapi.json`);
  return path in ((await answer.json()) as { paths: Record<string, unknown> }).paths;
}

test("a sandbox from its making to its end", async () => {
  const name = unique("life");
  const sandbox = await box({
    name,
    labels: { a: "b:c" },
    env: { GREETING: "hi" },
    timeoutSeconds: 600,
    onTimeout: "stop",
  });
  expect(sandbox.state).toBe("running");
  expect(sandbox.info).toMatchObject({
    ...small,
    name,
    labels: { a: "b:c" },
    timeoutSeconds: 600,
    onTimeout: "stop",
    envNames: ["GREETING"],
    idlePauseSeconds: 300,
  });
  expect(JSON.parse(JSON.stringify(sandbox))).toEqual(sandbox.info);

  const ends = Date.parse(sandbox.info.endsAt ?? "");
  await sandbox.extend(60);
  expect(Date.parse(sandbox.info.endsAt ?? "")).toBeGreaterThan(ends);

  await sandbox.update({ labels: { c: "d" }, env: { GREETING: null, OTHER: "yes" }, timeoutSeconds: 0, name: null });
  expect(sandbox.info).toMatchObject({ labels: { c: "d" }, envNames: ["OTHER"], endsAt: null, name: null });
  await sandbox.setRetention(3);

  await sandbox.files.write("/workspace/kept", "still here");
  expect((await sandbox.stop()).state).toBe("stopped");
  expect(sandbox.info).toMatchObject({ stopReason: "requested", diskKept: true });
  expect(await failure(sandbox.exec("true"), ConflictError)).toMatchObject({ code: "sandbox_stopped" });
  expect((await sandbox.stop()).state).toBe("stopped");
  expect((await sandbox.restart()).state).toBe("running");
  expect(await sandbox.files.readText("/workspace/kept")).toBe("still here");

  expect(await sandbox.delete()).toMatchObject({ id: sandbox.id, status: "deleted" });
  expect(await sandbox.delete()).toMatchObject({ id: sandbox.id, status: "deleted" });
  expect(await failure(sandbox.refresh(), NotFoundError)).toMatchObject({ code: "not_found", status: 404 });
});

test("another size keeps the disk, and needs a restart", async () => {
  const sandbox = await box();
  await sandbox.files.write("/workspace/kept", "x");
  const { vcpu } = sandbox.info;
  const memoryMiB = sandbox.info.memoryMiB + 256;
  const refused = await failure(sandbox.resize({ memoryMiB }, { restart: false }), ConflictError);
  expect(refused.code).toBe("resize_needs_restart");
  await sandbox.resize({ memoryMiB });
  expect(sandbox.info).toMatchObject({ memoryMiB, vcpu, state: "running" });
  expect(await sandbox.files.readText("/workspace/kept")).toBe("x");
  const smaller = await failure(sandbox.resize({ diskMiB: sandbox.info.diskMiB - 1 }), RuntimeError);
  expect(smaller.code).toBe("disk_too_small");
});

test("waking what is awake is no error, unless a new limit was asked for", async () => {
  const sandbox = await box();
  expect((await sandbox.wake()).state).toBe("running");
  expect(await failure(sandbox.wake({ timeoutSeconds: 60 }), ConflictError)).toMatchObject({ code: "not_paused" });
});

test("pause keeps the memory, where the server has it; elsewhere it says that it has not", async () => {
  const sandbox = await box();
  if (!(await serves("/v1/sandboxes/{id}:pause"))) {
    const error = await failure(sandbox.pause(), RuntimeError);
    expect(error).toMatchObject({ code: "unavailable", status: 501, retryable: false });
    expect(error.hint).toBeTruthy();
    return;
  }
  const counter = await sandbox.spawn("i=0; while :; do i=$((i+1)); echo $i > /workspace/i; sleep 0.2; done");
  expect((await sandbox.pause()).state).toBe("paused");
  expect((await sandbox.wake()).state).toBe("running");
  expect((await counter.refresh()).state).toBe("running");
  await sandbox.pause();
  expect((await sandbox.exec("echo awake")).stdout).toBe("awake\n");
});

describe("names", () => {
  test("are found again", async () => {
    const runtime = client();
    const name = unique("named");
    const first = await runtime.sandboxes.getOrCreate(name, { ...small, labels: { n: "1" } });
    const again = await runtime.sandboxes.getOrCreate(name, { vcpu: 2 });
    expect(again.id).toBe(first.id);
    expect(again.info).toMatchObject({ reused: true, vcpu: 1 });
    const taken = await failure(runtime.sandboxes.create({ ...small, name }), ConflictError);
    expect(taken).toMatchObject({ code: "name_taken", details: { sandboxId: first.id } });

    await first.stop();
    const restarted = await runtime.sandboxes.getOrCreate(name, {});
    expect(restarted).toMatchObject({ id: first.id, state: "running" });
    await first.delete();
  });

  test("are settled between two that race", async () => {
    const name = unique("race");
    const both = await Promise.all([1, 2, 3].map(() => client().sandboxes.getOrCreate(name, small)));
    expect(new Set(both.map(({ id }) => id)).size).toBe(1);
    await both[0]?.delete();
  });
});

describe("keys of idempotency", () => {
  test("make one sandbox, and refuse another request", async () => {
    const runtime = client();
    const idempotencyKey = unique("event");
    const first = await runtime.sandboxes.create(small, { idempotencyKey });
    const again = await runtime.sandboxes.create(small, { idempotencyKey });
    expect(again.id).toBe(first.id);
    expect(again.info.replayed).toBe(true);
    const other = await failure(
      runtime.sandboxes.create({ ...small, vcpu: 2 }, { idempotencyKey }),
      InvalidRequestError,
    );
    expect(other).toMatchObject({ code: "idempotency_key_reused", status: 422, idempotencyKey });

    await first.stop();
    const stopped = await failure(runtime.sandboxes.create(small, { idempotencyKey }), RuntimeError);
    expect(stopped).toMatchObject({ code: "start_failed", details: { sandboxId: first.id, replayed: true } });
    await first.delete();
  });

  test("of a wrong shape are refused before anything is sent", async () => {
    const wrong = client().sandboxes.create(small, { idempotencyKey: "no blanks" });
    expect(await failure(wrong, InvalidRequestError)).toMatchObject({ code: "invalid_request", status: 0 });
  });
});

/** What `await using` does at the end of its block, which Node 20 cannot say itself. */
const endOfBlock = async (sandbox: Sandbox): Promise<void> => {
  await sandbox[Symbol.asyncDispose]();
};

describe("the end of a block", () => {
  test("deletes what was made in it", async () => {
    const sandbox = await client().sandboxes.create(small);
    await endOfBlock(sandbox);
    expect(await failure(client().sandboxes.get(sandbox.id), NotFoundError)).toMatchObject({ code: "not_found" });
  });

  test("stops what is to be kept, what was found and what was there before", async () => {
    const runtime = client();
    const name = unique("kept");
    const kept = await runtime.sandboxes.create({ ...small, name, keep: true });
    await endOfBlock(kept);
    expect((await kept.waitFor("stopped")).state).toBe("stopped");
    await endOfBlock(await runtime.sandboxes.getOrCreate(name));
    expect((await kept.waitFor("stopped")).state).toBe("stopped");
    await kept.restart();
    await endOfBlock(await Sandbox.connect(kept.id, { client: runtime }));
    expect((await kept.waitFor("stopped")).state).toBe("stopped");
    await kept.delete();
  });
});

describe("lists", () => {
  test("come in pages, filtered, oldest first", async () => {
    const runtime = client();
    const labels = { list: unique("l") };
    const made = await Promise.all(
      [1, 2, 3].map((n) => runtime.sandboxes.create({ ...small, labels: { ...labels, n: String(n) } })),
    );
    const ids = new Set(made.map(({ id }) => id));

    const page = await runtime.sandboxes.list({ labels, limit: 2 });
    expect(page.data).toHaveLength(2);
    expect(page.hasMore).toBe(true);
    const all = await runtime.sandboxes.list({ labels, limit: 2 }).toArray();
    expect(new Set(all.map(({ id }) => id))).toEqual(ids);
    expect(all.map(({ info }) => info.createdAt)).toEqual(all.map(({ info }) => info.createdAt).sort());
    const two = [];
    for await (const one of Sandbox.list({ labels: { ...labels, n: "2" } }, { client: runtime })) two.push(one.id);
    expect(two).toEqual(made.filter(({ info }) => info.labels["n"] === "2").map(({ id }) => id));

    const { stopped, failed } = await runtime.sandboxes.stopAll({ labels });
    expect(failed).toEqual([]);
    expect(new Set(stopped)).toEqual(ids);
    expect(await runtime.sandboxes.list({ labels, state: ["running"] }).toArray()).toEqual([]);
    const { deleted } = await runtime.sandboxes.deleteAll({ labels });
    expect(new Set(deleted)).toEqual(ids);
    expect(await runtime.sandboxes.list({ labels, includeStopped: true }).toArray()).toEqual([]);
  });

  test("without a label are not stopped as a whole", async () => {
    const error = await failure(client().sandboxes.stopAll({ labels: {} }), InvalidRequestError);
    expect(error.code).toBe("invalid_request");
  });
});

describe("wrong requests", () => {
  test("name every wrong field", async () => {
    const wrong = { vcpu: 0, memoryMb: 5 } as object;
    const error = await failure(client().sandboxes.create(wrong), InvalidRequestError);
    expect(error).toMatchObject({ code: "invalid_request", status: 400 });
    expect(error.requestId).toMatch(/^req_/);
    const issues = (error.details?.["issues"] ?? []) as { path: string }[];
    expect(issues.map(({ path }) => path).sort()).toEqual(["memoryMb", "vcpu"]);
  });

  test("for the internet are refused by a server that has no way to it", async () => {
    if (await serves("/v1/sandboxes/{id}/network")) return;
    const error = await failure(client().sandboxes.create({ ...small, network: { internet: true } }), RuntimeError);
    expect(error).toMatchObject({ code: "network_rules_unavailable", status: 501, retryable: false });
  });
});

test("a key is needed, and the right one", async () => {
  vi.stubEnv("RUNTIME_API_KEY", "");
  const none = new Runtime({ baseUrl: inject("url") });
  expect(await failure(none.me(), RuntimeError)).toMatchObject({ code: "missing_api_key", status: 0 });
  vi.unstubAllEnvs();
  const wrong = client({ apiKey: "rtcloud_wrong" });
  expect(await failure(wrong.me(), RuntimeError)).toMatchObject({
    code: "unauthorized",
    status: 401,
    name: "AuthenticationError",
  });
});

test("who the key is and what it may use", async () => {
  const runtime = client();
  expect(await runtime.me()).toMatchObject({ role: "owner" });
  const limits = await runtime.limits.get();
  expect(limits.access).toBe("full");
  expect(limits.account.length).toBeGreaterThan(0);
});

test("static methods share a client made from the environment", async () => {
  vi.stubEnv("RUNTIME_API_URL", inject("url"));
  vi.stubEnv("RUNTIME_API_KEY", inject("key"));
  const sandbox = await Sandbox.create(small);
  expect((await Sandbox.connect(sandbox.id)).id).toBe(sandbox.id);
  await sandbox.delete();
  vi.unstubAllEnvs();
});

test("keepAlive moves the end of the time before it comes", async () => {
  const sandbox = await box({ timeoutSeconds: 60 });
  const ends = Date.parse(sandbox.info.endsAt ?? "");
  const errors: unknown[] = [];
  const stop = sandbox.keepAlive({ marginSeconds: 300, onError: (error) => errors.push(error) });
  await expect.poll(() => Date.parse(sandbox.info.endsAt ?? "")).toBeGreaterThan(ends + 200_000);
  stop();
  expect(errors).toEqual([]);
});

test("routes without a method here are reached all the same", async () => {
  const answer = await client().transport.json<{ data: unknown[] }>({
    method: "GET",
    path: "/v1/sandboxes",
    query: { limit: 1 },
  });
  expect(Array.isArray(answer.data)).toBe(true);
  const error = await failure(client().transport.json({ method: "GET", path: "/v1/volumes" }), RuntimeError);
  expect(error).toMatchObject({ code: "unavailable", status: 501 });
});
