/** Bytes that come in pieces, whatever they come from. */

import { utf8 } from "../commands/bytes.js";
import { concat } from "../transport/answer.js";

/** Bytes that are here, or can be asked for again. */
export type FileData = string | Uint8Array | ArrayBuffer | Blob;

/** Bytes that come once. */
export type FileStream = ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

/** The pieces, in order. Leaving the loop early cancels what they come from. */
export async function* piecesOf(data: FileData | FileStream): AsyncGenerator<Uint8Array, void, undefined> {
  if (typeof data === "string") yield utf8(data);
  else if (data instanceof Uint8Array) yield data;
  else if (data instanceof ArrayBuffer) yield new Uint8Array(data);
  else if (data instanceof Blob) yield* read(data.stream());
  else if ("getReader" in data) yield* read(data);
  else yield* data;
}

/** Not every platform lets one iterate over a stream. */
async function* read(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = stream.getReader();
  let isOver = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      isOver = done;
      if (done) return;
      yield value;
    }
  } finally {
    if (!isOver) await reader.cancel().catch(() => undefined);
  }
}

/** The same bytes in parts of a size; only the last is shorter, and there is one even of nothing. */
export async function* partsOf(
  pieces: AsyncIterable<Uint8Array>,
  size: number,
): AsyncGenerator<{ bytes: Uint8Array; isLast: boolean }, void, undefined> {
  let held: Uint8Array[] = [];
  let length = 0;
  for await (const piece of pieces) {
    for (let at = 0; at < piece.length;) {
      // Only now is it known that a full part is not the last.
      if (length === size) {
        yield { bytes: concat(held, length), isLast: false };
        held = [];
        length = 0;
      }
      const taken = piece.subarray(at, at + size - length);
      // Whoever makes the pieces may use their memory again.
      held.push(taken.slice());
      length += taken.length;
      at += taken.length;
    }
  }
  yield { bytes: concat(held, length), isLast: true };
}

/** A stream of the pieces. */
export function streamOf(pieces: AsyncGenerator<Uint8Array, void, undefined>): ReadableStream<Uint8Array> {
  return new ReadableStream<Uint8Array>({
    async pull(controller): Promise<void> {
      const next = await pieces.next();
      if (next.done === true) controller.close();
      else controller.enqueue(next.value);
    },
    async cancel(): Promise<void> {
      await pieces.return();
    },
  });
}
