import { createHash, createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";

import { fromBase64, toBase64, utf8 } from "../../src/commands/bytes.js";
import { Lines } from "../../src/commands/lines.js";
import { Sha256 } from "../../src/files/sha256.js";
import { verifyWebhook, VERSION, WebhookVerificationError } from "../../src/index.js";
import { Page, type FetchPage } from "../../src/page.js";
import { cap } from "../../src/tools/cap.js";
import { encodeQuery, path } from "../../src/transport/path.js";
import { Gate } from "../../src/transport/gate.js";

test("the version is that of the package", () => {
  const text = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
  expect((JSON.parse(text) as { version: string }).version).toBe(VERSION);
});

describe("lines", () => {
  test("come out whole however they came in", () => {
    const bytes = utf8('{"a":1}\n\n \r\n{"b":"ü€"}\n{"c":');
    for (let size = 1; size <= bytes.length; size += 1) {
      const lines = new Lines();
      const out: unknown[] = [];
      for (let at = 0; at < bytes.length; at += size) out.push(...lines.push(bytes.subarray(at, at + size)));
      expect(out, `in pieces of ${String(size)}`).toEqual([{ a: 1 }, { b: "ü€" }]);
    }
  });

  test("without an end, or that are no objects, are refused", () => {
    const lines = new Lines();
    const piece = new Uint8Array(1024 * 1024).fill(120);
    expect(() => {
      for (let i = 0; i < 6; i += 1) lines.push(piece);
    }).toThrow(/too long/);
    expect(() => new Lines().push(utf8("nonsense\n"))).toThrow(/not JSON/);
    expect(() => new Lines().push(utf8("7\n"))).toThrow(/not an object/);
  });
});

test("SHA-256 is that of the platform, in whatever pieces", () => {
  for (let length = 0; length < 200; length += 1) {
    const bytes = Uint8Array.from({ length }, (_, i) => (i * 7 + length) & 0xff);
    const wanted = createHash("sha256").update(bytes).digest("hex");
    const pieces = new Sha256();
    for (let at = 0; at < length; at += 13) pieces.update(bytes.subarray(at, at + 13));
    expect(pieces.hex()).toBe(wanted);
    expect(new Sha256().update(bytes).hex()).toBe(wanted);
  }
});

test("base64 there and back", () => {
  const bytes = Uint8Array.from({ length: 100_000 }, (_, i) => i & 0xff);
  expect(toBase64(bytes)).toBe(Buffer.from(bytes).toString("base64"));
  expect(fromBase64(toBase64(bytes))).toEqual(bytes);
  expect(fromBase64("%")).toBeUndefined();
});

test("a path's parts cannot become other parts", () => {
  expect(path("sandboxes", "a/b:c ü'")).toBe("/v1/sandboxes/a%2Fb%3Ac%20%C3%BC%27");
  expect(() => path("sandboxes", "..")).toThrow(/is not an id/);
  expect(() => path("sandboxes", "")).toThrow(/is not an id/);
  expect(encodeQuery({ a: "x+y z", b: ["1", "2"], c: undefined, d: false })).toBe("?a=x%2By+z&b=1&b=2&d=false");
  expect(encodeQuery({})).toBe("");
});

test("what is too long loses its middle", () => {
  expect(cap("abc", 3)).toEqual({ text: "abc", leftOut: 0 });
  expect(cap("abcdefghij", 4)).toEqual({ text: "ab\n[… 6 characters left out …]\nij", leftOut: 6 });
  expect(cap("abc", 0).leftOut).toBe(3);
});

describe("pages", () => {
  const fetch: FetchPage<number> = (cursor) => {
    const at = Number(cursor ?? 0);
    return Promise.resolve(new Page([at, at + 1], at < 4 ? String(at + 2) : null, fetch));
  };

  test("follow each other", async () => {
    const first = await fetch(undefined);
    expect(first.hasMore).toBe(true);
    expect((await first.next())?.data).toEqual([2, 3]);
    expect(await first.toArray()).toEqual([0, 1, 2, 3, 4, 5]);
    expect(await first.toArray(3)).toEqual([0, 1, 2]);
  });

  test("that name themselves as the next are not followed for ever", async () => {
    const again: FetchPage<number> = () => Promise.resolve(new Page([1], "same", again));
    await expect((await again(undefined)).toArray()).rejects.toThrow(/the same page/);
  });
});

describe("the gate", () => {
  test("keeps places for calls, and lets in by turn", async () => {
    const queued: number[] = [];
    const gate = new Gate(10, (waiting) => queued.push(waiting));
    const { signal } = new AbortController();
    const first = await gate.enter(true, signal);
    await gate.enter(true, signal);
    const order: string[] = [];
    const third = gate.enter(true, signal).then(() => order.push("third"));
    const fourth = gate.enter(true, signal).then(() => order.push("fourth"));
    const releases = await Promise.all(Array.from({ length: 8 }, () => gate.enter(false, signal)));
    expect(queued).toEqual([1, 2]);
    first();
    first();
    await third;
    expect(order).toEqual(["third"]);
    releases[0]?.();
    expect(order).toEqual(["third"]);
    void fourth;
  });

  test("is left by those whose call ends", async () => {
    const gate = new Gate(2);
    const quiet = new AbortController().signal;
    const release = await gate.enter(false, quiet);
    await gate.enter(false, quiet);
    const gone = new AbortController();
    const waiting = gate.enter(false, gone.signal);
    gone.abort(new Error("gone"));
    await expect(waiting).rejects.toThrow("gone");
    release();
    await gate.enter(false, quiet);
  });
});

describe("webhooks", () => {
  const secret = "whsec_test";
  const body = '{"id":"evt_1","type":"sandbox.stopped","data":{"é":1}}';
  const now = 1_790_000_000_000;
  const sign = (key: string, t = now / 1000, text = body): string =>
    createHmac("sha256", key)
      .update(`${String(t)}.${text}`)
      .digest("hex");
  const header = (...signatures: string[]): string =>
    [`t=${String(now / 1000)}`, ...signatures.map((s) => `v1=${s}`)].join(",");

  test("of ours are taken, as text or bytes, with any of the secrets and signatures", async () => {
    const event = { id: "evt_1", type: "sandbox.stopped", data: { é: 1 } };
    expect(await verifyWebhook(body, header(sign(secret)), secret, { now })).toEqual(event);
    expect(await verifyWebhook(utf8(body), header(sign(secret)), secret, { now })).toEqual(event);
    const both = header(sign("whsec_old"), sign(secret));
    expect(await verifyWebhook(body, both, ["whsec_other", secret], { now })).toEqual(event);
    expect(await verifyWebhook(body, header(sign(secret)), secret, { now: now + 300_000 })).toEqual(event);
  });

  test.each([
    ["another body", body.replace("1", "2"), header(sign(secret)), now],
    ["another secret", body, header(sign("whsec_other")), now],
    ["too old", body, header(sign(secret)), now + 301_000],
    ["from the future", body, header(sign(secret)), now - 301_000],
    ["another time", body, header(sign(secret)).replace(/t=\d+/, `t=${String(now / 1000 + 1)}`), now],
    ["no time", body, `v1=${sign(secret)}`, now],
    ["no signature", body, `t=${String(now / 1000)}`, now],
    ["a short signature", body, header(sign(secret).slice(2)), now],
    ["no header", body, null, now],
    ["nonsense", body, "t=now,v1=zz", now],
  ])("%s is refused", async (_, text, given, at) => {
    await expect(verifyWebhook(text, given, secret, { now: at })).rejects.toThrow(WebhookVerificationError);
  });

  test("signed nonsense, and an empty secret, are refused", async () => {
    const text = "not an event";
    await expect(verifyWebhook(text, header(sign(secret, now / 1000, text)), secret, { now })).rejects.toThrow(/event/);
    await expect(verifyWebhook(body, header(sign("")), "", { now })).rejects.toThrow(/no secret/);
    await expect(verifyWebhook(body, header(sign("")), [], { now })).rejects.toThrow(/no secret/);
  });
});
