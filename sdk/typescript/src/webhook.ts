/**
 * Telling a webhook of ours from anybody's POST.
 */

import { utf8 } from "./commands/bytes.js";
import { WebhookVerificationError } from "./errors.js";
import { isObject } from "./transport/answer.js";

/** What a webhook tells. */
export interface WebhookEvent {
  /** The same for every delivery of one event: remember it, as one may come twice. */
  id?: string;
  /** Such as `sandbox.stopped`. */
  type?: string;
  [field: string]: unknown;
}

/** How a signature is checked. */
export interface VerifyOptions {
  /** Seconds that the signature may be old, or ahead. Default 300. */
  toleranceSeconds?: number | undefined;
  /** The time to compare with. Default: now. */
  now?: Date | number | undefined;
}

const MOST_SIGNATURES = 16;

/**
 * Checks the header `Runtime-Signature` of a delivery against its body and answers the event in it.
 *
 * @param body - The body as it came, not parsed and written again.
 * @param header - The header's value.
 * @param secret - The endpoint's secret, or several while one is being replaced.
 * @throws {@link WebhookVerificationError} whatever is wrong: the header, the time, the signature or the body.
 */
export async function verifyWebhook(
  body: string | Uint8Array,
  header: string | null | undefined,
  secret: string | readonly string[],
  options: VerifyOptions = {},
): Promise<WebhookEvent> {
  const { time, signatures } = parseHeader(header);
  const tolerance = options.toleranceSeconds ?? 300;
  const age = Math.abs(Number(options.now ?? Date.now()) / 1000 - Number(time));
  if (!(age <= tolerance)) {
    throw new WebhookVerificationError(`the signature is ${String(Math.round(age))} s off, more than allowed`);
  }
  const secrets = (typeof secret === "string" ? [secret] : secret).filter((one) => one !== "");
  if (secrets.length === 0) throw new WebhookVerificationError("no secret was given");
  const bytes = typeof body === "string" ? utf8(body) : body;
  const prefix = utf8(`${time}.`);
  const message = new Uint8Array(prefix.length + bytes.length);
  message.set(prefix);
  message.set(bytes, prefix.length);

  let isOurs = false;
  for (const one of secrets) {
    const key = await crypto.subtle.importKey("raw", asBuffer(utf8(one)), { name: "HMAC", hash: "SHA-256" }, false, [
      "verify",
    ]);
    for (const signature of signatures) {
      // Every pair is compared, and each in constant time.
      isOurs = (await crypto.subtle.verify("HMAC", key, asBuffer(signature), message)) || isOurs;
    }
  }
  if (!isOurs) throw new WebhookVerificationError("no signature is that of this body and secret");
  return parseEvent(bytes);
}

function parseHeader(header: string | null | undefined): { time: string; signatures: Uint8Array[] } {
  if (header == null || header === "") throw new WebhookVerificationError("there is no Runtime-Signature header");
  let time: string | undefined;
  const signatures: Uint8Array[] = [];
  for (const part of header.split(",")) {
    const [name, value = ""] = part.trim().split("=", 2);
    if (name === "t" && /^\d{1,15}$/.test(value)) time = value;
    if (name === "v1" && /^[0-9a-f]{64}$/i.test(value) && signatures.length < MOST_SIGNATURES) {
      signatures.push(Uint8Array.from(value.match(/../g) ?? [], (hex) => parseInt(hex, 16)));
    }
  }
  if (time === undefined) throw new WebhookVerificationError("the Runtime-Signature header has no time");
  if (signatures.length === 0) throw new WebhookVerificationError("the Runtime-Signature header has no signature");
  return { time, signatures };
}

function parseEvent(bytes: Uint8Array): WebhookEvent {
  try {
    const event: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    if (isObject(event)) return event;
  } catch {
    // Told below.
  }
  throw new WebhookVerificationError("the body is signed, but it is not an event");
}

function asBuffer(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  return bytes as Uint8Array<ArrayBuffer>;
}
