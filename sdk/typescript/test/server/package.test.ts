/** The package as it is published: packed, installed beside programs, and run. */

import { execFile, execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";

import { browserBundle } from "../support/bundle.js";
import { client, unique } from "../support/runtime.js";

const here = fileURLToPath(new URL("../..", import.meta.url));
const examples = process.env["RUNTIME_EXAMPLES"] ?? join(here, "../../../shared/examples");
const patterns = join(here, "../../examples/typescript");
let place: string;

beforeAll(() => {
  if (!existsSync(join(here, "dist/index.js"))) throw new Error("npm run build first: these tests pack what it makes");
  place = mkdtempSync(join(tmpdir(), "withruntime-"));
  const into = join(place, "node_modules/withruntime");
  mkdirSync(into, { recursive: true });
  const packed = execFileSync("npm", ["pack", "--silent", "--pack-destination", place], {
    cwd: here,
    encoding: "utf8",
  });
  execFileSync("tar", ["-xzf", join(place, packed.trim()), "-C", into, "--strip-components", "1"]);
});

afterAll(() => {
  rmSync(place, { recursive: true, force: true });
});

/** Runs a program with the environment that its README asks for. */
function run(file: string, by?: { program: string; args: string[] }): Promise<string> {
  const env = { ...process.env, RUNTIME_API_URL: inject("url"), RUNTIME_API_KEY: inject("key"), NO_COLOR: "1" };
  const tsx = join(here, "node_modules/tsx/dist/cli.mjs");
  return new Promise((resolve, reject) => {
    const { program, args } = by ?? { program: process.execPath, args: [tsx] };
    execFile(program, [...args, file], { cwd: place, env, timeout: 250_000 }, (error, stdout, stderr) => {
      if (error === null) resolve(stdout);
      else reject(new Error(`${file}: ${stderr}`, { cause: error }));
    });
  });
}

test("has types, no dependency but the way through a proxy, and nothing that is not needed", () => {
  const packed = join(place, "node_modules/withruntime");
  const manifest = JSON.parse(readFileSync(join(packed, "package.json"), "utf8")) as Record<string, unknown>;
  expect(Object.keys(manifest["dependencies"] as object)).toEqual(["undici"]);
  for (const file of ["dist/index.js", "dist/index.d.ts", "dist/tools/index.js", "README.md", "LICENSE"]) {
    expect(existsSync(join(packed, file)), file).toBe(true);
  }
  expect(existsSync(join(packed, "src"))).toBe(false);
  expect(existsSync(join(packed, "test"))).toBe(false);
});

test("imports nothing of Node", () => {
  const files = readdirSync(join(here, "dist"), { recursive: true, encoding: "utf8" }).filter((name) =>
    name.endsWith(".js"),
  );
  expect(files.length).toBeGreaterThan(10);
  for (const file of files) {
    expect(readFileSync(join(here, "dist", file), "utf8"), file).not.toMatch(/(from|import)\s*\(?["']node:|require\(/);
  }
});

test("is bundled for browsers without anything from outside", async () => {
  const entry = join(place, "node_modules/withruntime/dist/index.js");
  const { code, outside } = await browserBundle(entry);
  expect(outside).toEqual([]);
  expect(code).toContain("fromSession");
  expect(code).not.toMatch(/__vite-browser-external|\bBuffer\b|require\(/);
});

test("runs under Bun", async () => {
  writeFileSync(
    join(place, "bun.mts"),
    `import { Sandbox } from "withruntime";
     const sandbox = await Sandbox.create({ vcpu: 1, memoryMiB: 512 });
     try {
       await sandbox.files.write("/workspace/large", new Uint8Array(2_000_000).fill(97));
       console.log((await sandbox.exec("wc -c < large")).stdout.trim());
       console.log((await sandbox.files.read("/workspace/large")).length);
       for await (const event of sandbox.execStream("echo streamed")) {
         if (event.type === "stdout") console.log(event.data.trim());
       }
       let said = "";
       const decoder = new TextDecoder();
       const terminal = await sandbox.terminal({
         command: "stty -echo; read line; echo got $line; exit 5",
         onData: (bytes) => (said += decoder.decode(bytes)),
       });
       terminal.write("typed\\n");
       console.log(await terminal.exited, said.includes("got typed"));
       await sandbox.exec("mkdir -p site && echo inside > site/index.html");
       const server = await sandbox.spawn("cd site && exec python3 -m http.server 8124");
       const forward = await sandbox.forwardPort(8124, { localPort: 0 });
       let page = "";
       while (page === "") {
         page = await fetch(\`http://127.0.0.1:\${forward.localPort}/\`).then((answer) => answer.text(), () => "");
       }
       console.log(page.trim());
       await forward.close();
       await sandbox.files.upload(import.meta.dirname + "/folder", "/workspace/folder");
       console.log((await sandbox.exec("cat folder/file")).stdout);
     } finally {
       await sandbox.delete();
     }`,
  );
  mkdirSync(join(place, "folder"));
  writeFileSync(join(place, "folder/file"), "uploaded");
  const said = await run("bun.mts", { program: join(here, "node_modules/.bin/bun"), args: [] });
  expect(said.trim().split("\n")).toEqual(["2000000", "2000000", "streamed", "5 true", "inside", "uploaded"]);
});

describe("the README", () => {
  const text = readFileSync(join(here, "README.md"), "utf8");
  const programs = [...text.matchAll(/```ts\n(import [\s\S]*?)```/g)].map(([, program]) => program ?? "");

  test("has programs", () => {
    expect(programs.length).toBeGreaterThan(1);
  });

  test.each(programs.map((program, i) => [i + 1, program] as const))("program %i runs", async (i, program) => {
    const file = `readme-${String(i)}.mts`;
    writeFileSync(join(place, file), program);
    const said = await run(file);
    const wanted = [...program.matchAll(/\/\/ prints (.*)$/gm)].map(([, line]) => line);
    expect(said.trim().split("\n")).toEqual(wanted);
  });
});

describe.skipIf(!existsSync(examples))("the published programs run as they stand", () => {
  test("one turn of a conversation, twice in one sandbox", async () => {
    cpSync(join(examples, "block1.mts"), join(place, "block1.mts"));
    const runtime = client();
    const turn = async (): Promise<string> => {
      expect(await run("block1.mts")).toBe("{ ok: true, output: '45\\n', timedOut: false }\n");
      const [sandbox, ...others] = await runtime.sandboxes.list({ name: "chat-c-42" }).toArray();
      expect(others).toEqual([]);
      expect(sandbox?.info).toMatchObject({ labels: { app: "chat" }, idlePauseSeconds: 120, state: "running" });
      return sandbox?.id ?? "";
    };
    const id = await turn();
    const sandbox = await runtime.sandboxes.get(id);
    try {
      // Between two turns it pauses, or stops where the server cannot pause.
      await sandbox.pause().catch(() => sandbox.stop());
      expect(await turn()).toBe(id);
    } finally {
      await sandbox.delete();
    }
  });

  test("one job for each event, however often it comes", async () => {
    cpSync(join(examples, "block2.mts"), join(place, "block2.mts"));
    const id = unique("evt");
    writeFileSync(
      join(place, "twice.mts"),
      `import { onJob } from "./block2.mts";
       const event = { id: "${id}", command: "echo done" };
       console.log(JSON.stringify(await onJob(event)));
       console.log(await onJob(event).then(() => "ran again", ({ code }) => code));`,
    );
    const said = await run("twice.mts");
    expect(said).toMatch(/^\{\s+exitCode: 0,\s+tail: '3\.\d+/);
    expect(said.split("\n").slice(-3)).toEqual(['{"exitCode":0,"tail":"done\\n"}', "start_failed", ""]);
    const runtime = client();
    expect(await runtime.sandboxes.list({ labels: { event: id }, includeStopped: true }).toArray()).toHaveLength(1);
    await runtime.sandboxes.deleteAll({ labels: { app: "jobs" } });
  });
});

describe("the examples of this repository", () => {
  const files = readdirSync(patterns).filter((name) => name.endsWith(".mts"));

  test("are there", () => {
    expect(files.length).toBeGreaterThanOrEqual(3);
  });

  test.each(files)("%s prints what it says", async (file) => {
    const program = readFileSync(join(patterns, file), "utf8");
    const [head = ""] = program.split("*/");
    const wanted = [...head.matchAll(/^ \* {5}(.*)$/gm)].map(([, line]) => line);
    expect(wanted.length).toBeGreaterThan(1);
    writeFileSync(join(place, file), program);
    expect((await run(file)).trim().split("\n")).toEqual(wanted);
    const example = file.replace(/\.mts$/, "");
    expect(await client().sandboxes.list({ labels: { example } }).toArray()).toEqual([]);
  });
});
