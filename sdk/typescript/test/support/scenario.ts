/** Plays the scenarios that all clients share: see `sdk/scenarios/README.md`. */

import { Process, RuntimeError, Sandbox, type ExecEvent, type FileData, type Runtime } from "../../src/index.js";
import { differences } from "./expect.js";

export interface Step {
  call: string;
  on?: string;
  with?: Record<string, unknown>;
  as?: string;
  expect?: unknown;
  fails?: Record<string, unknown>;
  needs?: string;
}

export interface Scenario {
  name: string;
  steps: Step[];
}

/** What a step is called with; its shape is the scenario's affair, which the server checks. */
type With = any;

/** Thrown where the server has not got what a scenario needs. */
export class Unserved extends Error {}

type Result = unknown;

export async function play(runtime: Runtime, scenario: Scenario): Promise<void> {
  const player = new Player(runtime);
  try {
    for (const [i, step] of scenario.steps.entries()) {
      await player.play(step, `${scenario.name}, step ${String(i + 1)} (${step.call})`);
    }
  } finally {
    await player.clean();
  }
}

class Player {
  readonly #runtime: Runtime;
  readonly #run = crypto.randomUUID().slice(0, 8);
  readonly #results = new Map<string, Result>();
  readonly #made = new Set<string>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  async play(step: Step, where: string): Promise<void> {
    const given = this.#fill(step.with ?? {}) as With;
    let result: Result;
    try {
      result = await this.#call(step, given);
    } catch (error) {
      if (!(error instanceof RuntimeError)) throw error;
      if (step.needs !== undefined && error.status === 501) throw new Unserved(step.needs);
      if (step.fails === undefined)
        throw new Error(`${where} failed: ${error.code}: ${error.message}`, { cause: error });
      const { code, status, retryable, details } = error;
      this.#compare({ code, status, retryable, details }, step.fails, where);
      return;
    }
    if (step.fails !== undefined) throw new Error(`${where} did not fail`);
    if (result instanceof Sandbox) this.#made.add(result.id);
    if (step.as !== undefined) this.#results.set(step.as, result);
    if (step.expect !== undefined) this.#compare(plain(result), step.expect, where);
  }

  async clean(): Promise<void> {
    await Promise.all([...this.#made].map((id) => this.#runtime.sandboxes.delete(id)));
  }

  #compare(value: unknown, expected: unknown, where: string): void {
    const found = differences(plain(value), this.#fill(expected, false), (path) => this.#look(path));
    if (found.length > 0) throw new Error(`${where}:\n${found.join("\n")}`);
  }

  #look(path: string): unknown {
    const [name = "", ...keys] = path.split(".");
    let value = plain(this.#results.get(name));
    for (const key of keys) value = (value as Record<string, unknown> | undefined)?.[key];
    return value;
  }

  /** Puts in what is only known now; rules of `expect` stay as they are. */
  #fill(value: unknown, isWith = true): unknown {
    if (typeof value === "string") return value.replaceAll("${run}", this.#run);
    if (Array.isArray(value)) return value.map((one) => this.#fill(one, isWith));
    if (typeof value !== "object" || value === null) return value;
    const { $from, $repeat } = value as { $from?: string; $repeat?: [string, number] };
    if (isWith && $from !== undefined) return this.#look($from);
    if ($repeat !== undefined) return $repeat[0].repeat($repeat[1]);
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, this.#fill(one, isWith)]));
  }

  async #call({ call, on }: Step, given: With): Promise<Result> {
    const target = on === undefined ? undefined : this.#results.get(on);
    if (target instanceof Sandbox && call.startsWith("session."))
      return await inside(this.#runtime, target, call, given);
    if (target instanceof Sandbox) return await onSandbox(target, call, given);
    if (target instanceof Process) return await onProcess(target, call, given);
    return await onRuntime(this.#runtime, call, given);
  }
}

async function onRuntime(runtime: Runtime, call: string, given: With): Promise<Result> {
  const { idempotencyKey, waitForCapacityMs, ...fields } = given;
  const options = { idempotencyKey, waitForCapacityMs };
  switch (call) {
    case "me":
      return await runtime.me();
    case "limits.get":
      return await runtime.limits.get();
    case "sandboxes.create":
      return await runtime.sandboxes.create(fields, options);
    case "sandboxes.getOrCreate": {
      const { name, ...rest } = fields;
      return await runtime.sandboxes.getOrCreate(name, rest, options);
    }
    case "sandboxes.get":
      return await runtime.sandboxes.get(given.id);
    case "sandboxes.list":
      return { data: await runtime.sandboxes.list(given).toArray() };
    case "sandboxes.stopAll": {
      const { stopped, failed } = await runtime.sandboxes.stopAll(given);
      return { stopped: stopped.length, failed: failed.length };
    }
    case "sandboxes.deleteAll": {
      const { deleted, failed } = await runtime.sandboxes.deleteAll(given);
      return { deleted: deleted.length, failed: failed.length };
    }
    case "snapshots.get":
      return await runtime.snapshots.get(given.id);
    case "snapshots.list":
      return { data: await runtime.snapshots.list(given).toArray() };
    case "snapshots.delete":
      await runtime.snapshots.delete(given.id);
      return null;
    default:
      throw new Error(`there is no call ${call}`);
  }
}

async function onSandbox(sandbox: Sandbox, call: string, given: With): Promise<Result> {
  if (call.startsWith("files.")) return await onFiles(sandbox, call, given);
  switch (call) {
    case "refresh":
    case "stop":
    case "pause":
    case "wake":
    case "restart":
      return await sandbox[call](given);
    case "delete":
      return await sandbox.delete();
    case "waitFor":
      return await sandbox.waitFor(given.state);
    case "extend":
      return await sandbox.extend(given.seconds);
    case "update":
      return await sandbox.update(given);
    case "block":
      // What the end of `await using` calls.
      await sandbox[Symbol.asyncDispose]();
      return null;
    case "exec":
      return await exec(sandbox, given);
    case "execStream": {
      const { command, ...options } = given;
      return await drain(sandbox.execStream(command, withBytes(options, "stdin")));
    }
    case "spawn": {
      const { command, ...options } = given;
      return await sandbox.spawn(command, withBytes(options, "stdin"));
    }
    case "process":
      return await sandbox.processes.get(given.id);
    case "processes":
      return { data: await sandbox.processes.list() };
    case "snapshot":
      return await sandbox.snapshot(given);
    case "fork":
      return await sandbox.fork(given);
    case "network.get":
      return await sandbox.network.get();
    case "network.set":
      return await sandbox.network.set(given);
    case "terminal":
      return await terminal(sandbox, given);
    case "sessions.create":
      return await sandbox.sessions.create(given);
    case "sessions.list":
      return { data: await sandbox.sessions.list() };
    case "sessions.revoke":
      return await sandbox.sessions.revoke(given.id);
    default:
      throw new Error(`a sandbox has no call ${call}`);
  }
}

/** The same sandbox, reached with the token of a session alone. */
async function inside(runtime: Runtime, sandbox: Sandbox, call: string, { token, ...given }: With): Promise<Result> {
  const apiUrl = runtime.transport.origin;
  const page = Sandbox.fromSession({ token, sandboxId: sandbox.id, apiUrl });
  return await onSandbox(page, call.slice("session.".length), given);
}

async function terminal(sandbox: Sandbox, { typed, ...options }: With): Promise<Result> {
  const decoder = new TextDecoder();
  let output = "";
  const opened = await sandbox.terminal({
    ...options,
    onData: (bytes) => (output += decoder.decode(bytes, { stream: true })),
  });
  if (typed !== undefined) opened.write(typed);
  const exitCode = await opened.exited;
  return { output, exitCode, processId: opened.processId };
}

async function exec(sandbox: Sandbox, given: With): Promise<Result> {
  const { command, callbacks, ...options } = withBytes(given, "stdin");
  if (callbacks !== true) return await sandbox.exec(command, options);
  const called = { stdout: "", stderr: "" };
  const result = await sandbox.exec(command, {
    ...options,
    onStdout: (text) => (called.stdout += text),
    onStderr: (text) => (called.stderr += text),
  });
  return { ...result, called };
}

async function onProcess(process: Process, call: string, given: With): Promise<Result> {
  switch (call) {
    case "refresh":
      return await process.refresh();
    case "wait":
      return await process.wait();
    case "kill":
      await process.kill(given.signal);
      return null;
    case "write":
      await process.write(withBytes(given, "data").data, { eof: given.eof });
      return null;
    case "output":
      return await drain(process.output(given));
    default:
      throw new Error(`a process has no call ${call}`);
  }
}

async function onFiles({ files }: Sandbox, call: string, given: With): Promise<Result> {
  const { path, ...options } = given;
  switch (call) {
    case "files.read":
      return base64(await files.read(path));
    case "files.readStream":
      return base64(new Uint8Array(await new Response(await files.readStream(path)).arrayBuffer()));
    case "files.readText":
      return await files.readText(path);
    case "files.write":
      await files.write(path, withBytes(given, "data").data as FileData, { mode: given.mode });
      return null;
    case "files.mkdir":
      await files.mkdir(path, options);
      return null;
    case "files.rename":
      await files.rename(given.source, given.target, { overwrite: given.overwrite });
      return null;
    case "files.list":
      return { data: await files.list(path, options) };
    case "files.glob":
      return { data: await files.glob(given.pattern, given.root) };
    case "files.stat":
      return await files.stat(path);
    case "files.exists":
      return await files.exists(path);
    case "files.remove":
      return await files.remove(path, options);
    case "files.archive":
      return base64(new Uint8Array(await new Response(await files.archive(path)).arrayBuffer()));
    case "files.unarchive":
      await files.unarchive(path, withBytes(given, "data").data as FileData);
      return null;
    default:
      throw new Error(`there is no call ${call}`);
  }
}

async function drain(events: AsyncIterable<ExecEvent>): Promise<Result> {
  const seen: ExecEvent[] = [];
  for await (const event of events) seen.push(event);
  const join = (type: string): string =>
    seen.map((event) => ("data" in event && event.type === type ? event.data : "")).join("");
  let cursor: number | undefined;
  let whole = true;
  for (const event of seen) {
    if (event.type === "truncated") whole = false;
    if (event.type !== "stdout" && event.type !== "stderr") continue;
    whole &&= cursor === undefined || cursor === event.offset;
    cursor =
      event.offset +
      (event.base64 === undefined ? Buffer.byteLength(event.data) : Buffer.from(event.base64, "base64").length);
  }
  const last = seen.at(-1);
  const exit = last?.type === "exit" ? { exitCode: last.exitCode, timedOut: last.timedOut } : {};
  return { first: seen[0]?.type, last: last?.type, stdout: join("stdout"), stderr: join("stderr"), whole, ...exit };
}

function withBytes(given: With, key: string): With {
  const value = given[key] as { base64?: string } | undefined;
  return value?.base64 === undefined ? given : { ...given, [key]: new Uint8Array(Buffer.from(value.base64, "base64")) };
}

function base64(bytes: Uint8Array): Result {
  return { base64: Buffer.from(bytes).toString("base64") };
}

/** As its record: what `JSON.stringify` makes of it. */
function plain(value: unknown): unknown {
  return value === undefined ? undefined : (JSON.parse(JSON.stringify(value)) as unknown);
}
