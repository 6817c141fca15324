/**
 * A file on its way here. Its end is only the end if the length, and the digest where one was announced, agree.
 */

import { RuntimeError } from "../errors.js";
import { connectionFailure, concat } from "../transport/answer.js";
import { path } from "../transport/path.js";
import type { Opened, RequestOptions, Transport } from "../transport/transport.js";
import { streamOf } from "./pieces.js";
import { Sha256 } from "./sha256.js";

/** A whole read that comes short is made again this often. */
const REREADS = 2;

/** Reads a whole file; one that changed under the read, or was cut, is read again. */
export async function download(
  transport: Transport,
  sandboxId: string,
  file: string,
  options: RequestOptions = {},
): Promise<Uint8Array> {
  for (let rereads = 0; ; rereads += 1) {
    try {
      const pieces: Uint8Array[] = [];
      let length = 0;
      for await (const piece of verified(await openFile(transport, sandboxId, file, options), transport, file)) {
        pieces.push(piece);
        length += piece.length;
      }
      return concat(pieces, length);
    } catch (error) {
      const isShort = error instanceof RuntimeError && error.code === "download_incomplete";
      if (!isShort || rereads >= REREADS || options.signal?.aborted === true) throw error;
    }
  }
}

/** Opens a file as it streams; the stream fails at its end if it was not all of the file. */
export async function downloadStream(
  transport: Transport,
  sandboxId: string,
  file: string,
  options: RequestOptions = {},
): Promise<ReadableStream<Uint8Array>> {
  return streamOf(verified(await openFile(transport, sandboxId, file, options), transport, file));
}

function openFile(transport: Transport, sandboxId: string, file: string, options: RequestOptions): Promise<Opened> {
  return transport.open({
    method: "GET",
    path: path("sandboxes", sandboxId, "files", "content"),
    query: { path: file },
    accept: "application/octet-stream",
    options,
  });
}

async function* verified(
  opened: Opened,
  transport: Transport,
  file: string,
): AsyncGenerator<Uint8Array, void, undefined> {
  const announced = opened.headers.get("x-content-length");
  const expected = announced !== null && /^\d+$/.test(announced) ? Number(announced) : undefined;
  const digest = opened.headers.get("x-content-sha256")?.toLowerCase();
  const hash = digest === undefined ? undefined : new Sha256();
  let received = 0;
  const incomplete = (why: string, cause?: unknown): RuntimeError =>
    new RuntimeError({
      code: "download_incomplete",
      message: `${file}: ${why} (${String(received)} of ${String(expected ?? "?")} bytes)`,
      hint: "The file may be changing while it is read; try again.",
      details: { received, expected: expected ?? null },
      cause,
    });
  try {
    const reader = opened.body.getReader();
    for (;;) {
      let piece: ReadableStreamReadResult<Uint8Array>;
      try {
        piece = await reader.read();
      } catch (cause) {
        const { error } = connectionFailure(transport.origin, cause);
        throw expected === undefined ? error : incomplete("the connection was cut", error);
      }
      if (piece.done) break;
      received += piece.value.length;
      if (expected !== undefined && received > expected) throw incomplete("more came than the server announced");
      hash?.update(piece.value);
      yield piece.value;
    }
    if (expected !== undefined && received !== expected) throw incomplete("the file ended early");
    if (hash !== undefined && hash.hex() !== digest) throw incomplete("the bytes are not those the server announced");
  } finally {
    opened.close();
  }
}
