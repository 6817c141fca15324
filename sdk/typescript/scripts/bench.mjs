// What the package costs: its size, its import, and a call through it against the same call by bare `fetch`, in turns.
//
//   RUNTIME_API_URL=… RUNTIME_API_KEY=… node scripts/bench.mjs        after `npm run build`

import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const here = join(import.meta.dirname, "..");
const entry = join(here, "dist/index.js");
const CALLS = 300;

const files = readdirSync(join(here, "dist"), { recursive: true, encoding: "utf8" });
const code = Buffer.concat(
  files.filter((name) => name.endsWith(".js")).map((name) => readFileSync(join(here, "dist", name))),
);
console.log(`size: ${code.length} bytes of code, ${gzipSync(code).length} compressed`);

// As a bundler ships it in a program that uses all of the package.
const { build } = await import("vite");
const bundle = await build({
  logLevel: "silent",
  configFile: false,
  build: { write: false, minify: true, lib: { entry, formats: ["es"] } },
});
const shipped = Buffer.from([bundle].flat().flatMap(({ output }) => output)[0].code);
console.log(`bundle: ${shipped.length} bytes minified, ${gzipSync(shipped).length} compressed`);

const importing = `const t = performance.now(); await import(${JSON.stringify(entry)}); console.log(performance.now() - t)`;
const imports = Array.from({ length: 15 }, () =>
  Number(execFileSync(process.execPath, ["--input-type=module", "-e", importing], { encoding: "utf8" })),
);
console.log(`import: ${median(imports).toFixed(1)} ms`);

const { RUNTIME_API_URL: url, RUNTIME_API_KEY: key } = process.env;
if (url === undefined || key === undefined) {
  console.log("calls: not measured, RUNTIME_API_URL and RUNTIME_API_KEY name no server");
  process.exit();
}
const { Runtime } = await import(entry);
const runtime = new Runtime();
const bare = async () => (await fetch(`${url}/v1/me`, { headers: { authorization: `Bearer ${key}` } })).json();
const times = { bare: [], client: [] };
for (let i = 0; i < CALLS + 50; i += 1) {
  for (const [name, call] of i % 2 === 0 ? Object.entries(calls()) : Object.entries(calls()).reverse()) {
    const began = performance.now();
    await call();
    // The first ones warm both up.
    if (i >= 50) times[name].push(performance.now() - began);
  }
}
const [a, b] = [median(times.bare), median(times.client)];
console.log(`calls: ${a.toFixed(3)} ms bare, ${b.toFixed(3)} ms through the client: ${(b / a).toFixed(2)} times`);

function calls() {
  return { bare, client: () => runtime.me() };
}

function median(values) {
  return values.toSorted((x, y) => x - y)[Math.floor(values.length / 2)];
}
