/**
 * The files of a sandbox.
 */

import { utf8 } from "../commands/bytes.js";
import type { Place } from "../commands/exec.js";
import { path } from "../transport/path.js";
import type { RequestOptions, Transport } from "../transport/transport.js";
import type { FileChange, FileEntry, FileStat, Schema } from "../types.js";
import { archive, unarchive, type ArchiveOptions, type UnarchiveOptions } from "./archive.js";
import { download, downloadStream } from "./download.js";
import { downloadLocal, uploadLocal, type CopyOptions } from "./local.js";
import type { FileData, FileStream } from "./pieces.js";
import { writeStream } from "./stream.js";
import { upload, type Source } from "./upload.js";
import { FollowedWatch, Watches, type FollowedWatchOptions } from "./watch.js";

/** How {@link Files.write} writes. */
export interface WriteFileOptions extends RequestOptions {
  /** The permissions, in octal digits. Default `"644"`. */
  mode?: string | undefined;
}

/** How {@link Files.writeStream} writes. */
export interface WriteStreamOptions extends WriteFileOptions {
  /** Told how many bytes are there. */
  onProgress?: ((bytes: number) => void) | undefined;
}

/** What {@link Files.list} shows. */
export interface ListOptions extends RequestOptions {
  /** Levels below the folder. Default 1; with `glob` all. */
  depth?: number | undefined;
  /** Matched against the path below the folder: `*.py` is direct children, `**​/*.py` any depth. */
  glob?: string | undefined;
  /** Also names that begin with a dot. Default false. */
  hidden?: boolean | undefined;
  /** At most so many. */
  limit?: number | undefined;
}

/** How {@link Files.mkdir} makes a folder. */
export interface MkdirOptions extends RequestOptions {
  /** Make missing parents too, and be content with a folder that is there. Default true. */
  parents?: boolean | undefined;
}

/** How {@link Files.remove} removes. */
export interface RemoveOptions extends RequestOptions {
  /** A folder with all that is in it. Default false. */
  recursive?: boolean | undefined;
}

/** How {@link Files.rename} renames. */
export interface RenameOptions extends RequestOptions {
  /** Replace what has the new name. Default false. */
  overwrite?: boolean | undefined;
}

/**
 * The files of a sandbox. Every path is absolute, and everything is done as the user `runtime`. A paused sandbox wakes
 * for it.
 *
 * All of these throw {@link NotFoundError} `file_not_found`, {@link PermissionDeniedError} `permission_denied` and
 * {@link ConflictError} `is_a_directory`, `not_a_directory` or `disk_full` where that is what happened.
 */
export class Files {
  /** What happens to them, read when the caller wants to. */
  readonly watches: Watches;
  readonly #transport: Transport;
  readonly #sandboxId: string;
  readonly #place: Place;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#place = { transport, sandboxId };
    this.watches = new Watches(this.#place);
    this.#transport = transport;
    this.#sandboxId = sandboxId;
  }

  /**
   * A whole file, its length and digest checked; one that comes short is read again, twice at most.
   *
   * @throws {@link RuntimeError} `download_incomplete` with `details` `{ received, expected }`.
   */
  async read(file: string, options?: RequestOptions): Promise<Uint8Array> {
    return await download(this.#transport, this.#sandboxId, file, options);
  }

  /** A whole file as UTF-8; bytes that are none become U+FFFD. As {@link Files.read}. */
  async readText(file: string, options?: RequestOptions): Promise<string> {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(await this.read(file, options));
  }

  /** A file as it comes, of any size. The stream fails at its end with `download_incomplete` if it was cut short. */
  async readStream(file: string, options?: RequestOptions): Promise<ReadableStream<Uint8Array>> {
    return await downloadStream(this.#transport, this.#sandboxId, file, options);
  }

  /**
   * Writes a whole file of any size: it is there with all its bytes, or not at all, and on the disk when this resolves.
   * More than 1 MiB goes in chunks, eight at once, under a digest. Missing folders are made below `/workspace`.
   */
  async write(file: string, data: FileData, options: WriteFileOptions = {}): Promise<void> {
    await upload(this.#transport, this.#sandboxId, file, sourceOf(data), options);
  }

  /**
   * Writes what comes, of any length that need not be known; as {@link Files.write} otherwise. Only a few MiB of it are in
   * memory. While it comes, a process of the sandbox appends it to a file beside the target.
   *
   * @throws {@link RuntimeError} `stream_failed`, `disk_full`.
   */
  async writeStream(file: string, source: FileStream | FileData, options: WriteStreamOptions = {}): Promise<void> {
    await writeStream(this.#place, file, source, options);
  }

  /**
   * Copies a file or a folder of this program's disk into the sandbox, modes and links kept. A folder is merged with what
   * is there.
   *
   * @throws {@link RuntimeError} `unsupported`: in a browser.
   */
  async upload(local: string, remote: string, options: CopyOptions = {}): Promise<void> {
    await uploadLocal(this.#place, local, remote, options);
  }

  /**
   * Copies a file or a folder of the sandbox to this program's disk. A file is there whole, or not at all; a folder is
   * merged with what is there. No name and no link leads out of the folder.
   *
   * @throws {@link RuntimeError} `unsafe_archive`: one would; `download_incomplete`; `unsupported`: in a browser.
   */
  async download(remote: string, local: string, options: CopyOptions = {}): Promise<void> {
    await downloadLocal(this.#place, remote, local, options);
  }

  /**
   * A folder as a gzipped tar, as it is packed. An archive that was cut ends as one that does not read.
   *
   * @throws {@link ConflictError} `not_a_directory`.
   */
  async archive(folder: string, options: ArchiveOptions = {}): Promise<ReadableStream<Uint8Array>> {
    return await archive(this.#transport, this.#sandboxId, folder, options);
  }

  /**
   * Unpacks a tar, gzipped or not, into a folder, which is made if it is missing and merged with if not.
   *
   * @throws {@link InvalidRequestError} `invalid_archive`; what was unpacked of it before that stays.
   */
  async unarchive(folder: string, data: FileData | FileStream, options: UnarchiveOptions = {}): Promise<void> {
    await unarchive(this.#transport, this.#sandboxId, folder, data, options);
  }

  /** What is in a folder, sorted by path; links are shown, not followed. */
  async list(folder = "/workspace", options: ListOptions = {}): Promise<FileEntry[]> {
    const { depth, glob, hidden, limit, ...request } = options;
    const answer = await this.#transport.json<Schema["FileListing"]>({
      method: "GET",
      path: path("sandboxes", this.#sandboxId, "files", "list"),
      query: { path: folder, depth, glob, hidden, limit },
      options: request,
    });
    return answer.data;
  }

  /** Files whose path below `root` matches: `*.py` directly in it, `**​/*.py` at any depth. */
  async glob(pattern: string, root = "/workspace", options: Omit<ListOptions, "glob"> = {}): Promise<FileEntry[]> {
    return await this.list(root, { ...options, glob: pattern });
  }

  /** What is at a path; nothing there is an answer, not an error. */
  async stat(file: string, options?: RequestOptions): Promise<FileStat> {
    return await this.#transport.json<FileStat>({
      method: "GET",
      path: path("sandboxes", this.#sandboxId, "files", "stat"),
      query: { path: file },
      options,
    });
  }

  async exists(file: string, options?: RequestOptions): Promise<boolean> {
    return (await this.stat(file, options)).exists;
  }

  async mkdir(folder: string, options: MkdirOptions = {}): Promise<void> {
    const { parents = true, ...request } = options;
    await this.#change("mkdir", { path: folder, parents }, request);
  }

  /**
   * Removes a file or an empty folder.
   *
   * @returns False if there was nothing.
   * @throws {@link ConflictError} `directory_not_empty`, without `recursive`.
   */
  async remove(file: string, options: RemoveOptions = {}): Promise<boolean> {
    const { recursive = false, ...request } = options;
    const answer = await this.#change<Schema["RemoveAnswer"]>("remove", { path: file, recursive }, request);
    return answer.removed;
  }

  /** @throws {@link ConflictError} `already_exists`, without `overwrite`. */
  async rename(from: string, to: string, options: RenameOptions = {}): Promise<void> {
    const { overwrite = false, ...request } = options;
    await this.#change("rename", { from, to, overwrite }, request);
  }

  /** @param mode - Octal digits, like `"755"`. */
  async chmod(file: string, mode: string, options?: RequestOptions): Promise<void> {
    await this.#change("chmod", { path: file, mode }, options);
  }

  /**
   * Calls `onEvent` with each change below a path, one after the other, until {@link FollowedWatch.stop}, its time limit,
   * or a pause or the end of the sandbox. Only what changes after this has resolved is seen. It keeps a program alive.
   *
   * @throws {@link NotFoundError} `file_not_found`; {@link ConflictError} `watch_limit`: four go on.
   */
  async watch(
    watched: string,
    onEvent: (change: FileChange) => unknown,
    options: FollowedWatchOptions = {},
  ): Promise<FollowedWatch> {
    return new FollowedWatch(await this.watches.start(watched, options), onEvent, options);
  }

  async #change<Answer>(verb: string, body: unknown, options?: RequestOptions): Promise<Answer> {
    return await this.#transport.json<Answer>({
      method: "POST",
      path: `${path("sandboxes", this.#sandboxId)}/files:${verb}`,
      body,
      options,
    });
  }
}

/** What is written, so that any part of it can be read. A Blob's bytes stay where they are until then. */
function sourceOf(data: FileData): Source {
  if (data instanceof Blob) {
    const read = async (offset: number, length: number): Promise<Uint8Array> =>
      new Uint8Array(await data.slice(offset, offset + length).arrayBuffer());
    return { size: data.size, read };
  }
  const bytes = typeof data === "string" ? utf8(data) : data instanceof Uint8Array ? data : new Uint8Array(data);
  return { size: bytes.length, read: (offset, length) => Promise.resolve(bytes.subarray(offset, offset + length)) };
}
