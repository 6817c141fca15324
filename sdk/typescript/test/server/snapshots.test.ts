import { expect, test } from "vitest";

import { ConflictError, NotFoundError, type Sandbox } from "../../src/index.js";
import { box, client, failure, unique } from "../support/runtime.js";

const runtime = client();

/** Copies go with their test. */
async function gone(...copies: Sandbox[]): Promise<void> {
  await Promise.all(copies.map((copy) => copy.delete()));
}

test("a snapshot of a sandbox that goes on, and what begins from it", async () => {
  const sandbox = await box({ labels: { app: "snap" } });
  await sandbox.files.write("/workspace/kept", "as it was");
  const clock = await sandbox.spawn("for i in $(seq 1000000); do echo $i > /workspace/count; sleep 0.05; done");
  const name = unique("snap");
  const snapshot = await sandbox.snapshot({ name, retentionDays: 7 });
  try {
    expect(snapshot).toMatchObject({
      kind: "snapshot",
      state: "ready",
      mode: "memory",
      name,
      retentionDays: 7,
      labels: { app: "snap" },
      sourceSandboxId: sandbox.id,
      shape: { vcpu: 1, memoryMiB: 512 },
    });
    expect((await sandbox.waitFor("running")).state).toBe("running");
    expect((await clock.refresh()).state).toBe("running");
    await sandbox.files.write("/workspace/kept", "changed since");

    const copy = await runtime.sandboxes.create({ snapshot: snapshot.id });
    try {
      expect(copy.info).toMatchObject({ snapshot: snapshot.id, memoryMiB: 512, labels: { app: "snap" } });
      expect(await copy.files.readText("/workspace/kept")).toBe("as it was");
      // Its programs go on, too.
      const count = await copy.files.readText("/workspace/count");
      await expect.poll(() => copy.files.readText("/workspace/count")).not.toBe(count);
    } finally {
      await gone(copy);
    }

    const { snapshots } = runtime;
    expect(await snapshots.get(snapshot.id)).toMatchObject({ id: snapshot.id, state: "ready" });
    expect((await snapshots.list({ sandboxId: sandbox.id }).toArray()).map(({ id }) => id)).toEqual([snapshot.id]);
    expect(await snapshots.list({ name }).toArray()).toHaveLength(1);
    expect(await snapshots.list({ name, state: "failed" }).toArray()).toEqual([]);
    const stale = snapshots.update(snapshot.id, { labels: {}, ifLabels: { app: "other" } });
    expect(await failure(stale, ConflictError)).toMatchObject({ code: "snapshot_metadata_changed" });
    expect(await snapshots.update(snapshot.id, { name: null, labels: { a: "b" } })).toMatchObject({
      name: null,
      labels: { a: "b" },
    });
    const { expiresAt } = await snapshots.extend(snapshot.id, 30);
    expect(Date.parse(expiresAt)).toBeGreaterThan(Date.parse(snapshot.expiresAt));
  } finally {
    await runtime.snapshots.delete(snapshot.id);
  }
  expect(await runtime.snapshots.delete(snapshot.id)).toMatchObject({ id: snapshot.id });
  const create = runtime.sandboxes.create({ snapshot: snapshot.id });
  expect(await failure(create, NotFoundError)).toMatchObject({ code: "snapshot_not_found" });
});

test("a snapshot of the disk alone", async () => {
  const sandbox = await box();
  await sandbox.files.write("/workspace/kept", "on the disk");
  const snapshot = await sandbox.snapshot({ mode: "disk" });
  expect(snapshot).toMatchObject({ mode: "disk", state: "ready" });
  const copy = await runtime.sandboxes.create({ snapshot: snapshot.id, vcpu: 1, memoryMiB: 256 });
  try {
    expect(copy.info.memoryMiB).toBe(256);
    expect(await copy.files.readText("/workspace/kept")).toBe("on the disk");
  } finally {
    await gone(copy);
    await runtime.snapshots.delete(snapshot.id);
  }
});

test("copies go on where their source stands", async () => {
  const name = unique("fork");
  const sandbox = await box({ env: { WHO: "all" } });
  const process = await sandbox.spawn(["cat"], { stdin: "pipe" });
  const copy = await sandbox.fork({ labels: { one: "copy" } });
  const copies = await sandbox.fork({ count: 2, name });
  try {
    expect(copy.state).toBe("running");
    expect(copy.info.labels).toEqual({ one: "copy" });
    expect(copies.map((one) => one.name)).toEqual([name, `${name}-1`]);
    expect(new Set([sandbox.id, copy.id, ...copies.map(({ id }) => id)]).size).toBe(4);
    expect((await copy.exec("echo $WHO")).stdout).toBe("all\n");
    const there = await copy.processes.get(process.id);
    await there.write("only in the copy", { eof: true });
    expect((await there.wait()).stdout).toBe("only in the copy");
    expect((await process.refresh()).state).toBe("running");
  } finally {
    await gone(copy, ...copies);
  }
});
