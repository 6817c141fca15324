/**
 * Tar, as folders travel: written as POSIX pax, read as what the archivers in use write (pax, GNU, ustar).
 */

import { text, utf8 } from "../commands/bytes.js";
import { RuntimeError } from "../errors.js";
import { concat } from "../transport/answer.js";

const BLOCK = 512;
/** The most of a header's own data: names are far shorter. */
const MAX_META = 64 * 1024;
/** What the size field of a header can say: eleven octal digits. */
const MAX_SIZE = 8 ** 11;

/** What goes into an archive. */
export interface TarInput {
  /** Below the folder, with `/` between its parts. */
  name: string;
  type: "file" | "directory" | "symlink";
  mode: number;
  /** Seconds. */
  mtime: number;
  size: number;
  target?: string;
}

/** What came out of one. */
export interface TarEntry {
  name: string;
  type: "file" | "directory" | "symlink" | "link";
  mode: number;
  mtime: number;
  target: string;
  /** Of a file; must be read, or left, before the next entry is asked for. */
  body: AsyncGenerator<Uint8Array, void, undefined>;
}

/** The header of an entry, with a header of its own for what it cannot hold. */
export function tarHeader(input: TarInput): Uint8Array {
  const { name, target = "", size } = input;
  const path = input.type === "directory" ? `${name}/` : name;
  const records = [
    ...(fits(path) ? [] : [record("path", path)]),
    ...(fits(target) ? [] : [record("linkpath", target)]),
    ...(size < MAX_SIZE ? [] : [record("size", String(size))]),
  ];
  const own = header({ ...input, name: path, size: size < MAX_SIZE ? size : 0 }, kindOf(input.type));
  if (records.length === 0) return own;
  const body = utf8(records.join(""));
  const pax = header({ ...input, name: "pax", target: "", mode: 0o644, size: body.length }, "x");
  return concat([pax, body, tarPadding(body.length), own], 2 * BLOCK + body.length + padding(body.length));
}

/** What follows so many bytes of a file. */
export function tarPadding(size: number): Uint8Array {
  return new Uint8Array(padding(size));
}

/** The end of an archive. */
export function tarEnd(): Uint8Array {
  return new Uint8Array(2 * BLOCK);
}

function padding(size: number): number {
  return (BLOCK - (size % BLOCK)) % BLOCK;
}

function fits(text: string): boolean {
  return text.length <= 100 && /^[\x20-\x7e]*$/.test(text);
}

function kindOf(type: TarInput["type"]): string {
  return type === "file" ? "0" : type === "directory" ? "5" : "2";
}

/** A line `LENGTH KEY=VALUE`, whose length counts itself. */
function record(key: string, value: string): string {
  const rest = utf8(` ${key}=${value}\n`).length;
  let length = rest + 1;
  while (rest + String(length).length !== length) length = rest + String(length).length;
  return `${String(length)} ${key}=${value}\n`;
}

function header({ name, mode, mtime, size, target = "" }: TarInput, kind: string): Uint8Array {
  const block = new Uint8Array(BLOCK);
  const put = (at: number, value: string, most: number): void => {
    block.set(utf8(value).subarray(0, most), at);
  };
  const octal = (at: number, value: number, digits: number): void => {
    put(at, `${value.toString(8).padStart(digits, "0")}\0`, digits + 1);
  };
  put(0, name, 100);
  octal(100, mode & 0o7777, 7);
  octal(108, 0, 7);
  octal(116, 0, 7);
  octal(124, size, 11);
  octal(136, Math.max(0, Math.floor(mtime)), 11);
  put(148, "        ", 8);
  put(156, kind, 1);
  put(157, target, 100);
  put(257, "ustar\x0000", 8);
  octal(
    148,
    block.reduce((sum, byte) => sum + byte, 0),
    6,
  );
  return block;
}

/**
 * The entries of an archive, in order; kinds that are no file, folder or link are passed over.
 *
 * @throws RuntimeError `download_incomplete`: it ends before its end; `unsafe_archive`: it does not read.
 */
export async function* readTar(pieces: AsyncGenerator<Uint8Array>): AsyncGenerator<TarEntry, void, undefined> {
  const source = new Source(pieces);
  let meta: Record<string, string> = {};
  try {
    for (;;) {
      const block = await source.exactly(BLOCK);
      if (block.every((byte) => byte === 0)) break;
      const size = meta["size"] === undefined ? numberAt(block, 124, 12) : number(meta["size"], 10);
      const kind = String.fromCharCode(block[156] ?? 0);
      if (kind === "x" || kind === "L" || kind === "K" || kind === "g") {
        if (size > MAX_META) throw unreadable("a header is too large");
        const body = await source.exactly(size);
        await source.exactly(padding(size));
        if (kind === "x") meta = { ...meta, ...paxRecords(body) };
        else if (kind !== "g") meta[kind === "L" ? "path" : "linkpath"] = untilNul(body);
        continue;
      }
      const prefix =
        untilNul(block.subarray(257, 262)) === "ustar" && block[262] === 0 ? untilNul(block.subarray(345, 500)) : "";
      const short = untilNul(block.subarray(0, 100));
      const name = meta["path"] ?? (prefix === "" ? short : `${prefix}/${short}`);
      const target = meta["linkpath"] ?? untilNul(block.subarray(157, 257));
      meta = {};
      const type = typeOf(kind, name);
      // Links name no bytes of their own, whatever their size says.
      const length = type === undefined || type === "file" ? size : 0;
      const body = source.upTo(length);
      if (type !== undefined) {
        const mode = numberAt(block, 100, 8) & 0o777;
        yield { name, type, mode, mtime: numberAt(block, 136, 12), target, body };
      }
      await source.drop(padding(length));
    }
    // What stands behind the end is read, so that the transfer ends as it should.
    await source.rest();
  } finally {
    await pieces.return(undefined);
  }
}

function typeOf(kind: string, name: string): TarEntry["type"] | undefined {
  switch (kind) {
    case "\0":
    case "0":
    case "7":
      return name.endsWith("/") ? "directory" : "file";
    case "1":
      return "link";
    case "2":
      return "symlink";
    case "5":
      return "directory";
    default:
      return undefined;
  }
}

function untilNul(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  return text(end === -1 ? bytes : bytes.subarray(0, end));
}

function numberAt(block: Uint8Array, at: number, length: number): number {
  // Numbers that octal digits cannot hold are written in base 256 by GNU.
  if (((block[at] ?? 0) & 0x80) !== 0) {
    return number(String(block.subarray(at + 1, at + length).reduce((sum, byte) => sum * 256 + byte, 0)), 10);
  }
  return number(untilNul(block.subarray(at, at + length)), 8);
}

function number(digits: string, base: 8 | 10): number {
  const trimmed = digits.trim();
  const found = trimmed === "" ? 0 : parseInt(trimmed, base);
  if (Number.isSafeInteger(found) && found >= 0) return found;
  throw unreadable("a header holds no number where one belongs");
}

function paxRecords(body: Uint8Array): Record<string, string> {
  const found: Record<string, string> = {};
  for (let at = 0; at < body.length;) {
    const blank = body.indexOf(0x20, at);
    const length = blank === -1 ? NaN : Number(text(body.subarray(at, blank)));
    if (!Number.isInteger(length) || length < blank - at + 3 || at + length > body.length) {
      throw unreadable("a pax header does not read");
    }
    const line = text(body.subarray(blank + 1, at + length - 1));
    const equals = line.indexOf("=");
    const key = line.slice(0, equals);
    if (key === "path" || key === "linkpath" || key === "size") found[key] = line.slice(equals + 1);
    at += length;
  }
  return found;
}

/** Bytes by number, out of pieces. */
class Source {
  readonly #pieces: AsyncGenerator<Uint8Array>;
  #held: Uint8Array = new Uint8Array();
  #body = 0;

  constructor(pieces: AsyncGenerator<Uint8Array>) {
    this.#pieces = pieces;
  }

  async exactly(length: number): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    for (let left = length; left > 0;) {
      const part = await this.#some(left);
      parts.push(part);
      left -= part.length;
    }
    return concat(parts, length);
  }

  /** The body of an entry: the next bytes, as they come. */
  upTo(length: number): AsyncGenerator<Uint8Array, void, undefined> {
    this.#body = length;
    return this.#read();
  }

  async *#read(): AsyncGenerator<Uint8Array, void, undefined> {
    while (this.#body > 0) {
      const part = await this.#some(this.#body);
      this.#body -= part.length;
      yield part;
    }
  }

  /** What of the body nobody read, and so much after it. */
  async drop(after: number): Promise<void> {
    for (let left = this.#body + after; left > 0;) left -= (await this.#some(left)).length;
    this.#body = 0;
  }

  async rest(): Promise<void> {
    while ((await this.#pieces.next()).done !== true);
  }

  async #some(most: number): Promise<Uint8Array> {
    while (this.#held.length === 0) {
      const next = await this.#pieces.next();
      if (next.done === true) {
        throw new RuntimeError({ code: "download_incomplete", message: "the archive was cut before its end" });
      }
      this.#held = next.value;
    }
    const part = this.#held.subarray(0, most);
    this.#held = this.#held.subarray(part.length);
    return part;
  }
}

function unreadable(message: string): RuntimeError {
  return new RuntimeError({ code: "unsafe_archive", message: `the archive cannot be unpacked: ${message}` });
}
