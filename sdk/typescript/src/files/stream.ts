/**
 * A file on its way there whose length nobody knows: its first part is written as any file, beside the target, and a
 * process appends the rest. It has its name once its digest is right.
 */

import { signalProcess, type Place } from "../commands/exec.js";
import { spawn } from "../commands/process.js";
import { RuntimeError } from "../errors.js";
import { path } from "../transport/path.js";
import type { RequestOptions } from "../transport/transport.js";
import { partsOf, piecesOf, type FileData, type FileStream } from "./pieces.js";
import { Sha256 } from "./sha256.js";
import { MAX_WRITE, putWhole, type UploadOptions } from "./upload.js";

/** Appends its input, brings the file to the disk, and tells its digest. */
const APPEND = 'cat >> "$1" && sync "$1" && sha256sum < "$1"';

/** Writes what comes, whole or not at all. */
export async function writeStream(
  place: Place,
  file: string,
  data: FileData | FileStream,
  options: UploadOptions,
): Promise<void> {
  const { mode, onProgress, ...request } = options;
  const { transport, sandboxId } = place;
  const { idempotencyKey: _key, ...later } = request;
  const parts = partsOf(piecesOf(data), MAX_WRITE);
  const first = await parts.next();
  if (first.done === true) return;
  const { bytes, isLast } = first.value;
  if (isLast) {
    await putWhole(transport, sandboxId, file, bytes, { mode, ...request });
    onProgress?.(bytes.length);
    return;
  }
  const partial = `${file}.${crypto.getRandomValues(new Uint32Array(2)).join("")}.part`;
  try {
    // Its own mode comes last: it may forbid writing.
    await putWhole(transport, sandboxId, partial, bytes, { mode: "600", ...later });
    onProgress?.(bytes.length);
    const hash = new Sha256().update(bytes);
    await append(place, partial, parts, hash, bytes.length, { onProgress, ...later });
    await change(place, "chmod", { path: partial, mode: mode ?? "644" }, later);
    await change(place, "rename", { from: partial, to: file, overwrite: true }, request);
  } catch (error) {
    await change(place, "remove", { path: partial, recursive: false }, { timeoutMs: 10_000 }).catch(() => undefined);
    throw error;
  } finally {
    await parts.return();
  }
}

async function append(
  place: Place,
  partial: string,
  parts: AsyncIterable<{ bytes: Uint8Array; isLast: boolean }>,
  hash: Sha256,
  already: number,
  { onProgress, signal, timeoutMs }: UploadOptions,
): Promise<void> {
  const process = await spawn(place, ["/bin/sh", "-c", APPEND, "sh", partial], {
    stdin: "pipe",
    user: "sandbox",
    request: { signal, timeoutMs },
  });
  let sent = already;
  try {
    for await (const { bytes, isLast } of parts) {
      await process.write(bytes, { eof: isLast, signal, timeoutMs });
      hash.update(bytes);
      sent += bytes.length;
      onProgress?.(sent);
    }
  } catch (error) {
    await signalProcess(place, process.id, "SIGKILL", { timeoutMs: 10_000 }).catch(() => undefined);
    const ended = await process.wait({ signal: AbortSignal.timeout(10_000) }).catch(() => undefined);
    // One that ended by itself said why.
    if (ended !== undefined && ended.stderr !== "" && signal?.aborted !== true)
      throw broken(partial, ended.stderr, error);
    throw error;
  }
  const { exitCode, stdout, stderr } = await process.wait({ signal });
  if (exitCode !== 0) throw broken(partial, stderr);
  if (stdout.slice(0, 64) !== hash.hex()) throw broken(partial, "the bytes there are not those that were sent");
}

async function change(place: Place, verb: string, body: object, options: RequestOptions): Promise<void> {
  await place.transport.json({
    method: "POST",
    path: `${path("sandboxes", place.sandboxId)}/files:${verb}`,
    body,
    options,
  });
}

function broken(partial: string, said: string, cause?: unknown): RuntimeError {
  const isFull = /no space left|disk quota exceeded/i.test(said);
  return new RuntimeError({
    code: isFull ? "disk_full" : "stream_failed",
    message: `writing ${partial}: ${said.trim().slice(0, 500)}`,
    cause,
  });
}
