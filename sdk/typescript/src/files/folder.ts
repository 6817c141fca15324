/**
 * A folder of this program's disk as an archive, and an archive as a folder of it. What an archive from a sandbox says is
 * not trusted: no name, and no link that came before, leads out of the folder.
 */

import { RuntimeError } from "../errors.js";
import { piecesOf, streamOf } from "./pieces.js";
import { type Disk, writeAll } from "./local.js";
import { readTar, tarEnd, tarHeader, tarPadding, type TarEntry, type TarInput } from "./tar.js";

const PIECE = 256 * 1024;

/** The folder as tar: files, folders and links; whatever else lies there is left out. */
export async function* packFolder(
  disk: Disk,
  root: string,
  onProgress?: (bytes: number) => void,
): AsyncGenerator<Uint8Array, void, undefined> {
  const told = { bytes: 0 };
  const waiting = [""];
  for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
    const local = name === "" ? root : `${root}/${name}`;
    // The folder itself may be given by a link; what is in it is taken as it is.
    const facts = await (name === "" ? disk.stat(local) : disk.lstat(local));
    const entry = { name: name === "" ? "." : `./${name}`, mode: facts.mode, mtime: facts.mtimeMs / 1000, size: 0 };
    if (facts.isDirectory()) {
      yield tarHeader({ ...entry, type: "directory" });
      const names = (await disk.readdir(local)).sort().reverse();
      waiting.push(...names.map((one) => (name === "" ? one : `${name}/${one}`)));
    } else if (facts.isSymbolicLink()) {
      yield tarHeader({ ...entry, type: "symlink", target: await disk.readlink(local) });
    } else if (facts.isFile()) {
      for await (const piece of packFile(disk, local, { ...entry, type: "file", size: facts.size })) {
        yield piece;
        told.bytes += piece.length;
        onProgress?.(told.bytes);
      }
    }
  }
  yield tarEnd();
}

/** As long as the header said, even if the file changes meanwhile: cut, or refused. */
async function* packFile(disk: Disk, local: string, entry: TarInput): AsyncGenerator<Uint8Array, void, undefined> {
  const file = await disk.open(local, "r");
  try {
    yield tarHeader(entry);
    for (let at = 0; at < entry.size;) {
      const bytes = new Uint8Array(Math.min(PIECE, entry.size - at));
      const { bytesRead } = await file.read(bytes, 0, bytes.length, at);
      if (bytesRead === 0) {
        throw new RuntimeError({ code: "invalid_request", message: `${local} became shorter while it was packed` });
      }
      yield bytes.subarray(0, bytesRead);
      at += bytesRead;
    }
    yield tarPadding(entry.size);
  } finally {
    await file.close();
  }
}

/** Unpacks into a folder, which is made if it is missing; what is there already stays unless the archive has it too. */
export async function unpackInto(
  disk: Disk,
  root: string,
  packed: AsyncGenerator<Uint8Array>,
  onProgress?: (bytes: number) => void,
): Promise<void> {
  await disk.mkdir(root, { recursive: true });
  let told = 0;
  // Modes last: a folder that may not be written into would keep out what is in it.
  const folders: [string, number][] = [];
  for await (const entry of readTar(packed)) {
    const parts = partsOfName(entry.name);
    const local = [root, ...parts].join("/");
    if (parts.length === 0) continue;
    await makeParents(disk, root, parts.slice(0, -1));
    if (entry.type === "directory") {
      await makeFolder(disk, local);
      folders.push([local, entry.mode]);
      continue;
    }
    await clearTheWay(disk, local);
    if (entry.type === "symlink") {
      await disk.symlink(inside(entry, parts), local);
    } else if (entry.type === "link") {
      // Another name of a file that came before; as a copy it cannot reach anything else.
      const from = partsOfName(entry.target);
      await makeParents(disk, root, from.slice(0, -1));
      await copy(disk, [root, ...from].join("/"), local);
    } else {
      const file = await disk.open(local, "wx", entry.mode);
      try {
        for await (const piece of entry.body) {
          await writeAll(file, piece);
          told += piece.length;
          onProgress?.(told);
        }
      } finally {
        await file.close();
      }
      await disk.chmod(local, entry.mode);
    }
  }
  for (const [folder, mode] of folders.reverse()) await disk.chmod(folder, mode);
}

/** The parts of a name, if all of them lead down. */
function partsOfName(name: string): string[] {
  const parts = name.split("/").filter((part) => part !== "" && part !== ".");
  if (name.startsWith("/") || parts.some((part) => part === ".." || /[\\\0]/.test(part))) {
    throw unsafe(`${JSON.stringify(name)} leads out of the folder`);
  }
  return parts;
}

/** Where a link leads, if that is in the folder. */
function inside({ target }: TarEntry, parts: string[]): string {
  let depth = parts.length - 1;
  if (target.startsWith("/") || /[\\\0]/.test(target)) depth = -1;
  for (const part of target.split("/")) {
    if (depth < 0) break;
    if (part === "..") depth -= 1;
    else if (part !== "" && part !== ".") depth += 1;
  }
  if (depth < 0) throw unsafe(`the link ${JSON.stringify(parts.join("/"))} leads out of the folder, to ${target}`);
  return target;
}

async function makeParents(disk: Disk, root: string, parts: string[]): Promise<void> {
  for (let i = 1; i <= parts.length; i += 1) await makeFolder(disk, [root, ...parts.slice(0, i)].join("/"));
}

/** A folder, and not a link to one. */
async function makeFolder(disk: Disk, local: string): Promise<void> {
  const there = await disk.lstat(local).catch(() => undefined);
  if (there?.isDirectory() === true) return;
  if (there !== undefined) throw unsafe(`${local} is in the way of a folder`);
  await disk.mkdir(local, { recursive: false });
}

async function clearTheWay(disk: Disk, local: string): Promise<void> {
  const there = await disk.lstat(local).catch(() => undefined);
  if (there?.isDirectory() === true) throw unsafe(`the folder ${local} is in the way of a file`);
  if (there !== undefined) await disk.rm(local, { force: true });
}

async function copy(disk: Disk, from: string, to: string): Promise<void> {
  const facts = await disk.lstat(from).catch(() => undefined);
  if (facts?.isFile() !== true) throw unsafe(`${to} is another name of what is no file`);
  const [source, target] = [await disk.open(from, "r"), await disk.open(to, "wx", facts.mode & 0o777)];
  try {
    const bytes = new Uint8Array(PIECE);
    for (let at = 0; ;) {
      const { bytesRead } = await source.read(bytes, 0, bytes.length, at);
      if (bytesRead === 0) return;
      await writeAll(target, bytes.subarray(0, bytesRead));
      at += bytesRead;
    }
  } finally {
    await source.close();
    await target.close();
  }
}

function unsafe(why: string): RuntimeError {
  return new RuntimeError({ code: "unsafe_archive", message: `the archive was not unpacked further: ${why}` });
}

/** Compressed where this platform can; the sandbox sees by the first bytes what it got. */
export function withGzip(pieces: AsyncGenerator<Uint8Array, void, undefined>): AsyncIterable<Uint8Array> {
  if (typeof globalThis.CompressionStream !== "function") return pieces;
  return piecesOf(through(pieces, new CompressionStream("gzip")));
}

/** @throws RuntimeError `download_incomplete`: the archive was cut. */
export async function* withoutGzip(
  pieces: AsyncGenerator<Uint8Array, void, undefined>,
): AsyncGenerator<Uint8Array, void, undefined> {
  let failure: unknown;
  const watched = async function* (): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      yield* pieces;
    } catch (error) {
      failure = error;
      throw error;
    }
  };
  try {
    for await (const piece of piecesOf(through(watched(), new DecompressionStream("gzip")))) yield piece;
  } catch (cause) {
    if (cause instanceof RuntimeError) throw cause;
    throw new RuntimeError({
      code: "download_incomplete",
      message: "the archive was cut before its end",
      cause: failure ?? cause,
    });
  }
}

function through(
  pieces: AsyncGenerator<Uint8Array, void, undefined>,
  change: CompressionStream | DecompressionStream,
): ReadableStream<Uint8Array> {
  return streamOf(pieces).pipeThrough(change as unknown as ReadableWritablePair<Uint8Array, Uint8Array>);
}
