/** JSON lines out of a body that arrives in pieces. */

import { RuntimeError } from "../errors.js";
import { isObject } from "../transport/answer.js";

/** Characters of one event; the server's largest is a 64 KiB piece of output, twice encoded. */
const MAX_LINE = 4 * 1024 * 1024;

/** Splits pieces into lines; blank ones are heartbeats and are dropped. */
export class Lines {
  readonly #decoder = new TextDecoder();
  #held = "";

  /** The objects whose lines end in this piece. */
  push(piece: Uint8Array): Record<string, unknown>[] {
    const text = this.#decoder.decode(piece, { stream: true });
    const parts = text.split("\n");
    const last = parts.pop() ?? "";
    const found: Record<string, unknown>[] = [];
    for (const part of parts) {
      const line = (this.#held + part).trim();
      this.#held = "";
      if (line !== "") found.push(parse(line));
    }
    this.#held += last;
    if (this.#held.length > MAX_LINE) throw badStream("a line of the stream is too long");
    return found;
  }
}

function parse(line: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    throw badStream("a line of the stream is not JSON");
  }
  if (!isObject(value)) throw badStream("a line of the stream is not an object");
  return value;
}

/** What came makes no sense. */
export function badStream(message: string): RuntimeError {
  return new RuntimeError({ code: "stream_failed", message });
}
