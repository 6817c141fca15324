/**
 * A file on its way there: in one request if it is small, else in chunks that may come in any order, under a digest that
 * the server checks before the file has its name.
 */

import { utf8 } from "../commands/bytes.js";
import { RuntimeError } from "../errors.js";
import { newKey } from "../transport/key.js";
import { path } from "../transport/path.js";
import type { RequestOptions, Transport } from "../transport/transport.js";
import type { Schema } from "../types.js";
import { Sha256 } from "./sha256.js";

/** The most that one request may write. */
export const MAX_WRITE = 1024 * 1024;
const AT_ONCE = 8;

/** A file that can be read anywhere, as often as need be. */
export interface Source {
  size: number;
  /** Bytes from a place on: as many as asked for, fewer only at the end. */
  read: (offset: number, length: number) => Promise<Uint8Array>;
}

/** How a file is written. */
export interface UploadOptions extends RequestOptions {
  mode?: string | undefined;
  /** Told after each part how many bytes are there. */
  onProgress?: ((bytes: number) => void) | undefined;
}

/** Writes a file of any size, whole or not at all. */
export async function upload(
  transport: Transport,
  sandboxId: string,
  file: string,
  source: Source,
  options: UploadOptions,
): Promise<void> {
  const { mode, onProgress, ...request } = options;
  if (source.size <= MAX_WRITE) {
    const bytes = await source.read(0, source.size);
    await putWhole(transport, sandboxId, file, bytes, { mode, ...request });
    onProgress?.(bytes.length);
    return;
  }
  await inChunks(transport, sandboxId, file, source, options);
}

/** Writes a file of at most {@link MAX_WRITE} bytes. */
export async function putWhole(
  transport: Transport,
  sandboxId: string,
  file: string,
  bytes: Uint8Array,
  { mode, ...options }: UploadOptions,
): Promise<void> {
  await transport.json({
    method: "PUT",
    path: path("sandboxes", sandboxId, "files", "content"),
    query: { path: file, mode },
    bytes,
    options,
  });
}

async function inChunks(
  transport: Transport,
  sandboxId: string,
  file: string,
  source: Source,
  { mode, onProgress, idempotencyKey = newKey(), signal, timeoutMs }: UploadOptions,
): Promise<void> {
  const phase = (name: string): string => phaseKey("files.write", idempotencyKey, name);
  const hash = new Sha256();
  for (let at = 0; at < source.size; at += MAX_WRITE) hash.update(await source.read(at, MAX_WRITE));
  const started = await transport.json<Schema["UploadStarted"]>({
    method: "POST",
    path: path("sandboxes", sandboxId, "uploads"),
    body: { path: file, size: source.size, sha256: hash.hex(), mode },
    options: { idempotencyKey: phase("start"), signal, timeoutMs },
  });
  const { uploadId } = started;
  const chunkBytes = checkedChunk(started.chunkBytes);
  const at = path("sandboxes", sandboxId, "uploads", uploadId);
  // The first failure ends the others.
  const stop = new AbortController();
  const onAbort = (): void => {
    stop.abort(signal?.reason);
  };
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    let next = 0;
    let sent = 0;
    const worker = async (): Promise<void> => {
      while (next < source.size) {
        const offset = next;
        next += chunkBytes;
        const bytes = await source.read(offset, Math.min(chunkBytes, source.size - offset));
        await transport.json({
          method: "PUT",
          path: at,
          query: { offset },
          bytes,
          options: { idempotencyKey: phase(`chunk ${String(offset)}`), signal: stop.signal, timeoutMs },
        });
        sent += bytes.length;
        onProgress?.(sent);
      }
    };
    await firstFailure(Array.from({ length: AT_ONCE }, worker), stop);
    await transport.json({
      method: "POST",
      path: `${at}:commit`,
      body: {},
      options: { idempotencyKey: phase("commit"), signal, timeoutMs },
    });
  } catch (error) {
    await abort(transport, at, phase("abort"));
    throw error;
  } finally {
    signal?.removeEventListener("abort", onAbort);
  }
  // A server that did not say that it took the mode may not know it.
  if (mode !== undefined && started.mode !== mode) {
    await transport.json({
      method: "POST",
      path: `${path("sandboxes", sandboxId)}/files:chmod`,
      body: { path: file, mode },
      options: { idempotencyKey: phase("mode"), signal, timeoutMs },
    });
  }
}

/** Waits for all; throws what failed first, once the others have ended too. */
async function firstFailure(work: Promise<void>[], stop: AbortController): Promise<void> {
  let first: { error: unknown } | undefined;
  await Promise.all(
    work.map((one) =>
      one.catch((error: unknown) => {
        first ??= { error };
        stop.abort();
      }),
    ),
  );
  if (first !== undefined) throw first.error;
}

/** Gives an upload up. That it could not be done matters less than why. */
export async function abort(transport: Transport, at: string, idempotencyKey: string): Promise<void> {
  await transport
    .json({ method: "POST", path: `${at}:abort`, body: {}, once: true, options: { idempotencyKey, timeoutMs: 10_000 } })
    .catch(() => undefined);
}

/** The size of the parts that a server asks for. */
export function checkedChunk(bytes: unknown): number {
  if (typeof bytes === "number" && Number.isInteger(bytes) && bytes > 0 && bytes <= MAX_WRITE) return bytes;
  throw new RuntimeError({ code: "invalid_answer", message: `the server wants chunks of ${String(bytes)} bytes` });
}

/** One key for each request of a call that takes many, the same whenever the call has the same key. */
export function phaseKey(operation: string, key: string, phase: string): string {
  return new Sha256().update(utf8(JSON.stringify([operation, key, phase]))).hex();
}
