/**
 * Folders as tar, out of a sandbox and into it.
 */

import { RuntimeError } from "../errors.js";
import { connectionFailure } from "../transport/answer.js";
import { newKey } from "../transport/key.js";
import { path } from "../transport/path.js";
import type { RequestOptions, Transport } from "../transport/transport.js";
import type { Schema } from "../types.js";
import { partsOf, piecesOf, streamOf, type FileData, type FileStream } from "./pieces.js";
import { abort, checkedChunk, MAX_WRITE, phaseKey } from "./upload.js";

/** How {@link Files.archive} packs. */
export interface ArchiveOptions extends RequestOptions {
  /** Compressed. Default true. */
  gzip?: boolean | undefined;
  /** Paths below the folder that are left out with all below them; no patterns. */
  exclude?: readonly string[] | undefined;
  /** Who reads. Default `sandbox`. */
  user?: "sandbox" | "root" | undefined;
}

/** How {@link Files.unarchive} unpacks. */
export interface UnarchiveOptions extends RequestOptions {
  /** For the server's log alone: what an archive is shows in its first bytes. */
  gzip?: boolean | undefined;
  /** Who writes. Default `sandbox`. */
  user?: "sandbox" | "root" | undefined;
}

/** A folder as it is packed. The stream fails if the archive was cut. */
export async function archive(
  transport: Transport,
  sandboxId: string,
  folder: string,
  options: ArchiveOptions,
): Promise<ReadableStream<Uint8Array>> {
  const { gzip = true, exclude, user, ...request } = options;
  const opened = await transport.open({
    method: "GET",
    path: path("sandboxes", sandboxId, "files", "archive"),
    query: { path: folder, gzip, user, exclude },
    accept: "application/octet-stream",
    options: request,
  });
  const pieces = async function* (): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for await (const piece of piecesOf(opened.body)) yield piece;
    } catch (cause) {
      const message = `${folder}: the connection was cut while it was packed`;
      throw new RuntimeError({
        code: "download_incomplete",
        message,
        cause: connectionFailure(transport.origin, cause).error,
      });
    } finally {
      opened.close();
    }
  };
  return streamOf(pieces());
}

/** Unpacks an archive of any size into a folder. */
export async function unarchive(
  transport: Transport,
  sandboxId: string,
  folder: string,
  data: FileData | FileStream,
  options: UnarchiveOptions,
): Promise<void> {
  const { gzip, user, idempotencyKey, signal, timeoutMs } = options;
  const parts = partsOf(piecesOf(data), MAX_WRITE);
  const first = await parts.next();
  if (first.done === true) return;
  if (first.value.isLast) {
    await transport.json({
      method: "PUT",
      path: path("sandboxes", sandboxId, "files", "archive"),
      query: { path: folder, user },
      bytes: first.value.bytes,
      options: { idempotencyKey, signal, timeoutMs },
    });
    return;
  }
  const key = idempotencyKey ?? newKey();
  const request = (phase: string): RequestOptions => ({
    idempotencyKey: phaseKey("files.unarchive", key, phase),
    signal,
    timeoutMs,
  });
  try {
    const { uploadId, chunkBytes } = await transport.json<Schema["UploadStarted"]>({
      method: "POST",
      path: path("sandboxes", sandboxId, "files", "archive", "uploads"),
      body: { path: folder, gzip, user },
      options: request("start"),
    });
    const most = checkedChunk(chunkBytes);
    const at = path("sandboxes", sandboxId, "files", "archive", "uploads", uploadId);
    try {
      let offset = 0;
      // It is unpacked as it comes: one after the other.
      for await (const { bytes } of resumed(first.value, parts)) {
        for (let from = 0; from < bytes.length; from += most) {
          const piece = bytes.subarray(from, from + most);
          await transport.json({
            method: "PUT",
            path: at,
            query: { offset },
            bytes: piece,
            options: request(`part ${String(offset)}`),
          });
          offset += piece.length;
        }
      }
      await transport.json({ method: "POST", path: `${at}:commit`, body: {}, options: request("commit") });
    } catch (error) {
      await abort(transport, at, phaseKey("files.unarchive", key, "abort"));
      throw error;
    }
  } finally {
    await parts.return();
  }
}

async function* resumed<T>(first: T, rest: AsyncIterable<T>): AsyncGenerator<T, void, undefined> {
  yield first;
  yield* rest;
}
