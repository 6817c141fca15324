/**
 * A client of one server, with one key.
 */

import { Sandboxes } from "./sandboxes.js";
import { Snapshots } from "./snapshots.js";
import { environmentVariable } from "./transport/environment.js";
import { Transport, type RequestOptions, type TransportOptions } from "./transport/transport.js";
import type { Limits, Me } from "./types.js";

/** How a {@link Runtime} reaches its server. */
export type RuntimeOptions = TransportOptions;

/** A client. Making one sends nothing; its connections are shared by all it does. */
export class Runtime {
  readonly sandboxes: Sandboxes;
  readonly snapshots: Snapshots;
  /** What the key may use. */
  readonly limits: { get: (options?: RequestOptions) => Promise<Limits> };
  /** Sends requests that have no method here. */
  readonly transport: Transport;

  /** @throws {@link RuntimeError} `invalid_request`: the address is not an origin, or an option is out of range. */
  constructor(options: RuntimeOptions = {}) {
    const transport = new Transport(options);
    this.transport = transport;
    this.sandboxes = new Sandboxes(transport);
    this.snapshots = new Snapshots(transport);
    this.limits = {
      get: (request) => transport.json<Limits>({ method: "GET", path: "/v1/limits", options: request }),
    };
  }

  /** @deprecated The old name of {@link Runtime.sandboxes}. */
  get sandbox(): Sandboxes {
    return this.sandboxes;
  }

  /** @deprecated The old name of {@link Runtime.snapshots}. */
  get snapshot(): Snapshots {
    return this.snapshots;
  }

  /** Whose key this is. */
  async me(options?: RequestOptions): Promise<Me> {
    return await this.transport.json<Me>({ method: "GET", path: "/v1/me", options });
  }
}

let shared: { made: string; runtime: Runtime } | undefined;

/** The client of static methods, made again when the environment names another server or key. @internal */
export function defaultRuntime(): Runtime {
  const made = `${environmentVariable("RUNTIME_API_URL") ?? ""}\n${environmentVariable("RUNTIME_API_KEY") ?? ""}`;
  if (shared?.made !== made) shared = { made, runtime: new Runtime() };
  return shared.runtime;
}
