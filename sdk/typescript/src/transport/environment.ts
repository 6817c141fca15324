/**
 * What the surroundings know: environment variables, and whether this program runs inside a sandbox. The one place that
 * touches Node's world; in a browser there is neither, and nothing is imported.
 */

interface NodeLike {
  env?: Record<string, string | undefined>;
  getBuiltinModule?: (name: string) => unknown;
}

const MARKER = "/run/runtime/environment.json";

function nodeProcess(): NodeLike | undefined {
  return (globalThis as { process?: NodeLike }).process;
}

/** The variable's value, if this runs where there are variables. */
export function environmentVariable(name: string): string | undefined {
  return nodeProcess()?.env?.[name];
}

/** A module of Node, where there is one; programs for browsers import nothing by this. */
export function builtin(name: string): unknown {
  return nodeProcess()?.getBuiltinModule?.(name);
}

/** A package that is needed on Node.js alone; bundlers for browsers do not see it. */
export function nodePackage(name: string): unknown {
  const module = builtin("node:module") as { createRequire: (from: string) => (name: string) => unknown } | undefined;
  return module?.createRequire(import.meta.url)(name);
}

/** Whether this is Node.js itself: Bun, which has its modules, knows proxies by itself. */
export function isNode(): boolean {
  const versions = (globalThis as { process?: { versions?: Record<string, string | undefined> } }).process?.versions;
  return versions?.["node"] !== undefined && versions["bun"] === undefined;
}

/** Whether the marker of a sandbox's inside is there. */
export function isInsideSandbox(): boolean {
  const files = builtin("node:fs") as { existsSync: (path: string) => boolean } | undefined;
  return files?.existsSync(MARKER) ?? false;
}
