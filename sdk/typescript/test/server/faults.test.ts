/** What a client makes of a bad line: no effect twice, no output lost, no hang. */

import { afterAll, beforeAll, beforeEach, describe, expect, inject, test } from "vitest";

import { ConnectionError, ConflictError, RuntimeError, type RuntimeOptions, type Sandbox } from "../../src/index.js";
import { FaultyProxy, type Fault } from "../support/faulty-proxy.js";
import { box, client, failure, unique } from "../support/runtime.js";

let proxy: FaultyProxy;
let sandbox: Sandbox;
const through = (options: RuntimeOptions = {}): ReturnType<typeof client> => client({ baseUrl: proxy.url, ...options });

beforeAll(async () => {
  proxy = await FaultyProxy.start(inject("url"));
  sandbox = await through().sandboxes.get((await box()).id);
});
beforeEach(() => {
  proxy.on("", () => undefined);
});
afterAll(async () => {
  await proxy[Symbol.asyncDispose]();
});

/** These faults, one a request, then none. */
function faults(part: string, ...list: Fault[]): void {
  proxy.on(part, (nth) => list[nth]);
}

function keys(part: string): (string | undefined)[] {
  return proxy.passed.filter(({ url }) => url.includes(part)).map(({ key }) => key);
}

describe("nothing takes effect twice", () => {
  test("a create whose answers are lost makes one sandbox", async () => {
    const labels = { test: unique("lost") };
    faults("/v1/sandboxes", { kind: "lose-answer" }, { kind: "lose-request" }, { kind: "deliver-twice" });
    const made = await box({ labels }, through());
    const found = await client().sandboxes.list({ labels, includeStopped: true }).toArray();
    expect(found.map(({ id }) => id)).toEqual([made.id]);
    expect(new Set(keys("/v1/sandboxes")).size).toBe(1);
  });

  test.each(["lose-answer", "lose-request", "deliver-twice"] as const)("a command: %s", async (kind) => {
    const file = `/workspace/${unique("once")}`;
    faults(":exec", { kind }, { kind });
    const { exitCode } = await sandbox.exec(`echo ran >> ${file}`);
    expect(exitCode).toBe(0);
    expect(await sandbox.files.readText(file)).toBe("ran\n");
  });

  test.each(["lose-answer", "lose-request", "deliver-twice"] as const)("a process, a pause: %s", async (kind) => {
    const made = await box();
    const bad = await through().sandboxes.get(made.id);
    faults("/processes", { kind });
    const { id } = await bad.spawn(["sleep", "600"]);
    faults(":", { kind }, { kind });
    await bad.pause();
    await bad.wake();
    proxy.on("", () => undefined);
    const running = (await bad.processes.list()).filter(({ state }) => state === "running");
    expect(running.map((process) => process.id)).toEqual([id]);
    await made.delete();
  });

  test("a write, and the input of a process", async () => {
    faults("content", { kind: "lose-answer" }, { kind: "cut", afterBytes: 1 });
    await sandbox.files.write("/workspace/w", "written");
    expect(await sandbox.files.readText("/workspace/w")).toBe("written");

    const process = await sandbox.spawn("cat", { stdin: "pipe" });
    faults(":write", { kind: "lose-answer" }, { kind: "deliver-twice" }, { kind: "lose-answer" });
    await process.write("one\n");
    await process.write("two\n", { eof: true });
    expect((await process.wait()).stdout).toBe("one\ntwo\n");
  });
});

test("a bad day: every third request meets something else, and all comes out as on a good one", async () => {
  const all: Fault[] = [
    { kind: "lose-request" },
    { kind: "lose-answer" },
    { kind: "answer", status: 503, body: { error: { code: "host_unavailable", status: 503 } } },
    { kind: "cut", afterBytes: 5 },
    { kind: "deliver-twice" },
    { kind: "delay", ms: 200 },
  ];
  const met = new Set<Fault["kind"]>();
  let next = 0;
  proxy.on("", (nth) => {
    if (nth % 3 !== 2) return undefined;
    const fault = all[next++ % all.length];
    if (fault !== undefined) met.add(fault.kind);
    return fault;
  });
  const day = await through().sandboxes.getOrCreate(unique("day"), { labels: { test: "day" } });
  try {
    for (let i = 0; i < 10; i += 1) await day.exec(`echo ${String(i)} >> log`);
    await day.files.write("/workspace/more", "more\n");
    await day.exec("cat more >> log");
    await day.stop();
    await day.restart();
    const lines = Array.from({ length: 10 }, (_, i) => `${String(i)}\n`);
    expect(await day.files.readText("/workspace/log")).toBe([...lines, "more\n"].join(""));
    expect(met.size).toBe(all.length);
  } finally {
    proxy.on("", () => undefined);
    await day.delete();
  }
});

describe("output", () => {
  // Less than a sandbox keeps, more than one line of the stream holds.
  const lines = 100_000;
  const wanted = Array.from({ length: lines }, (_, i) => `${String(i + 1)} é\n`).join("");
  const command = `seq ${String(lines)} | sed 's/$/ é/'`;

  test.each(["cut", "end"] as const)("is whole though the stream is %s again and again", async (kind) => {
    proxy.on("", (nth, { url }) =>
      /exec|output/.test(url) && nth < 6 ? { kind, afterBytes: 150_000 + 997 * nth } : undefined,
    );
    let said = "";
    const result = await sandbox.exec(command, { onStdout: (text) => (said += text) });
    expect(said).toBe(wanted);
    expect(result).toMatchObject({ exitCode: 0, stdout: wanted, stdoutTruncated: false });
    expect(proxy.passed.filter(({ url }) => url.includes("follow=true")).length).toBeGreaterThan(3);
  });

  test("goes on after refusals that pass, and not after those that stay", async () => {
    const process = await sandbox.spawn("for i in 1 2 3; do echo $i; done");
    const busy: Fault = { kind: "answer", status: 503, body: { error: { code: "host_unavailable", status: 503 } } };
    faults("output", busy, { kind: "lose-request" }, busy);
    expect((await process.wait()).stdout).toBe("1\n2\n3\n");

    faults("output", { kind: "answer", status: 404, body: { error: { code: "not_found", status: 404 } } });
    expect(await failure(process.wait(), RuntimeError)).toMatchObject({ code: "not_found" });
  });

  test("that ends four times without a word is a broken connection", async () => {
    const process = await sandbox.spawn("sleep 600");
    proxy.on("output", () => ({ kind: "answer", status: 200, body: undefined, headers: {} }));
    const error = await failure(process.wait(), ConnectionError);
    expect(error.code).toBe("connection_error");
    expect(proxy.passed.length).toBe(4);
    await process.kill("SIGKILL");
  });

  test("before the start of a command there is nothing to go on from", async () => {
    proxy.on(":exec", () => ({ kind: "end", afterBytes: 0 }));
    const error = await failure(sandbox.exec("true", { onStdout: () => undefined }), ConnectionError);
    expect(error.code).toBe("connection_error");
  });

  test("lost for good is told", async () => {
    const process = await sandbox.spawn("head -c 3000000 /dev/zero | tr '\\0' a; sleep 0.2; echo end");
    await expect.poll(async () => (await process.refresh()).state).toBe("exited");
    let dropped = 0;
    let read = 0;
    for await (const event of process.output()) {
      if (event.type === "truncated") dropped += event.droppedBytes;
      if (event.type === "stdout") read += event.data.length;
    }
    expect(dropped).toBeGreaterThan(0);
    expect(dropped + read).toBe(3_000_004);
  });
});

describe("downloads", () => {
  const bytes = new Uint8Array(200_000).map((_, i) => (i * 31) & 0xff);

  test("that come short are read again, twice", async () => {
    await sandbox.files.write("/workspace/d", bytes);
    faults("content", { kind: "cut", afterBytes: 100_000 }, { kind: "cut", afterBytes: 1 });
    expect(await sandbox.files.read("/workspace/d")).toEqual(bytes);

    proxy.on("content", () => ({ kind: "cut", afterBytes: 100_000 }));
    const error = await failure(sandbox.files.read("/workspace/d"), RuntimeError);
    expect(error.code).toBe("download_incomplete");
    expect(error.details).toMatchObject({ expected: 200_000 });
    expect(proxy.passed).toHaveLength(3);
  });

  test("whose bytes are others than announced are refused", async () => {
    const headers = { "x-content-length": "4", "x-content-sha256": "00".repeat(32) };
    faults(
      "content",
      ...Array.from({ length: 3 }, (): Fault => ({ kind: "answer", status: 200, body: 1234, headers })),
    );
    expect(await failure(sandbox.files.read("/workspace/d"), RuntimeError)).toMatchObject({
      code: "download_incomplete",
      details: { received: 4, expected: 4 },
    });
  });

  test("that stream fail at their end, and are not read again", async () => {
    await sandbox.files.write("/workspace/d", bytes);
    proxy.on("content", () => ({ kind: "cut", afterBytes: 100_000 }));
    const stream = await sandbox.files.readStream("/workspace/d");
    const error = await failure(stream.pipeTo(new WritableStream()), RuntimeError);
    expect(error).toMatchObject({ code: "download_incomplete", details: { expected: 200_000 } });
    expect(error.cause).toBeInstanceOf(ConnectionError);
    expect(proxy.passed).toHaveLength(1);
  });
});

describe("refusals", () => {
  const refuse = (status: number, error: Record<string, unknown>, headers: Record<string, string> = {}): Fault => ({
    kind: "answer",
    status,
    body: { error: { message: "no", status, requestId: "req_x", ...error } },
    headers,
  });

  test("that ran nothing are met with further tries under one key", async () => {
    const busy = refuse(503, { code: "guest_busy", retryAfterMs: 5 });
    faults(
      ":exec",
      busy,
      busy,
      busy,
      busy,
      busy,
      busy,
      refuse(429, { code: "rate_limited" }, { "retry-after": "0.01" }),
    );
    expect((await sandbox.exec("echo hi")).stdout).toBe("hi\n");
    expect(keys(":exec")).toHaveLength(8);
    expect(new Set(keys(":exec")).size).toBe(1);
  });

  test("for want of room are waited for, and told", async () => {
    const full = refuse(409, { code: "no_capacity", retryAfterMs: 60 });
    faults("/v1/sandboxes", full, full);
    const told: [string, number][] = [];
    const runtime = through();
    const made = await runtime.sandboxes.create(
      { vcpu: 1, memoryMiB: 512 },
      { onCapacityWait: ({ code }, ms) => told.push([code, ms]) },
    );
    await made.delete();
    expect(told).toEqual([
      ["no_capacity", 60],
      ["no_capacity", 60],
    ]);
    expect(new Set(keys("/v1/sandboxes").slice(0, 3)).size).toBe(1);

    faults("/v1/sandboxes", full);
    const error = await failure(runtime.sandboxes.create({}, { waitForCapacityMs: 0 }), ConflictError);
    expect(error).toMatchObject({ code: "no_capacity", status: 409, retryable: true, requestId: "req_x" });
  });

  test("with a wait above a minute are the caller's to decide", async () => {
    faults("/v1/me", refuse(429, { code: "rate_limited", retryAfterMs: 61_000 }));
    expect(await failure(through().me(), RuntimeError)).toMatchObject({ retryAfterMs: 61_000 });
    expect(proxy.passed).toHaveLength(1);
  });

  test("that come late are refusals all the same", async () => {
    const late = { "runtime-late-answer": "true" };
    const body = { error: { code: "sandbox_stopped", status: 409, message: "stopped" } };
    faults(":exec", { kind: "answer", status: 200, body, headers: late });
    expect(await failure(sandbox.exec("true"), ConflictError)).toMatchObject({ code: "sandbox_stopped" });
    faults(":exec", { kind: "answer", status: 200, body, headers: late });
    const streamed = sandbox.exec("true", { onStdout: () => undefined });
    expect(await failure(streamed, ConflictError)).toMatchObject({ code: "sandbox_stopped" });
  });

  test("name the key, so that the call can be repeated", async () => {
    faults(":exec", refuse(500, { code: "internal_error" }));
    const error = await failure(sandbox.exec("true"), RuntimeError);
    expect(error.idempotencyKey).toBe(keys(":exec")[0]);
  });
});

describe("no answer", () => {
  test("ends at the deadline", async () => {
    proxy.on("/v1/me", () => ({ kind: "hang" }));
    const error = await failure(through().me({ timeoutMs: 200 }), ConnectionError);
    expect(error).toMatchObject({ code: "timeout", status: 0, retryable: true });
  });

  test("ends when the caller says so", async () => {
    proxy.on("/v1/me", () => ({ kind: "hang" }));
    const reason = new Error("enough");
    const error = await failure(through().me({ signal: AbortSignal.abort(reason) }), ConnectionError);
    expect(error).toMatchObject({ code: "timeout", cause: reason });
    const later = new AbortController();
    const waiting = failure(through().me({ signal: later.signal }), ConnectionError);
    await expect.poll(() => proxy.passed.length).toBe(1);
    later.abort(reason);
    expect(await waiting).toMatchObject({ code: "timeout", cause: reason });
  });

  test("where nobody listens, is told with the address", async () => {
    const nobody = client({ baseUrl: "http://127.0.0.1:2", maxRetries: 1 });
    const error = await failure(nobody.me(), ConnectionError);
    expect(error.code).toBe("connection_error");
    expect(error.message).toBe("cannot connect to http://127.0.0.1:2");
  });

  test("with more calls than places, waits in line", async () => {
    const queued: number[] = [];
    const runtime = client({ maxConnections: 2, onQueued: (waiting) => queued.push(waiting) });
    await Promise.all(Array.from({ length: 6 }, () => runtime.me()));
    expect(queued).toEqual([1, 2, 3, 4]);
  });
});
