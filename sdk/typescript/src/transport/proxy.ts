/**
 * The proxy on the way to a server, from `HTTPS_PROXY` and `NO_PROXY`; of both names the one in lower case wins. Node's own
 * `fetch` knows none, so the package `undici`, which it is made of, is asked to go through it. Bun does so by itself.
 *
 * Plain HTTP is only for this machine, so nothing of that goes through a proxy.
 */

import { toBase64, utf8 } from "../commands/bytes.js";
import { RuntimeError } from "../errors.js";
import { environmentVariable, isNode, nodePackage } from "./environment.js";

/** How to reach a server through a proxy. */
export interface Through {
  fetch: typeof fetch;
  /** A WebSocket that takes headers. */
  socket: (url: string, headers: Record<string, string>) => WebSocket;
}

/** A proxy that tunnels. Its name holds no password. */
export interface Proxy {
  name: string;
  /** A ready header. */
  authorization: string | undefined;
}

/** What is used of undici. */
interface Undici {
  fetch: (input: unknown, init: object) => Promise<Response>;
  ProxyAgent: new (options: { uri: string; token?: string }) => object;
  WebSocket: new (url: string, options: object) => WebSocket;
}

/**
 * The way to an origin, if that leads through a proxy.
 *
 * @throws {@link RuntimeError} `invalid_proxy`: the variable names none that can be used.
 */
export function through(origin: string): Through | undefined {
  if (!isNode()) return undefined;
  const proxy = chooseProxy(origin, environmentVariable);
  if (proxy === undefined) return undefined;
  const { name, authorization } = proxy;
  let undici: Undici;
  try {
    undici = nodePackage("undici") as Undici;
  } catch (cause) {
    const hint = "Install the package undici beside your program, or list the server in NO_PROXY.";
    throw new RuntimeError({
      code: "invalid_proxy",
      message: `${name} cannot be used: undici is missing`,
      hint,
      cause,
    });
  }
  const dispatcher = new undici.ProxyAgent({
    uri: name,
    ...(authorization === undefined ? {} : { token: authorization }),
  });
  return {
    fetch: async (input, init) => {
      try {
        return await undici.fetch(input, { ...init, dispatcher });
      } catch (cause) {
        if (init?.signal?.aborted === true) throw cause;
        const why = cause instanceof Error && cause.cause instanceof Error ? cause.cause.message : String(cause);
        throw new TypeError(`through the proxy ${name}: ${why}`, { cause });
      }
    },
    socket: (url, headers) => new undici.WebSocket(url, { headers, dispatcher }),
  };
}

/** As {@link through}: which proxy, by these variables. */
export function chooseProxy(origin: string, variable: (name: string) => string | undefined): Proxy | undefined {
  const server = new URL(origin);
  if (server.protocol !== "https:") return undefined;
  const read = (name: string): string => variable(name) ?? variable(name.toUpperCase()) ?? "";
  const address = read("https_proxy").trim();
  if (address === "" || isExempt(server, read("no_proxy"))) return undefined;
  const url = tryUrl(address.includes("://") ? address : `http://${address}`);
  if (url === undefined || !["http:", "https:"].includes(url.protocol) || url.hostname === "") {
    throw new RuntimeError({
      code: "invalid_proxy",
      message: `HTTPS_PROXY names no proxy that can be used${url === undefined ? "" : ` (scheme ${url.protocol})`}`,
      hint: "Use http://host:port, or list the server in NO_PROXY.",
    });
  }
  const pair = `${decoded(url.username)}:${decoded(url.password)}`;
  return { name: url.origin, authorization: pair === ":" ? undefined : `Basic ${toBase64(utf8(pair))}` };
}

function isExempt(server: URL, rules: string): boolean {
  const host = bare(server.hostname);
  const port = server.port === "" ? "443" : server.port;
  return rules.split(",").some((given) => {
    const rule = given.trim().toLowerCase();
    if (rule === "") return false;
    if (rule === "*") return true;
    const [, name = rule, only] = /^(\[.*\]|[^:]*):(\d+)$/.exec(rule) ?? [];
    if (only !== undefined && only !== port) return false;
    const suffix = bare(name.replace(/^\*?\./, ""));
    return host === suffix || host.endsWith(`.${suffix}`);
  });
}

function bare(host: string): string {
  return host.replace(/^\[|\]$/g, "");
}

function tryUrl(text: string): URL | undefined {
  try {
    return new URL(text);
  } catch {
    return undefined;
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
