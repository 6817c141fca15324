/**
 * Previews: ports of a sandbox as web addresses.
 */

import { RuntimeError } from "./errors.js";
import { path } from "./transport/path.js";
import type { RequestOptions, Transport } from "./transport/transport.js";

/** A port of a sandbox under a web address. */
export interface Preview {
  id: string;
  sandboxId: string;
  port: number;
  /** `private`: with a token; `public`: for everybody who has the address. */
  visibility: PreviewVisibility;
  url: string;
  /** Programs send it as `X-Runtime-Preview-Token`. Null if it is public, and for a key that may only read. */
  token: string | null;
  tokenExpiresAt: string | null;
  /** To be opened in a browser. */
  urlWithToken: string | null;
  disabled: boolean;
  /** Sites that may show it in a frame; null: any. */
  embedOrigins: string[] | null;
  createdAt: string;
  hint?: string;
}

/** Who may see a preview. */
export type PreviewVisibility = "private" | "public";

/** How long the token of an answer lasts. */
export interface PreviewToken {
  /** Seconds at least, 60 to 604,800. Default a day. */
  ttlSeconds?: number | undefined;
  /** When it ends at the latest: a time with its zone, 60 seconds to 7 days ahead. */
  expiresAt?: string | undefined;
}

/** How a port is shared. */
export interface CreatePreview extends PreviewToken {
  /** Default `private`. */
  visibility?: PreviewVisibility | undefined;
  /**
   * At most 16: `https://host`, `https://*.host` or `http://localhost[:port]`. Left out, those of before stay; null or
   * empty: any site.
   */
  embedOrigins?: readonly string[] | null | undefined;
}

/** A preview that is gone. */
export interface DeletedPreview {
  id: string;
  sandboxId: string;
  port: number;
  deleted: boolean;
}

/** The previews of one sandbox. */
export class Previews {
  readonly #transport: Transport;
  readonly #sandboxId: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
  }

  /**
   * Gives a port an address, or changes who may see the one it has. A visit wakes the sandbox when it is paused.
   *
   * @throws {@link InvalidRequestError} `invalid_request`: `details.issues` names every wrong field.
   */
  async create(port: number, input: CreatePreview = {}, options?: RequestOptions): Promise<Preview> {
    const body = { port, ...input };
    const preview = await this.#transport.json<Preview>({ method: "POST", path: this.#path(), body, options });
    return keptTo(input.expiresAt, preview);
  }

  /** All of them, by port; each private one with a token that lasts a day. */
  async list(options?: RequestOptions): Promise<Preview[]> {
    const answer = await this.#transport.json<{ data: Preview[] }>({ method: "GET", path: this.#path(), options });
    return answer.data;
  }

  /**
   * One of them; a private one with a token that lasts as asked.
   *
   * @throws {@link NotFoundError} `not_found`: the port has no address.
   */
  async get(port: number, token: PreviewToken = {}, options?: RequestOptions): Promise<Preview> {
    const { ttlSeconds, expiresAt } = token;
    const preview = await this.#transport.json<Preview>({
      method: "GET",
      path: this.#path(port),
      query: { ttlSeconds, expiresAt },
      options,
    });
    return keptTo(expiresAt, preview);
  }

  /** Ends every token of before, and what is open by one; answers the preview with a new one. */
  async rotate(port: number, options?: RequestOptions): Promise<Preview> {
    return await this.#transport.json<Preview>({
      method: "POST",
      path: `${this.#path(port)}:rotate`,
      body: {},
      options,
    });
  }

  /** Takes the address away, and cuts what is open there. */
  async delete(port: number, options?: RequestOptions): Promise<DeletedPreview> {
    return await this.#transport.json<DeletedPreview>({ method: "DELETE", path: this.#path(port), options });
  }

  #path(port?: number): string {
    return port === undefined
      ? path("sandboxes", this.#sandboxId, "previews")
      : path("sandboxes", this.#sandboxId, "previews", String(port));
  }
}

/** A token that lasts longer than was asked is not handed on. */
function keptTo(expiresAt: string | undefined, preview: Preview): Preview {
  const { port, tokenExpiresAt: ends } = preview;
  // What Date cannot read compares as false.
  if (expiresAt !== undefined && ends !== null && Date.parse(ends) > Date.parse(expiresAt)) {
    throw new RuntimeError({
      code: "invalid_answer",
      message: `the token lasts until ${ends}, longer than was asked`,
      hint: `Rotate it: sandbox.previews.rotate(${String(port)}).`,
    });
  }
  return preview;
}
