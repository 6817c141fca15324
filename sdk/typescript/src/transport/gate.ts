/**
 * How many requests are under way at once. Streams, which may last for hours, never take all the places: some are kept
 * for calls. Whoever finds no place waits in line.
 */

/** A place; given back once, however often it is released. */
export type Release = () => void;

interface Waiter {
  stream: boolean;
  enter: () => void;
}

/** Places kept free of streams. */
const KEPT_FOR_CALLS = 8;

export class Gate {
  readonly #places: number;
  readonly #forStreams: number;
  readonly #onQueued: ((waiting: number) => void) | undefined;
  readonly #line: Waiter[] = [];
  #taken = 0;
  #streams = 0;

  constructor(places: number, onQueued?: (waiting: number) => void) {
    this.#places = places;
    this.#forStreams = Math.max(1, places - KEPT_FOR_CALLS);
    this.#onQueued = onQueued;
  }

  /** Waits for a place, first come first served among those that may have it. */
  async enter(stream: boolean, signal: AbortSignal): Promise<Release> {
    signal.throwIfAborted();
    if (!this.#fits(stream) || this.#line.some((waiter) => waiter.stream === stream)) {
      await this.#wait(stream, signal);
    } else {
      this.#take(stream);
    }
    let held = true;
    return () => {
      if (!held) return;
      held = false;
      this.#taken -= 1;
      if (stream) this.#streams -= 1;
      this.#admit();
    };
  }

  #wait(stream: boolean, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        this.#line.splice(this.#line.indexOf(waiter), 1);
        reject(signal.reason as Error);
      };
      const waiter: Waiter = {
        stream,
        enter: () => {
          signal.removeEventListener("abort", leave);
          resolve();
        },
      };
      this.#line.push(waiter);
      signal.addEventListener("abort", leave, { once: true });
      this.#onQueued?.(this.#line.length);
    });
  }

  #admit(): void {
    for (;;) {
      const next = this.#line.findIndex((waiter) => this.#fits(waiter.stream));
      const [waiter] = next === -1 ? [] : this.#line.splice(next, 1);
      if (waiter === undefined) return;
      this.#take(waiter.stream);
      waiter.enter();
    }
  }

  #fits(stream: boolean): boolean {
    return this.#taken < this.#places && (!stream || this.#streams < this.#forStreams);
  }

  #take(stream: boolean): void {
    this.#taken += 1;
    if (stream) this.#streams += 1;
  }
}
