/**
 * When a failed attempt is made again, and after how long. Pure: time and chance come from outside.
 *
 * Three reasons to try again, in this order: there was no *room* (only for calls that wait for it), *nothing ran* (until
 * the deadline), or the failure is of a kind that usually passes (a few times). Whatever the reason, a wait that the
 * server names above a minute is the caller's to decide, and is not slept here.
 */

import type { Failure } from "./failure.js";

/** Refusals that end when somebody else's sandbox does. */
const ROOM_CODES: ReadonlySet<string> = new Set([
  "no_credit_running_limit",
  "no_credit_total_limit",
  "no_credit_domain_limit",
  "no_credit_capacity_full",
  "quota_exceeded",
  "account_share_full",
  "no_capacity",
  "volume_releasing",
]);

const NOTHING_RAN_CODES: ReadonlySet<string> = new Set(["guest_busy", "busy", "rate_limited"]);
const LONGEST_SLEEP_MS = 30_000;
const LONGEST_NAMED_WAIT_MS = 60_000;
/** How long a refusal that ran nothing is asked again when the call has no deadline. */
const PATIENCE_MS = 300_000;
/** A server that names no time at all must not be asked in a tight loop. */
const SHORTEST_ROOM_SLEEP_MS = 50;

/** What to do about a failure. */
export type Verdict =
  | { kind: "again"; delayMs: number }
  /** As `again`, because there was no room: the caller is told. */
  | { kind: "room"; delayMs: number }
  | { kind: "give-up" };

const GIVE_UP: Verdict = { kind: "give-up" };

export interface RetryLimits {
  /** For the whole call; 0: none. */
  deadlineMs: number;
  /** How often a failure that usually passes is met with another try. */
  maxRetries: number;
  /** How long room is waited for in all; 0: not at all. */
  roomMs: number;
}

/** The memory of one call. */
export class Retry {
  readonly #limits: RetryLimits;
  #roomSleptMs = 0;
  #roomTries = 0;
  #nothingRan = 0;
  #failures = 0;
  #resentAtOnce = false;

  constructor(limits: RetryLimits) {
    this.#limits = limits;
  }

  /** Time the call may take in all, the waits for room added; 0: any. */
  get deadlineMs(): number {
    return this.#limits.deadlineMs === 0 ? 0 : this.#limits.deadlineMs + this.#roomSleptMs;
  }

  /**
   * @param elapsedMs - Since the call began.
   * @param chance - Something in 0 to 1, so that many clients do not come back together.
   */
  decide(failure: Failure, elapsedMs: number, chance: number): Verdict {
    const { error } = failure;
    const named = error.retryAfterMs;
    if (named !== undefined && named > LONGEST_NAMED_WAIT_MS) return GIVE_UP;
    if (failure.neverOpened && !this.#resentAtOnce && this.#limits.maxRetries > 0) {
      this.#resentAtOnce = true;
      return { kind: "again", delayMs: 0 };
    }
    if (this.#waitsForRoom(failure)) return this.#roomVerdict(named, chance);

    let delayMs: number;
    let until = this.deadlineMs;
    if (nothingRan(failure)) {
      const base = named ?? 250;
      delayMs = Math.min(spread(base * 2 ** Math.min(this.#nothingRan, 3), 0.1, chance), LONGEST_SLEEP_MS);
      this.#nothingRan += 1;
      until = until === 0 ? PATIENCE_MS : until;
    } else if (error.passes && this.#failures < this.#limits.maxRetries) {
      const usual = Math.min(250 * 2 ** this.#failures, 8_000);
      this.#failures += 1;
      delayMs = named === undefined ? spread(usual, 0.5, chance) : Math.min(named, LONGEST_SLEEP_MS);
    } else {
      return GIVE_UP;
    }
    return until !== 0 && elapsedMs + delayMs >= until ? GIVE_UP : { kind: "again", delayMs };
  }

  #waitsForRoom({ error }: Failure): boolean {
    return this.#limits.roomMs > 0 && ROOM_CODES.has(error.code) && error.said !== false && !error.isAboutCount;
  }

  #roomVerdict(named: number | undefined, chance: number): Verdict {
    const left = this.#limits.roomMs - this.#roomSleptMs;
    if (left <= 0) return GIVE_UP;
    const usual = 500 * 2 ** Math.min(this.#roomTries, 4);
    this.#roomTries += 1;
    const delayMs = Math.min(Math.max(named ?? spread(usual, 0.25, chance), SHORTEST_ROOM_SLEEP_MS), left);
    this.#roomSleptMs += delayMs;
    return { kind: "room", delayMs };
  }
}

/** The server said that it did not begin. Late, only a busy guest still means that. */
function nothingRan({ error, late }: Failure): boolean {
  return (
    NOTHING_RAN_CODES.has(error.code) &&
    (error.status === 429 || error.status === 503) &&
    error.said !== false &&
    (!late || error.code === "guest_busy")
  );
}

/** `delay` times something between `1 - share` and `1 + share`. */
function spread(delayMs: number, share: number, chance: number): number {
  return delayMs * (1 - share + 2 * share * chance);
}
