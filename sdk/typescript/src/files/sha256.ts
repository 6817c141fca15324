/**
 * SHA-256 of bytes that come in pieces. The digest of the platform wants them all at once, and pages that came over
 * plain HTTP have none.
 */

const BLOCK = 64;
/** The first 32 bits of the fractional parts of the cube and square roots of the first primes. */
const [ROUNDS, INITIAL] = constants();

export class Sha256 {
  readonly #state = new Uint32Array(INITIAL);
  readonly #words = new Uint32Array(64);
  readonly #block = new Uint8Array(BLOCK);
  #held = 0;
  #length = 0;

  update(bytes: Uint8Array): this {
    this.#length += bytes.length;
    for (let at = 0; at < bytes.length;) {
      const taken = Math.min(BLOCK - this.#held, bytes.length - at);
      this.#block.set(bytes.subarray(at, at + taken), this.#held);
      this.#held += taken;
      at += taken;
      if (this.#held === BLOCK) {
        this.#mix();
        this.#held = 0;
      }
    }
    return this;
  }

  /** In lower-case hexadecimal. Nothing may be added afterwards. */
  hex(): string {
    const bits = this.#length * 8;
    const padding = new Uint8Array((this.#held < 56 ? 56 : 56 + BLOCK) - this.#held + 8);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(padding.length - 4, bits >>> 0);
    this.update(padding);
    return Array.from(this.#state, (part) => part.toString(16).padStart(8, "0")).join("");
  }

  #mix(): void {
    const w = this.#words;
    const view = new DataView(this.#block.buffer);
    for (let i = 0; i < 16; i += 1) w[i] = view.getUint32(i * 4);
    for (let i = 16; i < 64; i += 1) {
      const a = word(w, i - 15);
      const b = word(w, i - 2);
      const s0 = turn(a, 7) ^ turn(a, 18) ^ (a >>> 3);
      const s1 = turn(b, 17) ^ turn(b, 19) ^ (b >>> 10);
      w[i] = word(w, i - 16) + s0 + word(w, i - 7) + s1;
    }
    let [a, b, c, d, e, f, g, h] = this.#state as unknown as [
      number,
      number,
      number,
      number,
      number,
      number,
      number,
      number,
    ];
    for (let i = 0; i < 64; i += 1) {
      const s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
      const first = (h + s1 + ((e & f) ^ (~e & g)) + word(ROUNDS, i) + word(w, i)) | 0;
      const s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
      const second = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    for (const [i, mixed] of [a, b, c, d, e, f, g, h].entries()) this.#state[i] = word(this.#state, i) + mixed;
  }
}

function word(words: Uint32Array, i: number): number {
  return words[i] ?? 0;
}

function turn(word: number, by: number): number {
  return (word >>> by) | (word << (32 - by));
}

function constants(): [Uint32Array, Uint32Array] {
  const rounds = new Uint32Array(64);
  const initial = new Uint32Array(8);
  let found = 0;
  for (let n = 2; found < 64; n += 1) {
    let isPrime = true;
    for (let d = 2; d * d <= n; d += 1) isPrime &&= n % d !== 0;
    if (!isPrime) continue;
    rounds[found] = Math.cbrt(n) * 2 ** 32;
    if (found < 8) initial[found] = Math.sqrt(n) * 2 ** 32;
    found += 1;
  }
  return [rounds, initial];
}
