import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import * as disk from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";

import { utf8 } from "../../src/commands/bytes.js";
import { packFolder, unpackInto, withGzip, withoutGzip } from "../../src/files/folder.js";
import type { Disk } from "../../src/files/local.js";
import { partsOf, piecesOf } from "../../src/files/pieces.js";
import { tarEnd, tarHeader, tarPadding, readTar, type TarInput } from "../../src/files/tar.js";
import { checkedChunk, phaseKey } from "../../src/files/upload.js";
import { RuntimeError } from "../../src/index.js";

const here = disk as unknown as Disk;
let place: string;
beforeEach(() => {
  place = mkdtempSync(join(tmpdir(), "withruntime-unit-"));
});
afterEach(() => {
  rmSync(place, { recursive: true, force: true });
});

async function collect(pieces: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const all: Uint8Array[] = [];
  for await (const piece of pieces) all.push(piece);
  return Buffer.concat(all);
}

/** The same bytes in pieces of a size. */
async function* cut(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array, void, undefined> {
  for (let at = 0; at < bytes.length; at += size) {
    await Promise.resolve();
    yield bytes.subarray(at, at + size);
  }
}

function entry(name: string, more: Partial<TarInput> = {}, body = ""): Buffer {
  const input: TarInput = { name, type: "file", mode: 0o644, mtime: 1, size: utf8(body).length, ...more };
  return Buffer.concat([tarHeader(input), utf8(body), tarPadding(input.size)]);
}

async function unpack(...entries: Buffer[]): Promise<unknown> {
  const packed = Buffer.concat([...entries, tarEnd()]);
  return await unpackInto(here, join(place, "into"), cut(packed, 700)).then(
    () => undefined,
    (error: unknown) => (error instanceof RuntimeError ? error.code : error),
  );
}

describe("tar", () => {
  const long = "d".repeat(120);
  const make = (): void => {
    mkdirSync(join(place, "from", long, "ü €"), { recursive: true });
    writeFileSync(join(place, "from", long, "ü €", `${"f".repeat(90)}.txt`), "x".repeat(5001));
    writeFileSync(join(place, "from", "empty"), "");
    symlinkSync(`${long}/ü €`, join(place, "from", "link"));
  };

  test("is read by the tar of the system, and what that makes is read here", async () => {
    make();
    const packed = await collect(packFolder(here, join(place, "from")));
    expect(packed.length % 512).toBe(0);
    mkdirSync(join(place, "theirs"));
    execFileSync("tar", ["-xf", "-", "-C", join(place, "theirs")], { input: packed });
    expect(execFileSync("diff", ["-r", join(place, "from"), join(place, "theirs")]).toString()).toBe("");

    for (const format of ["gnu", "pax", "ustar"]) {
      const folder = format === "ustar" ? join(place, "from", long) : join(place, "from");
      const args = ["-C", folder, `--format=${format}`, "-cf", "-", "."];
      const theirs = execFileSync("tar", args, { maxBuffer: 1e8 });
      for (const size of [1, 511, 100_000]) {
        const into = join(place, `ours-${format}-${String(size)}`);
        await unpackInto(here, into, cut(theirs, size));
        expect(execFileSync("diff", ["-r", folder, into]).toString()).toBe("");
      }
    }
  });

  test("that is cut anywhere does not pass for whole", async () => {
    const packed = Buffer.concat([entry("a", {}, "some text"), entry("b"), tarEnd()]);
    for (let length = 0; length < packed.length - 512; length += 100) {
      const read = async (): Promise<void> => {
        for await (const one of readTar(cut(packed.subarray(0, length), 300))) await collect(one.body);
      };
      await expect(read(), String(length)).rejects.toMatchObject({ code: "download_incomplete" });
    }
  });

  test("that is compressed comes back, and is incomplete wherever it was cut", async () => {
    make();
    const folder = join(place, "from");
    const packed = await collect(withGzip(packFolder(here, folder)));
    expect([packed[0], packed[1]]).toEqual([0x1f, 0x8b]);
    await unpackInto(here, join(place, "whole"), withoutGzip(cut(packed, 100)));
    expect(execFileSync("diff", ["-r", folder, join(place, "whole")]).toString()).toBe("");
    for (const length of [0, 5, 20, packed.length >> 1, packed.length - 1]) {
      const unpacked = unpackInto(
        here,
        join(place, `cut-${String(length)}`),
        withoutGzip(cut(packed.subarray(0, length), 50)),
      );
      await expect(unpacked, String(length)).rejects.toMatchObject({ code: "download_incomplete" });
    }
    // What the transfer itself says of its end is passed on.
    const broken = async function* (): AsyncGenerator<Uint8Array, void, undefined> {
      yield* cut(packed.subarray(0, 100), 50);
      throw new RuntimeError({ code: "timeout", message: "the caller gave up" });
    };
    const unpacked = unpackInto(here, join(place, "broken"), withoutGzip(broken()));
    await expect(unpacked).rejects.toMatchObject({ code: "timeout" });
  });

  test("leads nowhere but down", async () => {
    writeFileSync(join(place, "outside"), "kept");
    for (const name of ["../outside", "/etc/passwd", "a/../../outside", "..", "a\\b"]) {
      expect(await unpack(entry(name, {}, "overwritten")), name).toBe("unsafe_archive");
    }
    for (const target of ["/etc", "..", "a/../..", "../outside"]) {
      expect(await unpack(entry("link", { type: "symlink", target })), target).toBe("unsafe_archive");
    }
    // A link that was there before is not followed either.
    mkdirSync(join(place, "into"), { recursive: true });
    symlinkSync(place, join(place, "into", "way"));
    expect(await unpack(entry("way/outside", {}, "overwritten"))).toBe("unsafe_archive");
    symlinkSync(join(place, "outside"), join(place, "into", "file"));
    expect(await unpack(entry("file", {}, "replaced"))).toBeUndefined();
    expect(readFileSync(join(place, "into", "file"), "utf8")).toBe("replaced");
    const hard = entry("hard", { type: "symlink", target: "way/outside" });
    hard[156] = "1".charCodeAt(0);
    hard.fill(" ", 148, 156);
    expect(await unpack(hard)).toBe("unsafe_archive");
    expect(readFileSync(join(place, "outside"), "utf8")).toBe("kept");
    expect(existsSync(join(place, "into", "hard"))).toBe(false);
  });

  test("merges with what is there", async () => {
    expect(await unpack(entry("a/b", { mode: 0o755 }, "old"), entry("kept", {}, "kept"))).toBeUndefined();
    expect(await unpack(entry("a", { type: "directory", mode: 0o500 }), entry("a/b", {}, "new"))).toBeUndefined();
    expect(readdirSync(join(place, "into")).sort()).toEqual(["a", "kept"]);
    expect(readFileSync(join(place, "into/a/b"), "utf8")).toBe("new");
    expect(await unpack(entry("a", {}, "a file"))).toBe("unsafe_archive");
    expect(await unpack(entry("kept/below", {}, "a file"))).toBe("unsafe_archive");
  });

  test("that is nonsense is refused", async () => {
    const bad = entry("a");
    bad.write("nonsense", 124);
    expect(await unpack(bad)).toBe("unsafe_archive");
    const huge = entry("a".repeat(200));
    huge.write("77777777777", 124);
    expect(await unpack(huge)).toBe("unsafe_archive");
  });
});

describe("parts", () => {
  const sizes = async (bytes: number, size: number): Promise<[number, boolean][]> => {
    const parts: [number, boolean][] = [];
    for await (const { bytes: part, isLast } of partsOf(cut(new Uint8Array(bytes), 7), size))
      parts.push([part.length, isLast]);
    return parts;
  };

  test("have one size, but for the last, which is told", async () => {
    expect(await sizes(0, 10)).toEqual([[0, true]]);
    expect(await sizes(10, 10)).toEqual([[10, true]]);
    expect(await sizes(25, 10)).toEqual([
      [10, false],
      [10, false],
      [5, true],
    ]);
  });

  test("come of whatever holds bytes", async () => {
    for (const data of [
      "abc",
      utf8("abc"),
      utf8("abc").buffer,
      new Blob(["abc"]),
      new Blob(["abc"]).stream(),
      cut(utf8("abc"), 1),
    ]) {
      expect((await collect(piecesOf(data as Blob))).toString()).toBe("abc");
    }
  });
});

test("the keys of a call's phases are its own and always the same", () => {
  const key = phaseKey("files.write", "k", "start");
  expect(key).toMatch(/^[0-9a-f]{64}$/);
  expect(phaseKey("files.write", "k", "start")).toBe(key);
  const others = [
    phaseKey("files.write", "k", "commit"),
    phaseKey("files.write", "l", "start"),
    phaseKey("x", "k", "start"),
  ];
  expect(new Set([key, ...others]).size).toBe(4);
});

test("chunks have a size that makes sense", () => {
  expect(checkedChunk(1024)).toBe(1024);
  for (const bytes of [0, -1, 1.5, 1024 * 1024 + 1, "1", undefined])
    expect(() => checkedChunk(bytes)).toThrow(RuntimeError);
});
