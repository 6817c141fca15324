import { expectTypeOf, test } from "vitest";

import {
  Runtime,
  Sandbox,
  type CommandResult,
  type ExecEvent,
  type FileStat,
  type NetworkDecision,
  type NewSession,
  type Page,
  type PageRequest,
  type PortForward,
  type Process,
  type Session,
  type Snapshot,
  type Terminal,
} from "../../src/index.js";

declare const sandbox: Sandbox;
declare const runtime: Runtime;
declare const process: Process;

test("what is created is checked by the compiler", () => {
  void Sandbox.create({ vcpu: 1, labels: { a: "b" }, network: { internet: false }, keepAlive: { everySeconds: 30 } });
  // @ts-expect-error -- no such field
  void Sandbox.create({ memoryMb: 1 });
  // @ts-expect-error -- not a number
  void Sandbox.create({ vcpu: "1" });
  // @ts-expect-error -- not one of pause, stop, delete
  void Sandbox.create({ onTimeout: "explode" });
  // @ts-expect-error -- the name stands before
  void Sandbox.getOrCreate("name", { name: "other" });
  // @ts-expect-error -- no such setting
  void sandbox.update({ vcpu: 2 });
  void sandbox.update({ name: null, env: { A: null } });
});

test("what comes back has its type", () => {
  expectTypeOf(sandbox.exec("true")).resolves.toEqualTypeOf<CommandResult>();
  expectTypeOf<CommandResult["exitCode"]>().toEqualTypeOf<number | null>();
  expectTypeOf<Parameters<Sandbox["exec"]>[0]>().toEqualTypeOf<string | readonly string[]>();
  expectTypeOf(sandbox.spawn("x")).resolves.toEqualTypeOf<Process>();
  expectTypeOf(sandbox.info.onTimeout).toEqualTypeOf<"pause" | "stop" | "delete">();
  expectTypeOf(sandbox.files.read("/a")).resolves.toEqualTypeOf<Uint8Array>();
  expectTypeOf(runtime.sandboxes.list()).toExtend<AsyncIterable<Sandbox> & PromiseLike<Page<Sandbox>>>();
  expectTypeOf(sandbox).toExtend<AsyncDisposable>();
});

test("events and files are told apart by their words", () => {
  const event = {} as ExecEvent;
  if (event.type === "exit") expectTypeOf(event.timedOut).toEqualTypeOf<boolean>();
  if (event.type === "stdout") expectTypeOf(event.offset).toEqualTypeOf<number>();
  const stat = {} as FileStat;
  if (stat.exists) expectTypeOf(stat.size).toEqualTypeOf<number>();
  // @ts-expect-error -- nothing is there
  else console.log(stat.size);
});

test("one copy is a sandbox, a number of them a list", () => {
  expectTypeOf(sandbox.fork()).resolves.toEqualTypeOf<Sandbox>();
  expectTypeOf(sandbox.fork({ name: "a" })).resolves.toEqualTypeOf<Sandbox>();
  expectTypeOf(sandbox.fork({ count: 2 })).resolves.toEqualTypeOf<Sandbox[]>();
  expectTypeOf(sandbox.snapshot({ mode: "disk" })).resolves.toEqualTypeOf<Snapshot>();
  expectTypeOf(runtime.snapshots.list()).toEqualTypeOf<PageRequest<Snapshot>>();
  // @ts-expect-error -- memory or disk
  void sandbox.snapshot({ mode: "both" });
  void Sandbox.create({ snapshot: "id" });
});

test("networks, sessions and terminals", () => {
  // @ts-expect-error -- whether there is an internet must be said
  void sandbox.network.set({ allow: ["example.com"] });
  expectTypeOf(sandbox.network.decisions()).toEqualTypeOf<PageRequest<NetworkDecision>>();
  expectTypeOf<NetworkDecision["verdict"]>().toEqualTypeOf<"allowed" | "refused">();
  expectTypeOf(sandbox.sessions.create()).resolves.toEqualTypeOf<NewSession>();
  expectTypeOf(sandbox.sessions.list()).resolves.toEqualTypeOf<Session[]>();
  expectTypeOf(Sandbox.fromSession({ token: "t", sandboxId: "s" })).toEqualTypeOf<Sandbox>();
  // @ts-expect-error -- of a session that was made, the token alone does not say which sandbox
  Sandbox.fromSession({ token: "t" });
  // @ts-expect-error -- no listed session has its token
  void sandbox.sessions.list().then(([session]) => session?.token);
  expectTypeOf(sandbox.terminal({ cols: 1, onData: (_: Uint8Array) => undefined })).resolves.toEqualTypeOf<Terminal>();
  expectTypeOf(sandbox.forwardPort(80, { localPort: 0 })).resolves.toEqualTypeOf<PortForward>();
  expectTypeOf(sandbox.files.archive("/a")).resolves.toEqualTypeOf<ReadableStream<Uint8Array>>();
  void sandbox.spawn("x", { pty: { cols: 80, rows: 24 } });
  // @ts-expect-error -- a size has two sides
  void sandbox.spawn("x", { pty: { cols: 80 } });
});

test("what has no meaning is refused", () => {
  // @ts-expect-error -- no such signal
  void process.kill("SIGWHAT");
  // @ts-expect-error -- counted by bytes, not by a key
  void process.write("a", { idempotencyKey: "k" });
  // @ts-expect-error -- labels are needed
  void runtime.sandboxes.stopAll({});
});
