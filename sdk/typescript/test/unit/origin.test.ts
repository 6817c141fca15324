import { afterEach, expect, test, vi } from "vitest";

import { apiOrigin, InvalidRequestError, Runtime, RuntimeError } from "../../src/index.js";

afterEach(() => {
  vi.unstubAllEnvs();
});

test.each([
  ["http://localhost:8787", "http://localhost:8787"],
  ["HTTP://LocalHost:8787/", "http://localhost:8787"],
  ["http://127.0.0.1:1/", "http://127.0.0.1:1"],
  ["http://[::1]:8787", "http://[::1]:8787"],
  ["http://runtime.internal", "http://runtime.internal"],
  ["http://runtime.internal:80", "http://runtime.internal"],
  ["https://api.example.com", "https://api.example.com"],
  ["https://10.0.0.1:8443", "https://10.0.0.1:8443"],
])("%s is taken", (given, origin) => {
  expect(apiOrigin(given)).toBe(origin);
});

test.each([
  "http://0.0.0.0:8787",
  "http://host.docker.internal",
  "http://10.0.0.1",
  "http://runtime.internal:8080",
  "http://localhost.example.com",
  "ftp://localhost",
  "localhost:8787",
  "http://local host",
  "http://localhost/v1",
  "https://a.example/?",
  "https://a.example/?x=1",
  "https://a.example/#x",
  "https://me@a.example",
])("%s is refused before anything is sent", (given) => {
  expect(() => apiOrigin(given)).toThrow(RuntimeError);
});

test("a password in an address is not repeated", () => {
  expect(() => apiOrigin("https://me:word@a.example")).toThrow(/^(?!.*word)/);
});

test("the environment names the server; without it, the public one", () => {
  vi.stubEnv("RUNTIME_API_URL", "http://127.0.0.1:9");
  expect(new Runtime().transport.origin).toBe("http://127.0.0.1:9");
  expect(new Runtime({ baseUrl: "https://b.example" }).transport.origin).toBe("https://b.example");
  vi.stubEnv("RUNTIME_API_URL", "");
  expect(apiOrigin()).toBe("https://api.withruntime.com");
});

test("options out of range are refused", () => {
  expect(() => new Runtime({ timeoutMs: -1 })).toThrow(InvalidRequestError);
  expect(() => new Runtime({ maxRetries: Number.NaN })).toThrow(InvalidRequestError);
  expect(() => new Runtime({ maxConnections: 1 })).toThrow(InvalidRequestError);
});
