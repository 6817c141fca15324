/**
 * Frames of the WebSocket protocol (RFC 6455, section 5), as a client reads and writes them.
 */

import { concat } from "../transport/answer.js";

export const TEXT = 0x1;
export const BINARY = 0x2;
export const CLOSE = 0x8;
export const PING = 0x9;
export const PONG = 0xa;
const CONTINUATION = 0x0;

/** A message, or a control frame. */
export interface Frame {
  kind: number;
  payload: Uint8Array;
}

/** A frame as a client must send it: whole, and masked. */
export function encodeFrame(kind: number, payload: Uint8Array): Uint8Array {
  const { length } = payload;
  const sized = length < 126 ? 2 : length < 65_536 ? 4 : 10;
  const frame = new Uint8Array(sized + 4 + length);
  const view = new DataView(frame.buffer);
  frame[0] = 0x80 | kind;
  frame[1] = 0x80 | (sized === 2 ? length : sized === 4 ? 126 : 127);
  if (sized === 4) view.setUint16(2, length);
  if (sized === 10) view.setBigUint64(2, BigInt(length));
  const mask = crypto.getRandomValues(frame.subarray(sized, sized + 4));
  for (let at = 0; at < length; at += 1) frame[sized + 4 + at] = (payload[at] ?? 0) ^ (mask[at & 3] ?? 0);
  return frame;
}

/** Reads what a server sends, up to a limit for each message that is checked before it is waited for. */
export class FrameReader {
  readonly #most: number;
  #pieces: Uint8Array[] = [];
  #held = 0;
  #parts: Uint8Array[] = [];
  #partial: { kind: number; length: number } | undefined;

  constructor(most: number) {
    this.#most = most;
  }

  /** The messages and control frames that are whole with this piece. @throws Error what came is no such protocol. */
  push(piece: Uint8Array): Frame[] {
    if (piece.length > 0) this.#pieces.push(piece);
    this.#held += piece.length;
    const found: Frame[] = [];
    for (let frame = this.#next(); frame !== undefined; frame = this.#next()) {
      if (frame !== "partial") found.push(frame);
    }
    return found;
  }

  #next(): Frame | "partial" | undefined {
    const head = this.#peek(10);
    const [first, second] = head;
    if (first === undefined || second === undefined) return undefined;
    if ((first & 0x70) !== 0) throw new Error("a frame has bits set that were not agreed upon");
    if ((second & 0x80) !== 0) throw new Error("a server must not mask its frames");
    const short = second & 0x7f;
    const sized = short < 126 ? 2 : short === 126 ? 4 : 10;
    if (this.#held < sized) return undefined;
    const view = new DataView(head.buffer, head.byteOffset, head.length);
    const length = short < 126 ? short : sized === 4 ? view.getUint16(2) : Number(view.getBigUint64(2));
    const kind = first & 0x0f;
    const isLast = (first & 0x80) !== 0;
    if (length > this.#most) throw new Error("a frame is too large");
    if (kind >= 0x8 && (length > 125 || !isLast)) throw new Error("a control frame is too large");
    if (this.#held < sized + length) return undefined;
    const payload = this.#take(sized + length).subarray(sized);
    return kind >= 0x8 ? { kind, payload } : this.#message(kind, payload, isLast);
  }

  #message(kind: number, payload: Uint8Array, isLast: boolean): Frame | "partial" {
    if ((kind === CONTINUATION) !== (this.#partial !== undefined)) throw new Error("a message is out of order");
    const message = (this.#partial ??= { kind, length: 0 });
    if (message.kind !== TEXT && message.kind !== BINARY) throw new Error("a frame is of no known kind");
    message.length += payload.length;
    if (message.length > this.#most) throw new Error("a message is too large");
    this.#parts.push(payload);
    if (!isLast) return "partial";
    const whole = { kind: message.kind, payload: concat(this.#parts, message.length) };
    this.#parts = [];
    this.#partial = undefined;
    return whole;
  }

  /** So many bytes, or fewer, left where they are. */
  #peek(most: number): Uint8Array {
    const [first] = this.#pieces;
    if (first !== undefined && first.length >= Math.min(most, this.#held)) return first.subarray(0, most);
    this.#join();
    return (this.#pieces[0] ?? new Uint8Array()).subarray(0, most);
  }

  #take(length: number): Uint8Array {
    if ((this.#pieces[0]?.length ?? 0) < length) this.#join();
    const whole = this.#pieces[0] ?? new Uint8Array();
    this.#held -= length;
    if (whole.length === length) this.#pieces.shift();
    else this.#pieces[0] = whole.subarray(length);
    return whole.subarray(0, length);
  }

  #join(): void {
    this.#pieces = this.#held === 0 ? [] : [concat(this.#pieces, this.#held)];
  }
}
