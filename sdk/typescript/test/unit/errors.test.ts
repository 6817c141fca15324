import { expect, test } from "vitest";

import * as api from "../../src/index.js";
import { errorFrom, loneError, readRefusal, retryAfterMs } from "../../src/transport/answer.js";

test.each([
  [400, "InvalidRequestError"],
  [401, "AuthenticationError"],
  [402, "RuntimeError"],
  [403, "PermissionDeniedError"],
  [404, "NotFoundError"],
  [409, "ConflictError"],
  [410, "RuntimeError"],
  [413, "InvalidRequestError"],
  [422, "InvalidRequestError"],
  [429, "RateLimitError"],
  [500, "ServiceUnavailableError"],
  [503, "ServiceUnavailableError"],
])("%i is a %s", (status, name) => {
  const error = errorFrom({ code: "x", message: "m" }, status);
  expect(error.name).toBe(name);
  expect(error.constructor.name).toBe(name);
  expect(error).toBeInstanceOf(api.RuntimeError);
});

test("a blocked account is told before the status", () => {
  expect(errorFrom({ code: "account_blocked" }, 402)).toBeInstanceOf(api.AccountBlockedError);
});

test("every field of the contract arrives", () => {
  const body = {
    code: "name_taken",
    message: "taken",
    hint: "use another",
    requestId: "req_1",
    details: { field: "name" },
    retryAfterMs: 5,
  };
  expect(errorFrom(body, 409)).toMatchObject({ ...body, status: 409, retryable: false });
});

test("fields of a wrong type say nothing", async () => {
  const body = { error: { code: 7, message: "no", details: [1], retryable: "yes", retryAfterMs: true } };
  const error = await readRefusal(Response.json(body, { status: 503 }));
  expect(error).toMatchObject({ code: "request_failed", message: "no", details: undefined, retryAfterMs: undefined });
  expect(error.retryable).toBe(true);
});

test("an answer that is not ours still has a message", async () => {
  const headers = { "retry-after": "2" };
  const error = await readRefusal(new Response("<html>Bad gateway</html>", { status: 502, headers }));
  expect(error).toMatchObject({ status: 502, code: "request_failed", message: "<html>Bad gateway</html>" });
  expect(error.retryAfterMs).toBe(2000);
  expect((await readRefusal(new Response(null, { status: 500 }))).message).toBe("the request failed with status 500");
  expect((await readRefusal(new Response("x".repeat(2000), { status: 500 }))).message).toHaveLength(500);
});

test("whether the same call may succeed later", () => {
  const retryable = (status: number, error: Record<string, unknown>): boolean => errorFrom(error, status).retryable;
  expect(retryable(503, { code: "unavailable", retryable: true })).toBe(true);
  expect(retryable(503, { code: "unavailable" })).toBe(false);
  expect(retryable(503, { code: "busy", retryable: false })).toBe(false);
  expect(retryable(503, { code: "host_unavailable" })).toBe(true);
  expect(retryable(429, { code: "quota_exceeded" })).toBe(false);
  expect(retryable(409, { code: "no_capacity" })).toBe(true);
  expect(retryable(409, { code: "no_capacity", details: { field: "count" } })).toBe(false);
  expect(retryable(409, { code: "no_capacity", retryable: false })).toBe(false);
  expect(retryable(409, { code: "name_taken" })).toBe(false);
  expect(new api.ConnectionError({ code: "connection_error", message: "" }).retryable).toBe(true);
  expect(new api.RuntimeError({ code: "start_failed", message: "" }).retryable).toBe(true);
  expect(new api.RuntimeError({ code: "out_of_memory", message: "" }).retryable).toBe(false);
});

test("a wait in seconds may have a fraction and nothing else", () => {
  const read = (text: string): number | undefined => retryAfterMs(new Headers({ "retry-after": text }));
  expect(read("2")).toBe(2000);
  expect(read("0.25")).toBe(250);
  for (const odd of ["-1", "NaN", "Infinity", "1e9", "Wed, 21 Oct 2026 07:28:00 GMT", ""]) {
    expect(read(odd), odd).toBeUndefined();
  }
});

test("only an error that stands alone is a late failure", () => {
  expect(loneError({ error: { code: "x" } })).toEqual({ code: "x" });
  expect(loneError({ error: { code: "x" }, id: "1" })).toBeUndefined();
  expect(loneError({ error: "x" })).toBeUndefined();
  expect(loneError([])).toBeUndefined();
});
