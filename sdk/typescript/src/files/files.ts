/**
 * The files of a sandbox.
 */

import { invalidRequest } from "../errors.js";
import { utf8 } from "../commands/bytes.js";
import { path } from "../transport/path.js";
import type { RequestOptions, Transport } from "../transport/transport.js";
import type { FileEntry, FileStat, Schema } from "../types.js";
import { download, downloadStream } from "./download.js";

/** The largest file that one request may write. */
const MAX_WRITE = 1024 * 1024;

/** What can be written. */
export type FileData = string | Uint8Array | ArrayBuffer | Blob;

/** How {@link Files.write} writes. */
export interface WriteFileOptions extends RequestOptions {
  /** The permissions, in octal digits. Default `"644"`. */
  mode?: string | undefined;
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
  readonly #transport: Transport;
  readonly #sandboxId: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
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
   * Writes a whole file of at most 1 MiB: it is there with all its bytes, or not at all, and on the disk when this
   * resolves. Missing folders are made below `/workspace`.
   *
   * @throws {@link InvalidRequestError} `invalid_request`: more than 1 MiB, which this server does not take yet.
   */
  async write(file: string, data: FileData, options: WriteFileOptions = {}): Promise<void> {
    const { mode, ...request } = options;
    const bytes = await bytesOf(data);
    if (bytes.length > MAX_WRITE) {
      throw invalidRequest(
        `${file}: ${String(bytes.length)} bytes are more than one request may write (${String(MAX_WRITE)})`,
        "Write it in parts and join them with a command; uploads in parts are not on this server yet.",
      );
    }
    await this.#transport.json({
      method: "PUT",
      path: path("sandboxes", this.#sandboxId, "files", "content"),
      query: { path: file, mode },
      bytes,
      options: request,
    });
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

  async #change<Answer>(verb: string, body: unknown, options?: RequestOptions): Promise<Answer> {
    return await this.#transport.json<Answer>({
      method: "POST",
      path: `${path("sandboxes", this.#sandboxId)}/files:${verb}`,
      body,
      options,
    });
  }
}

async function bytesOf(data: FileData): Promise<Uint8Array> {
  if (typeof data === "string") return utf8(data);
  if (data instanceof Uint8Array) return data;
  return new Uint8Array(data instanceof ArrayBuffer ? data : await data.arrayBuffer());
}
