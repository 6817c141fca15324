/**
 * Copies between a sandbox and the disk of this program. Only in Node.js and Bun.
 */

import type { Place } from "../commands/exec.js";
import { RuntimeError } from "../errors.js";
import { builtin } from "../transport/environment.js";
import { path } from "../transport/path.js";
import type { RequestOptions } from "../transport/transport.js";
import type { FileStat } from "../types.js";
import { archive, unarchive } from "./archive.js";
import { downloadStream } from "./download.js";
import { piecesOf } from "./pieces.js";
import { packFolder, unpackInto, withoutGzip, withGzip } from "./folder.js";
import { upload } from "./upload.js";

/** A download that comes short is made again this often. */
const AGAIN = 2;

/** How {@link Files.upload} and {@link Files.download} copy. */
export interface CopyOptions extends RequestOptions {
  /** Who reads or writes in the sandbox; `root` copies folders only. Default `sandbox`. */
  user?: "sandbox" | "root" | undefined;
  /** Told how many bytes of a file have been copied. */
  onProgress?: ((bytes: number) => void) | undefined;
}

/** What is used of an open file. */
export interface OpenFile {
  read: (into: Uint8Array, at: number, length: number, position: number) => Promise<{ bytesRead: number }>;
  write: (bytes: Uint8Array) => Promise<unknown>;
  sync: () => Promise<void>;
  close: () => Promise<void>;
}
/** What is used of a file's facts. */
export interface Facts {
  size: number;
  mode: number;
  mtimeMs: number;
  isFile: () => boolean;
  isDirectory: () => boolean;
  isSymbolicLink: () => boolean;
}
/** What is used of Node's files. */
export interface Disk {
  open: (path: string, flags: string, mode?: number) => Promise<OpenFile>;
  stat: (path: string) => Promise<Facts>;
  lstat: (path: string) => Promise<Facts>;
  readdir: (path: string) => Promise<string[]>;
  readlink: (path: string) => Promise<string>;
  symlink: (target: string, path: string) => Promise<void>;
  mkdir: (path: string, options: { recursive: boolean }) => Promise<unknown>;
  chmod: (path: string, mode: number) => Promise<void>;
  rename: (from: string, to: string) => Promise<void>;
  rm: (path: string, options: { force: boolean }) => Promise<void>;
}

/** Copies a file or a folder into the sandbox. */
export async function uploadLocal(place: Place, local: string, remote: string, options: CopyOptions): Promise<void> {
  const { user, onProgress, ...request } = options;
  const { transport, sandboxId } = place;
  const disk = theDisk();
  const facts = await disk.stat(local);
  if (facts.isDirectory()) {
    const packed = withGzip(packFolder(disk, local, onProgress));
    await unarchive(transport, sandboxId, remote, packed, { user, ...request });
    return;
  }
  if (user === "root") throw foldersOnly();
  const file = await disk.open(local, "r");
  try {
    const source = {
      size: facts.size,
      read: async (offset: number, length: number): Promise<Uint8Array> => await readAt(file, local, offset, length),
    };
    const mode = (facts.mode & 0o777).toString(8).padStart(3, "0");
    await upload(transport, sandboxId, remote, source, { mode, onProgress, ...request });
  } finally {
    await file.close();
  }
}

async function readAt(file: OpenFile, name: string, offset: number, length: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(length);
  for (let at = 0; at < length;) {
    const { bytesRead } = await file.read(bytes, at, length - at, offset + at);
    if (bytesRead === 0)
      throw new RuntimeError({ code: "invalid_request", message: `${name} became shorter meanwhile` });
    at += bytesRead;
  }
  return bytes;
}

/** Copies a file or a folder out of the sandbox. A file is there whole, or not at all. */
export async function downloadLocal(place: Place, remote: string, local: string, options: CopyOptions): Promise<void> {
  const { user, onProgress, ...request } = options;
  const { transport, sandboxId } = place;
  const disk = theDisk();
  if (user !== "root" && (await downloadFile(place, disk, remote, local, options))) return;
  await again(request, async () => {
    const gzip = typeof globalThis.DecompressionStream === "function";
    const packed = piecesOf(await archive(transport, sandboxId, remote, { gzip, user, ...request }));
    await unpackInto(disk, local, gzip ? withoutGzip(packed) : packed, onProgress);
  });
}

/** False: it is a folder, or a link to one. */
async function downloadFile(
  { transport, sandboxId }: Place,
  disk: Disk,
  remote: string,
  local: string,
  { onProgress, ...request }: CopyOptions,
): Promise<boolean> {
  const stat = await transport.json<FileStat>({
    method: "GET",
    path: path("sandboxes", sandboxId, "files", "stat"),
    query: { path: remote },
    options: request,
  });
  if (stat.exists && stat.type === "directory") return false;
  // The mode of a link says nothing.
  const mode = stat.exists && stat.type === "file" ? parseInt(stat.mode, 8) & 0o777 : 0o644;
  try {
    await again(request, async () => {
      const pieces = piecesOf(await downloadStream(transport, sandboxId, remote, request));
      await writeWhole(disk, local, mode, pieces, onProgress);
    });
    return true;
  } catch (error) {
    if (error instanceof RuntimeError && error.code === "is_a_directory") return false;
    throw error;
  }
}

async function again(request: RequestOptions, copy: () => Promise<void>): Promise<void> {
  for (let tries = 0; ; tries += 1) {
    try {
      await copy();
      return;
    } catch (error) {
      const isShort = error instanceof RuntimeError && error.code === "download_incomplete";
      if (!isShort || tries >= AGAIN || request.signal?.aborted === true) throw error;
    }
  }
}

async function writeWhole(
  disk: Disk,
  local: string,
  mode: number,
  pieces: AsyncIterable<Uint8Array>,
  onProgress?: (bytes: number) => void,
): Promise<void> {
  const partial = `${local}.${crypto.getRandomValues(new Uint32Array(2)).join("")}.part`;
  const file = await disk.open(partial, "wx", mode);
  try {
    let written = 0;
    try {
      for await (const piece of pieces) {
        await writeAll(file, piece);
        written += piece.length;
        onProgress?.(written);
      }
      await file.sync();
    } finally {
      await file.close();
    }
    await disk.chmod(partial, mode);
    await disk.rename(partial, local);
  } catch (error) {
    await disk.rm(partial, { force: true });
    throw error;
  }
}

/** A write may take less than it is given. */
export async function writeAll(file: OpenFile, bytes: Uint8Array): Promise<void> {
  for (let at = 0; at < bytes.length;) {
    const { bytesWritten } = (await file.write(bytes.subarray(at))) as { bytesWritten: number };
    at += bytesWritten;
  }
}

function theDisk(): Disk {
  const disk = builtin("node:fs/promises") as Disk | undefined;
  if (disk !== undefined) return disk;
  throw new RuntimeError({
    code: "unsupported",
    message: "this program has no disk to copy from or to",
    hint: "In a browser use read, write, archive and unarchive.",
  });
}

function foldersOnly(): RuntimeError {
  return new RuntimeError({
    code: "invalid_request",
    message: "as root only folders are copied",
    hint: "Upload the folder that the file is in, or move it by a command as root.",
  });
}
