import { invalidRequest } from "../errors.js";

/** A query: left out when undefined, repeated when a list. */
export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** The path of segments under `/v1`, each percent-encoded with nothing left as it is that could mean something. */
export function path(...segments: string[]): string {
  return `/v1/${segments.map(encodeSegment).join("/")}`;
}

function encodeSegment(segment: string): string {
  // URLs resolve such a segment away, encoded or not: the request would go somewhere else.
  if (segment === "" || segment === "." || segment === "..") {
    throw invalidRequest(`${JSON.stringify(segment)} is not an id`);
  }
  return encodeURIComponent(segment).replace(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16)}`);
}

/** `?a=1&b=x&b=y`, or nothing. */
export function encodeQuery(query: Query | undefined): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === undefined) continue;
    for (const one of Array.isArray(value) ? (value as readonly string[]) : [value]) {
      params.append(name, String(one));
    }
  }
  const text = params.toString();
  return text === "" ? "" : `?${text}`;
}
