/**
 * Sessions: a way into one sandbox for a web page, without a key.
 */

import { RuntimeError } from "./errors.js";
import { path } from "./transport/path.js";
import type { RequestOptions, Transport } from "./transport/transport.js";
import type { CreateSession, NewSession, Session } from "./types.js";

/** The sessions of one sandbox. */
export class Sessions {
  readonly #transport: Transport;
  readonly #sandboxId: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
  }

  /**
   * Makes a session; {@link Sandbox.fromSession} uses its token. It reaches this sandbox's commands, processes, files and
   * record, and nothing else, until it expires, is revoked, or the key that made it is.
   *
   * The server keeps no token: where the answer repeats a lost one it has none. That session is then revoked, and another
   * is made.
   *
   * @throws {@link RuntimeError} `session_token_lost`: it came without a token both times;
   * {@link InvalidRequestError} `invalid_request`: an origin is not written as browsers write it.
   */
  async create(input: CreateSession = {}, options: RequestOptions = {}): Promise<NewSession> {
    const { idempotencyKey, ...later } = options;
    const first = await this.#create(input, { idempotencyKey, ...later });
    if (hasToken(first)) return first;
    await this.revoke(first.id, later);
    const second = await this.#create(input, later);
    if (hasToken(second)) return second;
    await this.revoke(second.id, later).catch(() => undefined);
    throw new RuntimeError({
      code: "session_token_lost",
      message: "the server made the session twice without telling its token",
      hint: "Ask again; those whose token was lost were revoked.",
      details: { sessionId: second.id },
    });
  }

  /** Those that are active, and those that ended within a day, newest first; without their tokens. */
  async list(options?: RequestOptions): Promise<Session[]> {
    const answer = await this.#transport.json<{ data: Session[] }>({ method: "GET", path: this.#path(), options });
    return answer.data;
  }

  /** Ends a session now, with what it has open. Doing it twice is no error. */
  async revoke(id: string, options?: RequestOptions): Promise<Session> {
    return await this.#transport.json<Session>({
      method: "POST",
      path: `${path("sandboxes", this.#sandboxId, "sessions", id)}:revoke`,
      body: {},
      options,
    });
  }

  async #create(input: CreateSession, options: RequestOptions): Promise<Session & { token?: string | null }> {
    return await this.#transport.json({ method: "POST", path: this.#path(), body: input, options });
  }

  #path(): string {
    return path("sandboxes", this.#sandboxId, "sessions");
  }
}

function hasToken(session: Session & { token?: string | null }): session is NewSession {
  return typeof session.token === "string" && session.token !== "";
}
