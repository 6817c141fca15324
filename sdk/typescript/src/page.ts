/**
 * Lists that come in pages.
 */

import { RuntimeError } from "./errors.js";
import { isObject } from "./transport/answer.js";

/** Fetches the page at a cursor. @internal */
export type FetchPage<T> = (cursor: string | undefined) => Promise<Page<T>>;

/** One page of a list. Iterating it goes on over all that follow. */
export class Page<T> implements AsyncIterable<T> {
  /** What is on this page. */
  readonly data: readonly T[];
  /** Where the next page begins; null on the last one. */
  readonly nextCursor: string | null;
  readonly #fetch: FetchPage<T>;

  /** @internal */
  constructor(data: readonly T[], nextCursor: string | null, fetch: FetchPage<T>) {
    this.data = data;
    this.nextCursor = nextCursor;
    this.#fetch = fetch;
  }

  /** Whether another page follows. */
  get hasMore(): boolean {
    return this.nextCursor !== null;
  }

  /** The page that follows, or null. */
  async next(): Promise<Page<T> | null> {
    if (this.nextCursor === null) return null;
    const next = await this.#fetch(this.nextCursor);
    // A server that gives the same page for ever must not be followed for ever.
    if (next.nextCursor === this.nextCursor) {
      throw new RuntimeError({ code: "invalid_answer", message: "the server gave the same page of a list twice" });
    }
    return next;
  }

  /** This page and all that follow. */
  async *pages(): AsyncGenerator<Page<T>, void, undefined> {
    yield this;
    for (let page = await this.next(); page !== null; page = await page.next()) yield page;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for await (const page of this.pages()) yield* page.data;
  }

  /** Everything from here on, at most so many. */
  async toArray(limit = 10_000): Promise<T[]> {
    const all: T[] = [];
    for await (const one of this) {
      if (all.length >= limit) break;
      all.push(one);
    }
    return all;
  }
}

/** A list being asked for: await its first page, or iterate over everything in it. */
export class PageRequest<T> implements PromiseLike<Page<T>>, AsyncIterable<T> {
  readonly #fetch: FetchPage<T>;
  #first: Promise<Page<T>> | undefined;

  /** @internal */
  constructor(fetch: FetchPage<T>) {
    this.#fetch = fetch;
  }

  then<A = Page<T>, B = never>(
    onFulfilled?: ((page: Page<T>) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.#firstPage().then(onFulfilled, onRejected);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    yield* await this.#firstPage();
  }

  /** Everything, at most so many. */
  async toArray(limit = 10_000): Promise<T[]> {
    return await (await this.#firstPage()).toArray(limit);
  }

  #firstPage(): Promise<Page<T>> {
    this.#first ??= this.#fetch(undefined);
    return this.#first;
  }
}

/** A page out of an answer `{data, nextCursor}`. @internal */
export function pageOf<T>(answer: unknown, make: (raw: unknown) => T, fetch: FetchPage<T>): Page<T> {
  const { data, nextCursor } = isObject(answer) ? answer : {};
  if (!Array.isArray(data)) {
    throw new RuntimeError({ code: "invalid_answer", message: "the server answered a list without its data" });
  }
  const next = typeof nextCursor === "string" && nextCursor !== "" ? nextCursor : null;
  return new Page(
    data.map((raw: unknown) => make(raw)),
    next,
    fetch,
  );
}
