import { afterAll, inject } from "vitest";

import { Runtime, type CreateInput, type RuntimeOptions, type Sandbox } from "../../src/index.js";

/** A client of the tests' server. */
export function client(options: RuntimeOptions = {}): Runtime {
  return new Runtime({ baseUrl: inject("url"), apiKey: inject("key"), ...options });
}

const made: string[] = [];

/** A small sandbox that goes with the file's tests. */
export async function box(input: CreateInput = {}, runtime = client()): Promise<Sandbox> {
  const sandbox = await runtime.sandboxes.create({ vcpu: 1, memoryMiB: 512, ...input });
  made.push(sandbox.id);
  return sandbox;
}

afterAll(async () => {
  // Not by the sandboxes themselves: the way of some leads through a proxy that is gone.
  const { sandboxes } = client();
  await Promise.all(made.map((id) => sandboxes.delete(id)));
});

/** A name nobody else uses. */
export function unique(prefix: string): string {
  return `${prefix}-${crypto.randomUUID().slice(0, 8)}`;
}

/** The error that a promise ends with. */
export async function failure<E extends Error>(
  promise: Promise<unknown>,
  kind: abstract new (...args: never[]) => E,
): Promise<E> {
  const error: unknown = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (error instanceof kind) return error;
  throw new Error(`expected ${kind.name}, got ${String(error)}`, { cause: error });
}
