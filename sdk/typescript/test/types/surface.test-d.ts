import { expectTypeOf, test } from "vitest";

import {
  Runtime,
  Sandbox,
  type CommandResult,
  type ExecEvent,
  type FileStat,
  type Page,
  type Process,
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

test("what has no meaning is refused", () => {
  // @ts-expect-error -- no such signal
  void process.kill("SIGWHAT");
  // @ts-expect-error -- counted by bytes, not by a key
  void process.write("a", { idempotencyKey: "k" });
  // @ts-expect-error -- labels are needed
  void runtime.sandboxes.stopAll({});
});
