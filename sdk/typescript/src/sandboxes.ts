/**
 * All sandboxes that a key can reach.
 */

import { invalidRequest, RuntimeError } from "./errors.js";
import type { KeepAliveOptions } from "./keep-alive.js";
import { pageOf, PageRequest, type FetchPage } from "./page.js";
import { Sandbox } from "./sandbox.js";
import { path } from "./transport/path.js";
import type { CapacityWait, RequestOptions, Transport } from "./transport/transport.js";
import type { CreateSandbox, DeletedSandbox, SandboxInfo, SandboxState } from "./types.js";

/** Seconds that a create waits for its sandbox, and once more if need be. */
const START_SECONDS = 60;
/** How many sandboxes are stopped or deleted at once. */
const AT_ONCE = 8;

/** A new sandbox, and what the client does with it. */
export interface CreateInput extends CreateSandbox {
  /** Wait until it runs. Default true. */
  wait?: boolean | undefined;
  /** The end of an `await using` block only stops it. Default false. */
  keep?: boolean | undefined;
  /** Extend its time limit again and again; as {@link Sandbox.keepAlive}. */
  keepAlive?: boolean | KeepAliveOptions | undefined;
}

/** How a sandbox is created. */
export interface CreateOptions extends RequestOptions {
  /** Milliseconds to wait for room; 0: fail at once. Default: the client's, 120,000. */
  waitForCapacityMs?: number | undefined;
  /** Told before each such wait. */
  onCapacityWait?: CapacityWait | undefined;
}

/** Which sandboxes to list. */
export interface ListFilter {
  /** Any of these. */
  state?: readonly SandboxState[] | undefined;
  /** All of these. */
  labels?: Record<string, string> | undefined;
  name?: string | undefined;
  /** Also stopped ones whose disk is gone. Default false. */
  includeStopped?: boolean | undefined;
  /** Sandboxes on a page, 1 to 100. Default 50. */
  limit?: number | undefined;
}

/** What a change of many came to. */
export interface BulkFailure {
  id: string;
  error: RuntimeError;
}

/** The sandboxes of a client. */
export class Sandboxes {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** As {@link Sandbox.create}. */
  async create(input: CreateInput = {}, options: CreateOptions = {}): Promise<Sandbox> {
    return await this.#create(createBody(input), input, options);
  }

  /** As {@link Sandbox.getOrCreate}. */
  async getOrCreate(
    name: string,
    input: Omit<CreateInput, "name"> = {},
    options: CreateOptions = {},
  ): Promise<Sandbox> {
    return await this.#create(createBody({ ...input, name, getOrCreate: true }), input, options);
  }

  async #create(body: CreateSandbox, input: CreateInput, options: CreateOptions): Promise<Sandbox> {
    const { waitForCapacityMs, onCapacityWait, ...request } = options;
    const wait = input.wait ?? true;
    const info = await this.#transport.json<SandboxInfo>({
      method: "POST",
      path: path("sandboxes"),
      body,
      ...(wait ? { preferWaitSeconds: START_SECONDS } : {}),
      room: { waitMs: waitForCapacityMs, onWait: onCapacityWait },
      options: pick(request),
    });
    const isFound = info.reused === true;
    const sandbox = new Sandbox(this.#transport, info, isFound || input.keep === true ? "stop" : "delete");
    if (wait) {
      if (sandbox.state !== "running") {
        const { signal, timeoutMs } = request;
        await sandbox.waitFor("running", { timeoutSeconds: START_SECONDS, signal, timeoutMs });
      }
      if (sandbox.state !== "running") throw startFailed(sandbox, info.replayed === true);
    }
    if (input.keepAlive !== undefined && input.keepAlive !== false) {
      sandbox.keepAlive(input.keepAlive === true ? {} : input.keepAlive);
    }
    return sandbox;
  }

  /** @throws {@link NotFoundError} `not_found`: there is none, or not for this key. */
  async get(id: string, options: RequestOptions = {}): Promise<Sandbox> {
    const info = await this.#transport.json<SandboxInfo>({
      method: "GET",
      path: path("sandboxes", id),
      options: pick(options),
    });
    return new Sandbox(this.#transport, info, "stop");
  }

  /** As {@link Sandbox.delete}, where only the id is known. */
  async delete(id: string, options: RequestOptions = {}): Promise<DeletedSandbox> {
    return await this.#transport.json<DeletedSandbox>({
      method: "DELETE",
      path: path("sandboxes", id),
      options: pick(options),
    });
  }

  /** Sandboxes, oldest first: await a page, or iterate over all. */
  list(filter: ListFilter = {}, options: RequestOptions = {}): PageRequest<Sandbox> {
    const { labels, ...rest } = filter;
    const label = Object.entries(labels ?? {}).map(([key, value]) => `${key}:${value}`);
    const fetch: FetchPage<Sandbox> = async (cursor) =>
      pageOf(
        await this.#transport.json({
          method: "GET",
          path: path("sandboxes"),
          query: { ...rest, label, cursor },
          options: pick(options),
        }),
        (info) => new Sandbox(this.#transport, info as SandboxInfo, "stop"),
        fetch,
      );
    return new PageRequest(fetch);
  }

  /**
   * Stops every sandbox that has all of these labels, eight at a time; one that cannot be stopped does not hold up the
   * others.
   *
   * @throws {@link InvalidRequestError} `invalid_request`: no label was given, so all sandboxes would be meant.
   */
  async stopAll(
    which: { labels: Record<string, string> },
    options: RequestOptions = {},
  ): Promise<{ /** Ids. */ stopped: string[]; failed: BulkFailure[] }> {
    const { done, failed } = await this.#each(which.labels, {}, options, (sandbox) => sandbox.stop(later(options)));
    return { stopped: done, failed };
  }

  /** Deletes every sandbox that has all of these labels, stopped ones too. As {@link Sandboxes.stopAll}. */
  async deleteAll(
    which: { labels: Record<string, string> },
    options: RequestOptions = {},
  ): Promise<{ /** Ids. */ deleted: string[]; failed: BulkFailure[] }> {
    const { done, failed } = await this.#each(which.labels, { includeStopped: true }, options, (sandbox) =>
      sandbox.delete(later(options)),
    );
    return { deleted: done, failed };
  }

  async #each(
    labels: Record<string, string>,
    filter: ListFilter,
    options: RequestOptions,
    change: (sandbox: Sandbox) => Promise<unknown>,
  ): Promise<{ done: string[]; failed: BulkFailure[] }> {
    if (Object.keys(labels).length === 0) {
      throw invalidRequest("labels must not be empty", "Without a label every sandbox would be meant.");
    }
    // All of them first: a change would move what the later pages begin with.
    const waiting = await this.list({ ...filter, labels, limit: 100 }, later(options)).toArray(Infinity);
    const done: string[] = [];
    const failed: BulkFailure[] = [];
    const worker = async (): Promise<void> => {
      for (let sandbox = waiting.shift(); sandbox !== undefined; sandbox = waiting.shift()) {
        try {
          await change(sandbox);
          done.push(sandbox.id);
        } catch (error) {
          if (!(error instanceof RuntimeError)) throw error;
          failed.push({ id: sandbox.id, error });
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    return { done, failed };
  }
}

/** What of the input goes to the server; a list of that would fall behind the contract, so what stays here is listed. */
function createBody(input: CreateInput & { getOrCreate?: boolean }): CreateSandbox {
  const { keep: _keep, wait: _wait, keepAlive: _keepAlive, ...body } = input;
  return body;
}

function startFailed(sandbox: Sandbox, isReplayed: boolean): RuntimeError {
  const { id, state, info } = sandbox;
  const why = info.stopReason == null ? "" : ` (${info.stopReason})`;
  return new RuntimeError({
    code: "start_failed",
    message: isReplayed
      ? `the sandbox ${id} was made by an earlier call with this idempotency key and is ${state} now${why}`
      : `the sandbox ${id} did not come to run: it is ${state}${why}`,
    hint: isReplayed ? "Use another idempotency key for a new sandbox, or restart this one." : undefined,
    details: { sandboxId: id, state, stopReason: info.stopReason ?? null, replayed: isReplayed },
  });
}

/** Only what a request knows: callers hand on objects that hold more. */
function pick({ idempotencyKey, signal, timeoutMs }: RequestOptions): RequestOptions {
  return { idempotencyKey, signal, timeoutMs };
}

/** For one of many calls: a key names only one. */
function later({ signal, timeoutMs }: RequestOptions): RequestOptions {
  return { signal, timeoutMs };
}
