import { expect, test } from "vitest";

import { ConflictError, NotFoundError, type FileChange, type Watch, type WatchNotice } from "../../src/index.js";
import { box, failure } from "../support/runtime.js";

const seen = (changes: FileChange[]) => changes.map(({ type, path }) => `${type} ${path}`);

/** The next changes; a poll ends before there is one where the machine is slow. */
async function news(watch: Watch): Promise<FileChange[]> {
  for (;;) {
    const changes = await watch.getNewEvents({ waitMs: 8_000 });
    if (changes.length > 0) return changes;
  }
}

test("changes are told as they happen, until the watch is stopped", async () => {
  const sandbox = await box();
  const changes: FileChange[] = [];
  const exits: unknown[] = [];
  const watch = await sandbox.files.watch("/workspace", (change) => changes.push(change), {
    recursive: true,
    include: ["*.py"],
    exclude: ["skip"],
    onExit: (...said) => exits.push(said),
  });
  expect(watch.path).toBe("/workspace");
  await sandbox.exec("mkdir skip sub; touch skip/x.py a.txt; echo 1 > a.py; mv a.py b.py; rm b.py; touch sub/c.py", {
    check: true,
  });
  await expect.poll(() => seen(changes)).toContain("create /workspace/sub/c.py");
  expect(changes.find(({ type }) => type === "rename")).toMatchObject({
    path: "/workspace/b.py",
    oldPath: "/workspace/a.py",
    isDir: false,
  });
  expect(seen(changes)).toContain("remove /workspace/b.py");
  expect(seen(changes).join("\n")).not.toMatch(/skip|a\.txt/);
  expect((await sandbox.files.watches.list()).map(({ id }) => id)).toEqual([watch.id]);
  expect(await watch.stop()).toBe(true);
  expect(await watch.exited).toBe("stopped");
  expect(exits).toEqual([["stopped"]]);
  expect(await sandbox.files.watches.list()).toEqual([]);
  expect(await sandbox.files.watches.stop(watch.id)).toBe(false);
});

test("what a callback throws ends the reading, and is told", async () => {
  const sandbox = await box();
  const told = new Promise<Error | undefined>((resolve) => {
    const onExit = (_reason: unknown, error?: Error) => {
      resolve(error);
    };
    const fail = () => {
      throw new Error("mine");
    };
    void sandbox.files.watch("/workspace", fail, { onExit }).then(() => sandbox.files.write("/workspace/a", "x"));
  });
  expect(await told).toMatchObject({ message: "mine" });
});

test("a watch is read on from where it was, through a pause, and from its start again", async () => {
  const sandbox = await box({ autoWake: true });
  const notices: WatchNotice[] = [];
  const watch = await sandbox.files.watches.start("/workspace", {
    id: "mine",
    events: ["create"],
    timeoutMs: 0,
    onNotice: (notice) => notices.push(notice),
  });
  const { cursor } = watch;
  await sandbox.files.write("/workspace/one", "1");
  expect(seen(await news(watch))).toEqual(["create /workspace/one"]);
  expect(await watch.getNewEvents()).toEqual([]);
  expect(watch.cursor).toBeGreaterThan(cursor);

  await sandbox.pause();
  expect(await watch.getNewEvents()).toEqual([]);
  expect(watch.exitReason).toBe("paused");
  expect((await sandbox.refresh()).state).toBe("paused");
  await sandbox.files.write("/workspace/two", "2");
  const after: FileChange[] = [];
  for await (const change of watch.events()) {
    after.push(change);
    break;
  }
  expect(seen(after)).toEqual(["create /workspace/two"]);
  expect(notices).toEqual([]);

  const again = await failure(sandbox.files.watches.start("/workspace", { id: "mine" }), ConflictError);
  expect(again.code).toBe("already_exists");
  const nowhere = await failure(sandbox.files.watches.start("/workspace/none"), NotFoundError);
  expect(nowhere.code).toBe("file_not_found");
});

test("a reader that leaves by its signal leaves the watch", async () => {
  const sandbox = await box();
  const watch = await sandbox.files.watches.start("/workspace");
  const leave = new AbortController();
  setTimeout(() => {
    leave.abort();
  }, 200);
  const reading = (async () => {
    for await (const change of watch.events({ signal: leave.signal })) expect(change).toBe(undefined);
  })();
  await failure(reading, Error);
  await sandbox.files.write("/workspace/a", "x");
  expect(seen(await news(watch))).toContain("create /workspace/a");
  await sandbox.files.remove("/workspace/a");
  expect(await watch.stop()).toBe(true);
});
