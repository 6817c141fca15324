/**
 * What a sandbox may reach, and what became of what it tried.
 */

import { pageOf, PageRequest, type FetchPage } from "./page.js";
import { path } from "./transport/path.js";
import type { RequestOptions, Transport } from "./transport/transport.js";
import type { NetworkDecision, NetworkSettings, SandboxNetwork } from "./types.js";

/** The rules of one sandbox for what leaves it. */
export class Network {
  readonly #transport: Transport;
  readonly #sandboxId: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
  }

  /** The rules, and whether they are in force. */
  async get(options?: RequestOptions): Promise<SandboxNetwork> {
    return await this.#transport.json<SandboxNetwork>({ method: "GET", path: this.#path(), options });
  }

  /**
   * Replaces all rules: what is left out is emptied. They are in force when this resolves, for connections that are open
   * as well.
   *
   * @throws {@link InvalidRequestError} `invalid_request`: an entry does not read.
   */
  async set(rules: NetworkSettings, options?: RequestOptions): Promise<SandboxNetwork> {
    return await this.#transport.json<SandboxNetwork>({ method: "PUT", path: this.#path(), body: rules, options });
  }

  /** Opens it to every public address; its lists are emptied. */
  async on(options?: RequestOptions): Promise<SandboxNetwork> {
    return await this.set({ internet: true }, options);
  }

  /** Refuses everything; its lists are emptied. */
  async off(options?: RequestOptions): Promise<SandboxNetwork> {
    return await this.set({ internet: false }, options);
  }

  /**
   * What was decided about its connections, newest first: await a page, or iterate over all that are kept, the last
   * thousand until the server stops.
   *
   * @param filter - `limit`: decisions on a page, 1 to 200, by default 50.
   */
  decisions(filter: { limit?: number | undefined } = {}, options?: RequestOptions): PageRequest<NetworkDecision> {
    const { limit } = filter;
    const fetch: FetchPage<NetworkDecision> = async (cursor) =>
      pageOf(
        await this.#transport.json({
          method: "GET",
          path: `${this.#path()}/decisions`,
          query: { limit, cursor },
          options,
        }),
        (record) => record as NetworkDecision,
        fetch,
      );
    return new PageRequest(fetch);
  }

  #path(): string {
    return path("sandboxes", this.#sandboxId, "network");
  }
}
