import { beforeAll, describe, expect, test } from "vitest";

import {
  CommandError,
  ConflictError,
  NotFoundError,
  RuntimeError,
  type ExecEvent,
  type Sandbox,
} from "../../src/index.js";
import { box, failure, unique } from "../support/runtime.js";

let sandbox: Sandbox;

beforeAll(async () => {
  sandbox = await box({ env: { A: "box", B: "box" } });
});

describe("exec", () => {
  test("answers the exit code and both outputs", async () => {
    const result = await sandbox.exec("echo $A $B; echo err >&2; exit 3", { env: { B: "own" } });
    expect(result).toMatchObject({ exitCode: 3, stdout: "box own\n", stderr: "err\n", timedOut: false });
    expect(result).toMatchObject({ stdoutTruncated: false, stderrTruncated: false });
    expect(result.processId).toBeTruthy();
    expect(result.durationMs).toBeGreaterThanOrEqual(0);
  });

  test("takes a program and its arguments without a shell, a folder, a user, input", async () => {
    expect((await sandbox.exec(["printf", "%s|", "a b", "$HOME"])).stdout).toBe("a b|$HOME|");
    expect((await sandbox.exec("pwd; id -un", { cwd: "/tmp" })).stdout).toBe("/tmp\nruntime\n");
    expect((await sandbox.exec("id -u", { user: "root" })).stdout).toBe("0\n");
    expect((await sandbox.exec("cat", { stdin: "héé" })).stdout).toBe("héé");
    expect((await sandbox.exec("od -An -tx1", { stdin: Uint8Array.of(0, 255) })).stdout.trim()).toBe("00 ff");
  });

  test("ends with the time, and tells what was said by then", async () => {
    const result = await sandbox.exec("echo part; sleep 60", { timeoutMs: 500 });
    expect(result).toMatchObject({ timedOut: true, exitCode: -9, stdout: "part\n" });
  });

  test("keeps the head of what is long, the same streamed and not", async () => {
    const command = "head -c 100000 /dev/zero | tr '\\0' a";
    const { signal } = new AbortController();
    const [plain, streamed] = await Promise.all([sandbox.exec(command), sandbox.exec(command, { signal })]);
    for (const result of [plain, streamed]) {
      expect(result.stdout).toHaveLength(65_536);
      expect(result).toMatchObject({ exitCode: 0, stdoutTruncated: true, stderrTruncated: false });
    }
    const long = await sandbox.exec(command, { timeoutMs: 61_000 });
    expect(long.stdout).toHaveLength(100_000);
    expect(long.stdoutTruncated).toBe(false);
  });

  test("calls back as it goes", async () => {
    let out = "";
    let err = "";
    const result = await sandbox.exec("echo one; echo two >&2; sleep 0.1; echo three", {
      onStdout: (text) => (out += text),
      onStderr: (text) => (err += text),
    });
    expect([out, err]).toEqual(["one\nthree\n", "two\n"]);
    expect(result).toMatchObject({ exitCode: 0, stdout: out, stderr: err });
  });

  test("with check throws unless all went well", async () => {
    expect((await sandbox.exec("true", { check: true })).exitCode).toBe(0);
    const failed = await failure(sandbox.exec("echo out; echo boom >&2; exit 2", { check: true }), CommandError);
    expect(failed).toMatchObject({
      code: "command_failed",
      exitCode: 2,
      stdout: "out\n",
      stderr: "boom\n",
      retryable: true,
    });
    const late = await failure(sandbox.exec("sleep 3600", { check: true, timeoutMs: 200 }), CommandError);
    expect(late.code).toBe("command_timeout");
    expect(await failure(sandbox.exec("kill -9 $$", { check: true }), CommandError)).toMatchObject({ exitCode: -9 });
  });

  test("out of memory is told by its own name", async () => {
    const tight = await box({ memoryMiB: 256 });
    const eat = tight.exec(
      ["python3", "-c", "x = bytearray(2_000_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1"],
      {
        check: true,
      },
    );
    const error = await failure(eat, CommandError);
    expect(["out_of_memory", "command_failed"]).toContain(error.code);
    expect(error.exitCode).not.toBe(0);
  });

  test("once for a key, whatever way it is asked", async () => {
    const idempotencyKey = unique("once");
    const file = `/workspace/${idempotencyKey}`;
    const run = (): ReturnType<Sandbox["exec"]> => sandbox.exec(`echo x >> ${file}; echo done`, { idempotencyKey });
    const [first, second] = await Promise.all([run(), run()]);
    const third = await run();
    expect([first.stdout, second.stdout, third.stdout]).toEqual(["done\n", "done\n", "done\n"]);
    expect(third).toMatchObject({ replayed: true, processId: first.processId });
    expect(await sandbox.files.readText(file)).toBe("x\n");
  });

  test("cancelled by its signal is told to end", async () => {
    const cancel = new AbortController();
    const file = `/workspace/${unique("term")}`;
    const running = sandbox.exec(`trap 'echo told > ${file}; exit' TERM; echo up; while :; do sleep 0.1; done`, {
      onStdout: () => {
        cancel.abort(new Error("enough"));
      },
      signal: cancel.signal,
    });
    const error = await failure(running, RuntimeError);
    expect(error.code).toBe("cancelled");
    expect(error.details).toMatchObject({ sandboxId: sandbox.id, stopped: true });
    await expect.poll(() => sandbox.files.exists(file)).toBe(true);
    const process = await sandbox.processes.get(error.details?.["processId"] as string);
    await expect.poll(async () => (await process.refresh()).state).toBe("exited");
  });

  test("longer than the sandbox lives is refused", async () => {
    const short = await box({ timeoutSeconds: 60 });
    const error = await failure(short.exec("true", { timeoutMs: 600_000 }), ConflictError);
    expect(error.code).toBe("time_limit_too_short");
    expect((await short.exec("echo fine", { onStdout: () => undefined })).stdout).toBe("fine\n");
  });
});

describe("traceFiles", () => {
  const line = "cat /etc/hostname > traced";

  test("tells the files of a command, streamed or not, and only if asked", async () => {
    const { signal } = new AbortController();
    for (const result of [
      await sandbox.exec(line, { traceFiles: true }),
      await sandbox.exec(line, { traceFiles: true, signal }),
    ]) {
      expect(result).toMatchObject({ exitCode: 0, files: { written: ["/workspace/traced"], truncated: false } });
      expect(result.files?.read).toContain("/etc/hostname");
    }
    expect(await sandbox.exec(line)).not.toHaveProperty("files");
  });

  test("of a process is asked once it has ended", async () => {
    const process = await sandbox.spawn(`read x; ${line}`, { stdin: "pipe", traceFiles: true });
    expect(await failure(process.files(), ConflictError)).toMatchObject({ code: "process_running" });
    await process.write("\n");
    await process.wait();
    expect(await process.files()).toMatchObject({ written: ["/workspace/traced"], truncated: false });
    const plain = await sandbox.spawn("true");
    await plain.wait();
    await failure(plain.files(), NotFoundError);
  });
});

describe("execStream", () => {
  test("tells the start, the output in order, and the exit", async () => {
    const events: ExecEvent[] = [];
    // Of two outputs at once either may be told first; here the second waits for the word.
    const go = `/workspace/${unique("go")}`;
    for await (const event of sandbox.execStream(
      `echo a; until [ -e ${go} ]; do sleep 0.05; done; echo b >&2; exit 4`,
    )) {
      events.push(event);
      if (event.type === "stdout") await sandbox.files.write(go, "");
    }
    expect(events.map(({ type }) => type)).toEqual(["start", "stdout", "stderr", "exit"]);
    expect(events[1]).toEqual({ type: "stdout", data: "a\n", offset: 0 });
    expect(events[2]).toEqual({ type: "stderr", data: "b\n", offset: 2 });
    expect(events[3]).toMatchObject({ exitCode: 4, state: "exited", timedOut: false });
  });

  test("left early leaves the command alone", async () => {
    const file = `/workspace/${unique("left")}`;
    for await (const event of sandbox.execStream(`echo a; sleep 0.5; echo b > ${file}`)) {
      if (event.type === "stdout") break;
    }
    await expect.poll(() => sandbox.files.exists(file)).toBe(true);
  });
});

describe("processes", () => {
  test("outlive the call, are fed, followed and waited for", async () => {
    const process = await sandbox.spawn("while read line; do echo got $line; done; exit 5", { stdin: "pipe" });
    expect(process).toMatchObject({ state: "running", exitCode: null, sandboxId: sandbox.id });
    await Promise.all([process.write("one\n"), process.write("two\n"), process.write("", { eof: true })]);
    expect(await process.wait()).toMatchObject({ exitCode: 5, stdout: "got one\ngot two\n", processId: process.id });
    expect(process).toMatchObject({ state: "exited", exitCode: 5 });
    expect(JSON.parse(JSON.stringify(process))).toEqual(process.info);

    const again = [];
    for await (const event of sandbox.processes.follow(process.id, { cursor: 8 })) again.push(event);
    expect(again[0]).toMatchObject({ type: "stdout", data: "got two\n", offset: 8 });
    expect((await sandbox.processes.get(process.id)).id).toBe(process.id);
    expect((await sandbox.processes.list()).map(({ id }) => id)).toContain(process.id);
    expect(await failure(sandbox.processes.get("none"), NotFoundError)).toMatchObject({ code: "not_found" });
  });

  test("take more input than they read at once", async () => {
    const process = await sandbox.spawn("sleep 0.5; sha256sum", { stdin: "pipe" });
    const bytes = new Uint8Array(3 * 1024 * 1024).map((_, i) => i & 0xff);
    await process.write(bytes, { eof: true });
    const wanted = await sandbox.exec(
      'python3 -c "import hashlib; print(hashlib.sha256(bytes(i & 255 for i in range(3 << 20))).hexdigest())"',
    );
    expect((await process.wait()).stdout.slice(0, 64)).toBe(wanted.stdout.trim());
  });

  test("are signalled", async () => {
    const process = await sandbox.spawn(["sleep", "600"]);
    await process.kill();
    await expect.poll(async () => (await process.refresh()).state).not.toBe("running");
    expect(process.exitCode).toBe(-15);
    await process.kill("SIGKILL");
    const other = await sandbox.spawn(["sleep", "600"]);
    await other.kill("SIGKILL");
    expect(await other.wait()).toMatchObject({ exitCode: -9 });
    expect(other.state).toBe("killed");
  });

  test("say bytes that are no text", async () => {
    const line = "printf '\\377\\000\\376'; printf ok >&2";
    const other = await sandbox.spawn(line);
    const refused = await failure(other.outputBytes().next(), RuntimeError);
    expect(refused.code).toBe("binary_output_unavailable");
    const process = await sandbox.spawn(line, { outputEncoding: "base64" });
    const bytes: Record<"stdout" | "stderr", number[]> = { stdout: [], stderr: [] };
    for await (const { stream, data } of process.outputBytes()) bytes[stream].push(...data);
    expect(bytes).toEqual({ stdout: [255, 0, 254], stderr: [111, 107] });
  });

  test("end with their time", async () => {
    const process = await sandbox.spawn(["sleep", "600"], { timeoutMs: 300 });
    expect(await process.wait()).toMatchObject({ timedOut: true });
    expect(process.state).toBe("timed_out");
  });

  test("take no key for their input", async () => {
    const process = await sandbox.spawn("cat", { stdin: "pipe" });
    const keyed = { idempotencyKey: "x" } as object;
    expect(await failure(process.write("a", keyed), RuntimeError)).toMatchObject({ code: "invalid_request" });
    await process.kill("SIGKILL");
  });
});
