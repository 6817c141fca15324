import { describe, expect, test } from "vitest";

import { errorFrom } from "../../src/transport/answer.js";
import { Failure } from "../../src/transport/failure.js";
import { Retry, type RetryLimits } from "../../src/transport/retry.js";

const MIDDLE = 0.5;

function failure(status: number, error: Record<string, unknown>, late = false): Failure {
  return new Failure(errorFrom(error, status), { late });
}

function retry(limits: Partial<RetryLimits> = {}): Retry {
  return new Retry({ deadlineMs: 300_000, maxRetries: 4, roomMs: 0, ...limits });
}

/** How long it waits before each further try, until it gives up. */
function waits(plan: Retry, given: Failure): number[] {
  const all: number[] = [];
  let elapsed = 0;
  for (;;) {
    const verdict = plan.decide(given, elapsed, MIDDLE);
    if (verdict.kind === "give-up") return all;
    all.push(verdict.delayMs);
    elapsed += verdict.delayMs;
    if (all.length > 10_000) throw new Error("never gives up");
  }
}

describe("failures that usually pass", () => {
  const gateway = failure(502, { code: "guest_failed" });

  test("are met with four more tries, ever later", () => {
    expect(waits(retry(), gateway)).toEqual([250, 500, 1000, 2000]);
    expect(waits(retry({ maxRetries: 7 }), gateway)).toEqual([250, 500, 1000, 2000, 4000, 8000, 8000]);
    expect(waits(retry({ maxRetries: 0 }), gateway)).toEqual([]);
  });

  test("are spread by half", () => {
    expect(retry().decide(gateway, 0, 0)).toEqual({ kind: "again", delayMs: 125 });
    expect(retry().decide(gateway, 0, 1)).toEqual({ kind: "again", delayMs: 375 });
  });

  test("wait as long as the server says, up to half a minute; above a minute is the caller's to decide", () => {
    const named = (retryAfterMs: number): Failure => failure(503, { code: "host_unavailable", retryAfterMs });
    expect(waits(retry(), named(1500))).toEqual([1500, 1500, 1500, 1500]);
    expect(waits(retry(), named(45_000))).toEqual([30_000, 30_000, 30_000, 30_000]);
    expect(waits(retry(), named(60_001))).toEqual([]);
  });

  test("are not waited for beyond the deadline", () => {
    expect(waits(retry({ deadlineMs: 1000 }), gateway)).toEqual([250, 500]);
    expect(waits(retry({ deadlineMs: 0 }), gateway)).toHaveLength(4);
  });
});

test("refusals, and features that are off, are final", () => {
  expect(waits(retry(), failure(400, { code: "invalid_request" }))).toEqual([]);
  expect(waits(retry(), failure(501, { code: "unavailable" }))).toEqual([]);
  expect(waits(retry(), failure(503, { code: "fork_unavailable" }))).toEqual([]);
  expect(waits(retry(), failure(500, { code: "internal_error" }))).toEqual([]);
  expect(waits(retry(), failure(429, { code: "quota_exceeded" }))).toEqual([]);
});

test("the server's word beats the table", () => {
  expect(waits(retry(), failure(500, { code: "internal_error", retryable: true }))).toHaveLength(4);
  expect(waits(retry(), failure(503, { code: "fork_unavailable", retryable: true }))).toHaveLength(4);
  expect(waits(retry(), failure(502, { code: "guest_failed", retryable: false }))).toEqual([]);
  expect(waits(retry(), failure(503, { code: "busy", retryable: false }))).toEqual([]);
});

test("a connection that never opened is tried again at once, once", () => {
  const refused = new Failure(errorFrom({ code: "connection_error" }, 0), { neverOpened: true });
  expect(waits(retry(), refused)).toEqual([0, 250, 500, 1000, 2000]);
});

describe("when nothing ran", () => {
  test("the call is sent until its deadline, then the refusal stands", () => {
    const busy = failure(429, { code: "rate_limited", retryAfterMs: 1000 });
    const all = waits(retry(), busy);
    expect(all.slice(0, 5)).toEqual([1000, 2000, 4000, 8000, 8000]);
    const total = all.reduce((sum, wait) => sum + wait, 0);
    expect(total).toBeGreaterThan(285_000);
    expect(total).toBeLessThan(300_000);
    expect(Math.max(...waits(retry(), failure(503, { code: "busy", retryAfterMs: 20_000 })))).toBe(30_000);
  });

  test("five minutes are the deadline of a call that has none", () => {
    const total = waits(retry({ deadlineMs: 0 }), failure(503, { code: "busy" })).reduce((sum, wait) => sum + wait, 0);
    expect(total).toBeGreaterThan(290_000);
    expect(total).toBeLessThan(300_000);
  });

  test("late, only a busy guest means that", () => {
    expect(waits(retry(), failure(503, { code: "guest_busy" }, true)).length).toBeGreaterThan(4);
    expect(waits(retry(), failure(503, { code: "busy" }, true))).toHaveLength(4);
  });

  test("another status with such a code is no promise", () => {
    expect(waits(retry(), failure(502, { code: "busy" }))).toHaveLength(4);
  });
});

describe("room", () => {
  const full = failure(409, { code: "no_capacity" });

  test("is waited for when asked, and the wait is added to the deadline", () => {
    const plan = retry({ roomMs: 20_000 });
    expect(waits(plan, full)).toEqual([500, 1000, 2000, 4000, 8000, 4500]);
    expect(plan.deadlineMs).toBe(320_000);
  });

  test("is not waited for otherwise", () => {
    expect(waits(retry(), full)).toEqual([]);
    expect(waits(retry(), failure(429, { code: "quota_exceeded" }))).toEqual([]);
  });

  test("that waiting cannot make is not waited for", () => {
    const plan = (): Retry => retry({ roomMs: 20_000 });
    expect(waits(plan(), failure(429, { code: "quota_exceeded", retryable: false }))).toEqual([]);
    expect(waits(plan(), failure(409, { code: "no_capacity", details: { field: "count" } }))).toEqual([]);
    expect(waits(plan(), failure(409, { code: "no_capacity", retryAfterMs: 61_000 }))).toEqual([]);
  });

  test("is asked for when the server says, never in a tight loop", () => {
    expect(waits(retry({ roomMs: 5000 }), failure(409, { code: "no_capacity", retryAfterMs: 2000 }))).toEqual([
      2000, 2000, 1000,
    ]);
    expect(waits(retry({ roomMs: 200 }), failure(409, { code: "no_capacity", retryAfterMs: 0 }))).toEqual([
      50, 50, 50, 50,
    ]);
  });

  test("has the caller told", () => {
    expect(retry({ roomMs: 1000 }).decide(full, 0, MIDDLE)).toEqual({ kind: "room", delayMs: 500 });
  });
});
