import { beforeAll, expect, test } from "vitest";

import {
  ConflictError,
  InvalidRequestError,
  NotFoundError,
  PermissionDeniedError,
  type RuntimeError,
  type Sandbox,
} from "../../src/index.js";
import { box, failure } from "../support/runtime.js";

let sandbox: Sandbox;

beforeAll(async () => {
  sandbox = await box();
});

test("what is written is read, whatever it is", async () => {
  const { files } = sandbox;
  await files.write("/workspace/a b/+ü.txt", "hé\ufeff");
  expect(await files.readText("/workspace/a b/+ü.txt")).toBe("hé\ufeff");
  await files.write("/workspace/empty", "");
  expect(await files.read("/workspace/empty")).toEqual(new Uint8Array());

  const bytes = new Uint8Array(1024 * 1024).map((_, i) => (i * 7) & 0xff);
  await files.write("/workspace/big", bytes, { mode: "755" });
  // `toEqual` would take seconds for a million numbers.
  expect(Buffer.compare(await files.read("/workspace/big"), bytes)).toBe(0);
  const streamed = await new Response(await files.readStream("/workspace/big")).arrayBuffer();
  expect(Buffer.compare(Buffer.from(streamed), bytes)).toBe(0);
  expect(await files.stat("/workspace/big")).toMatchObject({ exists: true, type: "file", size: 1 << 20, mode: "0755" });
  await files.write("/workspace/blob", new Blob(["b"]));
  await files.write("/workspace/buffer", Uint8Array.of(99).buffer);
  expect((await sandbox.exec("cat blob buffer")).stdout).toBe("bc");
});

test("a file larger than one request is read whole and as a stream", async () => {
  await sandbox.exec("head -c 5000000 /dev/urandom > large", { check: true });
  const wanted = (await sandbox.exec("sha256sum large")).stdout.slice(0, 64);
  const hex = async (bytes: BufferSource): Promise<string> =>
    Buffer.from(await crypto.subtle.digest("SHA-256", bytes)).toString("hex");
  expect(await hex((await sandbox.files.read("/workspace/large")) as BufferSource)).toBe(wanted);
  const stream = await sandbox.files.readStream("/workspace/large");
  expect(await hex(await new Response(stream).arrayBuffer())).toBe(wanted);
  await (await sandbox.files.readStream("/workspace/large")).cancel();
});

test("folders are made, listed, searched", async () => {
  const { files } = sandbox;
  await files.mkdir("/workspace/tree/deep/.hidden");
  await files.mkdir("/workspace/tree/deep");
  await files.write("/workspace/tree/top.py", "");
  await files.write("/workspace/tree/deep/low.py", "1");
  const paths = async (...args: Parameters<typeof files.list>): Promise<string[]> =>
    (await files.list(...args)).map(({ path }) => path.replace("/workspace/tree/", ""));
  expect(await paths("/workspace/tree")).toEqual(["deep", "top.py"]);
  expect(await paths("/workspace/tree", { depth: 2 })).toEqual(["deep", "deep/low.py", "top.py"]);
  expect(await paths("/workspace/tree/deep", { hidden: true })).toContain("deep/.hidden");
  expect(await paths("/workspace/tree", { glob: "*.py" })).toEqual(["top.py"]);
  expect((await files.glob("**/*.py", "/workspace/tree")).map(({ name }) => name).sort()).toEqual(["low.py", "top.py"]);
});

test("names change, and what is in the way is told", async () => {
  const { files } = sandbox;
  await files.write("/workspace/from", "1");
  await files.write("/workspace/to", "2");
  expect(await failure(files.rename("/workspace/from", "/workspace/to"), ConflictError)).toMatchObject({
    code: "already_exists",
  });
  await files.rename("/workspace/from", "/workspace/to", { overwrite: true });
  expect(await files.readText("/workspace/to")).toBe("1");
  expect(await files.exists("/workspace/from")).toBe(false);
  expect(await files.stat("/workspace/from")).toEqual({ exists: false, path: "/workspace/from" });
  await files.chmod("/workspace/to", "700");
  expect(await files.stat("/workspace/to")).toMatchObject({ mode: "0700" });
  expect(await files.remove("/workspace/to")).toBe(true);
  expect(await files.remove("/workspace/to")).toBe(false);
});

test("refusals have their codes", async () => {
  const { files } = sandbox;
  await files.write("/workspace/full/f", "");
  const code = async (
    promise: Promise<unknown>,
    kind: abstract new (...args: never[]) => RuntimeError,
  ): Promise<string> => (await failure(promise, kind)).code;
  expect(await code(files.read("/workspace/none"), NotFoundError)).toBe("file_not_found");
  expect(await code(files.readStream("/workspace/none"), NotFoundError)).toBe("file_not_found");
  expect(await code(files.read("/workspace/full"), ConflictError)).toBe("is_a_directory");
  expect(await code(files.list("/workspace/full/f"), ConflictError)).toBe("not_a_directory");
  expect(await code(files.remove("/workspace/full"), ConflictError)).toBe("directory_not_empty");
  expect(await files.remove("/workspace/full", { recursive: true })).toBe(true);
  expect(await failure(files.write("/root/x", "x"), PermissionDeniedError)).toMatchObject({
    code: "permission_denied",
  });
  expect(await failure(files.read("relative"), InvalidRequestError)).toMatchObject({ code: "invalid_request" });
});
