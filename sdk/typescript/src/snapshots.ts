/**
 * Snapshots: what a sandbox was, kept apart from it.
 */

import { errorOf, RuntimeError } from "./errors.js";
import { pageOf, PageRequest, type FetchPage } from "./page.js";
import { path } from "./transport/path.js";
import { sleep } from "./transport/sleep.js";
import type { RequestOptions, Transport } from "./transport/transport.js";
import type { Snapshot, SnapshotMode, SnapshotState, TakeSnapshot, UpdateSnapshot } from "./types.js";

/** Seconds that the answer to a snapshot may be held until it is taken. */
const TAKE_SECONDS = 10;
/** How often one that is being taken is looked at after that. */
const LOOK_MS = 200;
const DEFAULT_TIMEOUT_SECONDS = 600;

/** Which snapshots to list. */
export interface SnapshotFilter {
  /** Of this sandbox, which may be gone. */
  sandboxId?: string | undefined;
  name?: string | undefined;
  state?: SnapshotState | undefined;
  /** Snapshots on a page, 1 to 100. Default 50. */
  limit?: number | undefined;
}

/** How a snapshot is taken. */
export interface SnapshotOptions extends RequestOptions {
  /** Seconds until the wait for it is given up. Default 600. */
  timeoutSeconds?: number | undefined;
}

/** The snapshots of a client. */
export class Snapshots {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * Asks for a snapshot and answers with its record, which may still say `capturing`; {@link Sandbox.snapshot} waits.
   *
   * @throws {@link ConflictError} the sandbox's state does not allow it; {@link NotFoundError} `not_found`.
   */
  async create(sandboxId: string, input: TakeSnapshot = {}, options?: RequestOptions): Promise<Snapshot> {
    return await this.#transport.json<Snapshot>({
      method: "POST",
      path: `${path("sandboxes", sandboxId)}:snapshot`,
      body: input,
      preferWaitSeconds: TAKE_SECONDS,
      options,
    });
  }

  /** @throws {@link NotFoundError} `not_found`: there is none, or not for this key. */
  async get(id: string, options?: RequestOptions): Promise<Snapshot> {
    return await this.#transport.json<Snapshot>({ method: "GET", path: path("snapshots", id), options });
  }

  /** Snapshots, oldest first: await a page, or iterate over all. */
  list(filter: SnapshotFilter = {}, options?: RequestOptions): PageRequest<Snapshot> {
    const { sandboxId, name, state, limit } = filter;
    const fetch: FetchPage<Snapshot> = async (cursor) =>
      pageOf(
        await this.#transport.json({
          method: "GET",
          path: path("snapshots"),
          query: { sandboxId, name, state, limit, cursor },
          options,
        }),
        (record) => record as Snapshot,
        fetch,
      );
    return new PageRequest(fetch);
  }

  /**
   * Changes its name or its labels; what is left out stays.
   *
   * @throws {@link ConflictError} `snapshot_metadata_changed`: its labels are no longer those of `ifLabels`.
   */
  async update(id: string, changes: UpdateSnapshot, options?: RequestOptions): Promise<Snapshot> {
    return await this.#post(id, "update", changes, options);
  }

  /** Keeps it for so many days from now on, 1 to 365, but never more than a year from when it was taken. */
  async extend(id: string, retentionDays: number, options?: RequestOptions): Promise<Snapshot> {
    return await this.#post(id, "extend", { retentionDays }, options);
  }

  /** Removes it; sandboxes that were made from it stay. Doing it twice is no error. */
  async delete(id: string, options?: RequestOptions): Promise<Snapshot> {
    return await this.#post(id, "delete", {}, options);
  }

  async #post(id: string, verb: string, body: object, options?: RequestOptions): Promise<Snapshot> {
    return await this.#transport.json<Snapshot>({
      method: "POST",
      path: `${path("snapshots", id)}:${verb}`,
      body,
      options,
    });
  }
}

/** Takes a snapshot and waits until it can be used. @internal */
export async function takeSnapshot(
  transport: Transport,
  sandboxId: string,
  input: TakeSnapshot,
  options: SnapshotOptions,
): Promise<Snapshot> {
  const { timeoutSeconds = DEFAULT_TIMEOUT_SECONDS, ...request } = options;
  const { signal, timeoutMs } = request;
  const snapshots = new Snapshots(transport);
  const began = performance.now();
  let snapshot = await snapshots.create(sandboxId, input, request);
  while (snapshot.state === "capturing") {
    const details = { snapshotId: snapshot.id, sourceSandboxId: sandboxId };
    if (performance.now() - began > timeoutSeconds * 1000) {
      const message = `the snapshot ${snapshot.id} was not taken within ${String(timeoutSeconds)} s`;
      throw new RuntimeError({ code: "snapshot_timeout", message, details });
    }
    if (!(await sleep(LOOK_MS, signal))) {
      const message = "waiting for the snapshot was cancelled by its signal";
      throw new RuntimeError({ code: "timeout", message, details, cause: signal?.reason });
    }
    snapshot = await snapshots.get(snapshot.id, { signal, timeoutMs });
  }
  return checked(snapshot, sandboxId, input.mode);
}

function checked(snapshot: Snapshot, sandboxId: string, wanted: SnapshotMode | undefined): Snapshot {
  const { id, state, mode, error } = snapshot;
  const details = { snapshotId: id, sourceSandboxId: sandboxId };
  if (state !== "ready") {
    const why = error == null ? "" : `: ${error}`;
    throw errorOf({ code: "snapshot_failed", status: 409, message: `the snapshot ${id} is ${state}${why}`, details });
  }
  if (wanted !== undefined && mode !== wanted) {
    const message = `the snapshot ${id} is one of mode ${mode}, not ${wanted}`;
    throw new RuntimeError({ code: "snapshot_mode_mismatch", message, details });
  }
  return snapshot;
}
