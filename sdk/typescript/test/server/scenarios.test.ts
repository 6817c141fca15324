import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";

import { client } from "../support/runtime.js";
import { differences } from "../support/expect.js";
import { play, Unserved, type Scenario } from "../support/scenario.js";

const folder = process.env["RUNTIME_SCENARIOS"] ?? fileURLToPath(new URL("../../../scenarios", import.meta.url));
const tables = existsSync(folder) ? readdirSync(folder).filter((name) => name.endsWith(".json")) : [];

test("the rules of a table tell what matches from what does not", () => {
  const look = (path: string): unknown => ({ "box.id": "1" })[path];
  const match = (value: unknown, expected: unknown): boolean => differences(value, expected, look).length === 0;
  expect(match({ a: 1, b: 2 }, { a: 1 })).toBe(true);
  expect(match({ a: 1 }, { a: 2 })).toBe(false);
  expect(match([1, 2], [1])).toBe(false);
  expect(match({}, { a: null })).toBe(true);
  expect(match("abc", { $matches: "^a" })).toBe(true);
  expect(match("abc", { $matches: "^b" })).toBe(false);
  expect(match([{ a: 1 }, { b: 2 }], { $contains: { b: 2 } })).toBe(true);
  expect(match([{ a: 1 }], { $contains: { b: 2 } })).toBe(false);
  expect(match(undefined, { $absent: true })).toBe(true);
  expect(match(1, { $absent: true })).toBe(false);
  expect(match(undefined, { $not: true })).toBe(true);
  expect(match("1", { $from: "box.id" })).toBe(true);
  expect(match("2", { $from: "box.id" })).toBe(false);
  expect(match("äb", { $length: 2 })).toBe(true);
  expect(match([], { $type: "array" })).toBe(true);
  expect(match({}, { $type: "array" })).toBe(false);
});

describe.skipIf(tables.length === 0).each(tables.length === 0 ? ["none"] : tables)("%s", (table) => {
  const path = join(folder, table);
  const scenarios = existsSync(path)
    ? (JSON.parse(readFileSync(path, "utf8")) as { scenarios: Scenario[] }).scenarios
    : [];
  test.concurrent.each(scenarios.map((scenario) => [scenario.name, scenario] as const))("%s", async (_, scenario) => {
    try {
      await play(client(), scenario);
    } catch (error) {
      // The table itself says what a server may lack; it is told by the step that asks for it.
      if (!(error instanceof Unserved)) throw error;
      console.warn(`not on this server: ${error.message} (${scenario.name})`);
    }
  });
});
