/**
 * What a call can fail with: the server's refusal, or the client's own failure with status 0.
 */

/** Codes that asking again does not change: features switched off on purpose, quotas, a command's own want of memory. */
const NEVER_PASSING: ReadonlySet<string> = new Set([
  "quota_exceeded",
  "out_of_memory",
  "unavailable",
  "unsupported",
  "fork_unavailable",
  "previews_unavailable",
  "file_links_unavailable",
  "network_unavailable",
  "network_rules_unavailable",
  "secrets_unavailable",
  "identity_unavailable",
  "env_unavailable",
  "resize_unavailable",
  "feature_unavailable",
  "delete_unavailable",
  "switch_image_unavailable",
  "switching_paused",
  "schema_migration_required",
  "storage_unavailable",
]);

/** Refusals for want of room that end when another sandbox does. */
const ROOM_ENDS: ReadonlySet<string> = new Set(["no_capacity", "no_credit_running_limit", "no_credit_total_limit"]);

const PASSING_STATUSES: ReadonlySet<number> = new Set([429, 502, 503, 504]);

/** The client's own failures that it meets with another try itself; the rest are mistakes of the caller or of a server. */
const PASSING_OWN: ReadonlySet<string> = new Set(["connection_error", "timeout", "download_incomplete"]);

/** The parts of an error. */
export interface RuntimeErrorParts {
  code: string;
  message: string;
  /** The HTTP status; 0 when the client itself failed. */
  status?: number | undefined;
  hint?: string | undefined;
  requestId?: string | undefined;
  details?: Record<string, unknown> | undefined;
  idempotencyKey?: string | undefined;
  retryAfterMs?: number | undefined;
  /** The server's own word on whether the same call may succeed later. */
  retryable?: boolean | undefined;
  cause?: unknown;
}

/**
 * A refusal or failure of a call. Its subclasses tell by status what kind it is; `code` is stable and is what programs
 * should look at.
 */
export class RuntimeError extends Error {
  override readonly name: string = "RuntimeError";
  /** Stable, in snake_case: `file_not_found`, `name_taken`, `connection_error`. */
  readonly code: string;
  /** The HTTP status; 0 when the client itself failed. */
  readonly status: number;
  /** What to do about it, if the server says. */
  readonly hint: string | undefined;
  /** Names the request in the server's log. */
  readonly requestId: string | undefined;
  /** More, by code: `{ issues }` of `invalid_request`, `{ sandboxId }` of `name_taken`. */
  readonly details: Record<string, unknown> | undefined;
  /** Milliseconds the server asks to wait before another try. */
  readonly retryAfterMs: number | undefined;
  readonly #said: boolean | undefined;
  #key: string | undefined;

  constructor(parts: RuntimeErrorParts) {
    super(parts.message, parts.cause === undefined ? undefined : { cause: parts.cause });
    this.code = parts.code;
    this.status = parts.status ?? 0;
    this.hint = parts.hint;
    this.requestId = parts.requestId;
    this.details = parts.details;
    this.#key = parts.idempotencyKey;
    this.retryAfterMs = parts.retryAfterMs;
    this.#said = parts.retryable;
  }

  /** Whether the same call may succeed later: the server's word first, else what code and status usually mean. */
  get retryable(): boolean {
    if (this.#said !== undefined) return this.#said;
    if (NEVER_PASSING.has(this.code)) return false;
    if (ROOM_ENDS.has(this.code)) return !this.isAboutCount;
    return this.status === 0 || PASSING_STATUSES.has(this.status);
  }

  /** The key that the call carried: the same call with it again cannot take effect twice. */
  get idempotencyKey(): string | undefined {
    return this.#key;
  }

  /** @internal */
  nameKey(key: string): void {
    this.#key ??= key;
  }

  /** The server's own word, if it gave one. @internal */
  get said(): boolean | undefined {
    return this.#said;
  }

  /**
   * Whether the client itself should try again: as `retryable`, but a want of room does not pass within seconds, and of
   * what has no status only a broken connection passes.
   *
   * @internal
   */
  get passes(): boolean {
    if (this.#said !== undefined) return this.#said;
    if (NEVER_PASSING.has(this.code)) return false;
    return this.status === 0 ? PASSING_OWN.has(this.code) : PASSING_STATUSES.has(this.status);
  }

  /** The refusal is about how many were asked for, which no waiting changes. @internal */
  get isAboutCount(): boolean {
    return this.details?.["field"] === "count";
  }

  /** The error's facts as data, for logs. */
  toJSON(): Record<string, unknown> {
    const { name, code, status, message, hint, requestId, idempotencyKey, retryAfterMs, details } = this;
    return { name, code, status, message, hint, requestId, idempotencyKey, retryAfterMs, details };
  }
}

/** 401: no key, an unknown or a revoked one. */
export class AuthenticationError extends RuntimeError {
  override readonly name = "AuthenticationError";
}

/** 403: the key, or the sandbox's user, may not do this. */
export class PermissionDeniedError extends RuntimeError {
  override readonly name = "PermissionDeniedError";
}

/** 404: it does not exist, or not for this key. */
export class NotFoundError extends RuntimeError {
  override readonly name = "NotFoundError";
}

/** 409: the state of things does not allow it; `code` says what stands in the way. */
export class ConflictError extends RuntimeError {
  override readonly name = "ConflictError";
}

/** 400, 413 or 422: the request itself is wrong; `details.issues` names every wrong field. */
export class InvalidRequestError extends RuntimeError {
  override readonly name = "InvalidRequestError";
}

/** 429: too much at once. */
export class RateLimitError extends RuntimeError {
  override readonly name = "RateLimitError";
}

/** 500 and above: the server's side failed, or the feature is not on this server. */
export class ServiceUnavailableError extends RuntimeError {
  override readonly name = "ServiceUnavailableError";
}

/** `account_blocked`, whatever the status. */
export class AccountBlockedError extends RuntimeError {
  override readonly name = "AccountBlockedError";
}

/** No answer came: `connection_error`, or `timeout` when the deadline passed or the caller's signal was aborted. */
export class ConnectionError extends RuntimeError {
  override readonly name = "ConnectionError";
}

/** How a command ended that was meant to succeed. */
export interface CommandFailure {
  code: "command_failed" | "command_timeout" | "out_of_memory";
  message: string;
  hint?: string | undefined;
  exitCode: number | null;
  stdout: string;
  stderr: string;
  details: Record<string, unknown>;
}

/** A command run with `check` did not succeed: `command_failed`, `command_timeout` or `out_of_memory`. */
export class CommandError extends RuntimeError {
  override readonly name = "CommandError";
  /** The command's exit code; negative: ended by that signal. */
  readonly exitCode: number | null;
  /** The head of its standard output. */
  readonly stdout: string;
  /** The head of its standard error. */
  readonly stderr: string;

  constructor(failure: CommandFailure) {
    super(failure);
    this.exitCode = failure.exitCode;
    this.stdout = failure.stdout;
    this.stderr = failure.stderr;
  }
}

/** A webhook's signature is not that of the body, or too old. */
export class WebhookVerificationError extends Error {
  override readonly name = "WebhookVerificationError";
}

/** The error of a status and its parts. */
export function errorOf(parts: RuntimeErrorParts): RuntimeError {
  const status = parts.status ?? 0;
  if (parts.code === "account_blocked") return new AccountBlockedError(parts);
  switch (status) {
    case 401:
      return new AuthenticationError(parts);
    case 403:
      return new PermissionDeniedError(parts);
    case 404:
      return new NotFoundError(parts);
    case 409:
      return new ConflictError(parts);
    case 400:
    case 413:
    case 422:
      return new InvalidRequestError(parts);
    case 429:
      return new RateLimitError(parts);
    default:
      return status >= 500 ? new ServiceUnavailableError(parts) : new RuntimeError(parts);
  }
}

/** A mistake of the caller, found before anything was sent. */
export function invalidRequest(message: string, hint?: string): RuntimeError {
  return new InvalidRequestError({ code: "invalid_request", message, hint });
}
