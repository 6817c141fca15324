import type { RuntimeError } from "../errors.js";

/** Why one attempt failed, with what decides whether there is another. It never leaves this package. */
export class Failure extends Error {
  readonly error: RuntimeError;
  /** It came in the body of an answer that had begun as a success. */
  readonly late: boolean;
  /** The connection was never made: nothing can have run. */
  readonly neverOpened: boolean;

  constructor(error: RuntimeError, facts: { late?: boolean; neverOpened?: boolean } = {}) {
    super(error.message, { cause: error });
    this.error = error;
    this.late = facts.late ?? false;
    this.neverOpened = facts.neverOpened ?? false;
  }
}
