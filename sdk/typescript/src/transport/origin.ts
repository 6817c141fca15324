/**
 * Where a server is: a scheme, a host and a port, nothing else.
 */

import { RuntimeError } from "../errors.js";
import { environmentVariable, isInsideSandbox } from "./environment.js";

const PUBLIC_ORIGIN = "https://api.withruntime.com";
const INSIDE_ORIGIN = "http://runtime.internal";
const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"];

/**
 * The origin that requests go to: the argument, else `RUNTIME_API_URL`, else the public service. Inside one of its
 * sandboxes the public service is reached by its inner name.
 *
 * @param given - An origin such as `https://runtime.example.com` or `http://127.0.0.1:8787`. Plain HTTP is taken only
 * for the machine itself and for `http://runtime.internal`, so that a key never crosses a network in clear.
 * @returns The origin without a slash at its end.
 * @throws {@link RuntimeError} `invalid_request`: not an origin, or one that would expose the key.
 */
export function apiOrigin(given?: string): string {
  const named = given ?? environmentVariable("RUNTIME_API_URL");
  const origin = parseOrigin(named === undefined || named === "" ? PUBLIC_ORIGIN : named);
  return origin === PUBLIC_ORIGIN && isInsideSandbox() ? INSIDE_ORIGIN : origin;
}

function parseOrigin(text: string): string {
  // URL would repair blanks and control characters; an address that holds them is a mistake worth naming.
  const url = /[\s\u0000-\u001f\u007f]/.test(text) ? null : tryUrl(text);
  if (url === null) {
    throw badOrigin(text, "is not a URL");
  }
  const host = url.hostname;
  const inside = host === "runtime.internal" && url.port === "";
  if (!(url.protocol === "https:" || (url.protocol === "http:" && (LOOPBACK.includes(host) || inside)))) {
    throw badOrigin(text, "must start with https:// (http:// only for localhost, 127.0.0.1, [::1], runtime.internal)");
  }
  const extra = url.username + url.password + url.search + url.hash;
  if (extra !== "" || url.pathname !== "/" || /[?#]/.test(text)) {
    throw badOrigin(text, "must be only a scheme, host and port: no path, query, fragment or credentials");
  }
  return url.origin;
}

function tryUrl(text: string): URL | null {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

function badOrigin(text: string, why: string): RuntimeError {
  // Whatever stands before an @ may be a password.
  const shown = text.replace(/\/\/[^/]*@/, "//…@");
  return new RuntimeError({ code: "invalid_request", message: `the API address ${JSON.stringify(shown)} ${why}` });
}
