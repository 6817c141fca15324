import { createHash } from "node:crypto";
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";

import { ConflictError, InvalidRequestError, NotFoundError, RuntimeError, type Sandbox } from "../../src/index.js";
import { FaultyProxy } from "../support/faulty-proxy.js";
import { box, client, failure } from "../support/runtime.js";

let sandbox: Sandbox;
let here: string;
beforeAll(async () => {
  sandbox = await box();
  here = mkdtempSync(join(tmpdir(), "withruntime-folders-"));
});
afterAll(() => {
  rmSync(here, { recursive: true, force: true });
});

const MiB = 1024 * 1024;
const random = (length: number): Uint8Array => {
  const bytes = new Uint8Array(length);
  for (let at = 0; at < length; at += 65_536) crypto.getRandomValues(bytes.subarray(at, Math.min(length, at + 65_536)));
  return bytes;
};
const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex");
async function digest(file: string): Promise<string> {
  return (await sandbox.exec(["sha256sum", file], { check: true })).stdout.slice(0, 64);
}

test("a file of many chunks arrives whole, with its mode", async () => {
  const bytes = random(9 * MiB + 12_345);
  await sandbox.files.write("/workspace/deep/large", bytes, { mode: "750" });
  expect(await digest("/workspace/deep/large")).toBe(sha256(bytes));
  expect(await sandbox.files.stat("/workspace/deep/large")).toMatchObject({ mode: "0750", size: bytes.length });
  await sandbox.files.write("/workspace/deep/large", new Blob([bytes.subarray(0, 2 * MiB) as BlobPart]));
  expect(await digest("/workspace/deep/large")).toBe(sha256(bytes.subarray(0, 2 * MiB)));
});

test("a chunked write bears faults, has keys of its own for each phase, and leaves nothing when it fails", async () => {
  await using proxy = await FaultyProxy.start(inject("url"));
  const through = await client({ baseUrl: proxy.url }).sandboxes.get(sandbox.id);
  const bytes = random(4 * MiB + 1);
  proxy.on(
    "uploads",
    (nth) => [{ kind: "lose-answer" } as const, undefined, { kind: "deliver-twice" } as const][nth % 3],
  );
  await through.files.write("/workspace/faults", bytes, { idempotencyKey: "one-call" });
  expect(await digest("/workspace/faults")).toBe(sha256(bytes));
  const keys = proxy.passed.map(({ key }) => key);
  expect(keys.every((key) => /^[0-9a-f]{64}$/.test(key ?? ""))).toBe(true);

  proxy.on("offset=", (nth) =>
    nth < 2 ? undefined : { kind: "answer", status: 409, body: { error: { code: "disk_full", message: "full" } } },
  );
  expect(await failure(through.files.write("/workspace/never", bytes), ConflictError)).toMatchObject({
    code: "disk_full",
  });
  expect(proxy.passed.at(-1)?.url).toMatch(/:abort$/);
  const left = await sandbox.files.list("/workspace", { hidden: true });
  expect(left.filter(({ name }) => name.includes("never"))).toEqual([]);
});

test("a stream of unknown length is written as it comes", async () => {
  const bytes = random(3 * MiB + 77);
  const pieces = async function* (): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < bytes.length; at += 100_000) {
      await Promise.resolve();
      yield bytes.subarray(at, at + 100_000);
    }
  };
  const told: number[] = [];
  await sandbox.files.writeStream("/workspace/new/streamed", pieces(), {
    mode: "500",
    onProgress: (sent) => told.push(sent),
  });
  expect(await digest("/workspace/new/streamed")).toBe(sha256(bytes));
  expect(await sandbox.files.stat("/workspace/new/streamed")).toMatchObject({ mode: "0500" });
  expect(told.at(-1)).toBe(bytes.length);
  expect(told).toEqual([...told].sort((a, b) => a - b));
  expect((await sandbox.files.list("/workspace/new", { hidden: true })).map(({ name }) => name)).toEqual(["streamed"]);

  await sandbox.files.writeStream("/workspace/small", new Blob(["few"]).stream());
  expect(await sandbox.files.readText("/workspace/small")).toBe("few");
  const broken = async function* (): AsyncGenerator<Uint8Array> {
    yield* pieces();
    throw new Error("the source broke");
  };
  await expect(sandbox.files.writeStream("/workspace/new/broken", broken())).rejects.toThrow("the source broke");
  await expect
    .poll(async () => (await sandbox.files.list("/workspace/new", { hidden: true })).map(({ name }) => name))
    .toEqual(["streamed"]);
});

test("a folder goes in and comes out as it was", async () => {
  const folder = join(here, "tree");
  const deep = join(folder, "a".repeat(90), "b".repeat(90));
  mkdirSync(deep, { recursive: true });
  mkdirSync(join(folder, "empty"));
  writeFileSync(join(folder, "run.sh"), "#!/bin/sh\necho ran\n");
  chmodSync(join(folder, "run.sh"), 0o755);
  writeFileSync(join(deep, "ü €.bin"), random(2 * MiB + 5));
  writeFileSync(join(folder, "nothing"), "");
  symlinkSync("run.sh", join(folder, "link"));
  await sandbox.files.upload(folder, "/workspace/tree");
  expect((await sandbox.exec("./link", { cwd: "/workspace/tree" })).stdout).toBe("ran\n");
  expect(await sandbox.files.stat("/workspace/tree/link")).toMatchObject({ type: "symlink", symlinkTarget: "run.sh" });
  expect(await sandbox.files.stat("/workspace/tree/nothing")).toMatchObject({ size: 0 });

  const back = join(here, "back");
  await sandbox.files.download("/workspace/tree", back);
  const names = readdirSync(folder, { recursive: true, encoding: "utf8" }).sort();
  expect(readdirSync(back, { recursive: true, encoding: "utf8" }).sort()).toEqual(names);
  for (const name of names) {
    const [was, is] = [lstatSync(join(folder, name)), lstatSync(join(back, name))];
    expect([name, is.mode]).toEqual([name, was.mode]);
    if (was.isFile()) expect(readFileSync(join(back, name)).equals(readFileSync(join(folder, name)))).toBe(true);
  }
  expect(readlinkSync(join(back, "link"))).toBe("run.sh");
  await sandbox.exec("ln -s tree way", { check: true });
  await sandbox.files.download("/workspace/way", back);
});

test("a file goes in and comes out with its mode", async () => {
  const file = join(here, "large");
  writeFileSync(file, random(3 * MiB));
  chmodSync(file, 0o640);
  await sandbox.files.upload(file, "/workspace/large");
  expect(await digest("/workspace/large")).toBe(sha256(readFileSync(file)));
  const progress: number[] = [];
  await sandbox.files.download("/workspace/large", join(here, "again"), {
    onProgress: (bytes) => progress.push(bytes),
  });
  expect(readFileSync(join(here, "again")).equals(readFileSync(file))).toBe(true);
  expect(lstatSync(join(here, "again")).mode & 0o777).toBe(0o640);
  expect(progress.at(-1)).toBe(3 * MiB);
  expect(await failure(sandbox.files.download("/workspace/none", join(here, "none")), NotFoundError)).toMatchObject({
    code: "file_not_found",
  });
  expect(readdirSync(here).filter((name) => name.startsWith("none"))).toEqual([]);
});

test("an archive from a sandbox that leads out of the folder is not followed", async () => {
  await sandbox.exec("mkdir -p evil/sub && ln -s /etc/passwd evil/sub/link && touch evil/good", { check: true });
  const target = join(here, "evil");
  expect(await failure(sandbox.files.download("/workspace/evil", target), RuntimeError)).toMatchObject({
    code: "unsafe_archive",
  });
});

test("archives are read and unpacked, without what was excluded, and as root where that is asked for", async () => {
  const { files } = sandbox;
  await sandbox.exec("mkdir -p src/node_modules && echo 1 > src/a && echo 2 > src/node_modules/b", { check: true });
  const packed = await files.archive("/workspace/src", { exclude: ["node_modules"] });
  await files.unarchive("/workspace/copy", packed);
  expect((await files.list("/workspace/copy", { depth: 3 })).map(({ path }) => path)).toEqual(["/workspace/copy/a"]);

  const plain = new Uint8Array(
    await new Response(await files.archive("/workspace/src", { gzip: false })).arrayBuffer(),
  );
  expect(plain.length % 512).toBe(0);
  await files.unarchive("/opt/as-root", plain, { user: "root" });
  expect((await sandbox.exec("stat -c %U /opt/as-root; cat /opt/as-root/a")).stdout).toBe("root\n1\n");

  expect(await failure(files.archive("/workspace/src/a"), ConflictError)).toMatchObject({ code: "not_a_directory" });
  expect(await failure(files.archive("/workspace/none"), NotFoundError)).toMatchObject({ code: "file_not_found" });
  const cut = await failure(files.unarchive("/workspace/cut", plain.subarray(0, 600)), InvalidRequestError);
  expect(cut.code).toBe("invalid_archive");

  await sandbox.exec("head -c 5000000 /dev/urandom > src/large", { check: true });
  await files.unarchive("/workspace/large-copy", await files.archive("/workspace/src"));
  expect(await digest("/workspace/large-copy/large")).toBe(await digest("/workspace/src/large"));
  const whole = new Uint8Array(await new Response(await files.archive("/workspace/src")).arrayBuffer());
  const half = files.unarchive("/workspace/half", whole.subarray(0, 3 * MiB));
  expect(await failure(half, InvalidRequestError)).toMatchObject({ code: "invalid_archive" });
});
