/**
 * Linux sandboxes for programs and agents.
 *
 * ```ts
 * import { Sandbox } from "withruntime";
 *
 * await using sandbox = await Sandbox.create();
 * const { stdout } = await sandbox.exec("uname -a");
 * ```
 *
 * @packageDocumentation
 */

export { Runtime, type RuntimeOptions } from "./runtime.js";
export { Sandbox, type AtEnd, type SettleOptions, type WakeOptions, type WithClient } from "./sandbox.js";
export { Sandboxes, type BulkFailure, type CreateInput, type CreateOptions, type ListFilter } from "./sandboxes.js";
export {
  Previews,
  type CreatePreview,
  type DeletedPreview,
  type Preview,
  type PreviewToken,
  type PreviewVisibility,
} from "./previews.js";
export type { KeepAliveOptions } from "./keep-alive.js";
export { Process, Processes, type OutputBytes, type OutputOptions, type WriteOptions } from "./commands/process.js";
export type {
  Command,
  CommandResult,
  CommandSettings,
  CommandUser,
  ExecEvent,
  ExecOptions,
  ExecStreamOptions,
  ExitEvent,
  OutputEvent,
  SpawnOptions,
} from "./commands/types.js";
export {
  Files,
  type FileData,
  type ListOptions,
  type MkdirOptions,
  type RemoveOptions,
  type RenameOptions,
  type WriteFileOptions,
} from "./files/files.js";
export { Page, PageRequest } from "./page.js";
export {
  AccountBlockedError,
  AuthenticationError,
  CommandError,
  ConflictError,
  ConnectionError,
  ConnectionError as RuntimeConnectionError,
  InvalidRequestError,
  NotFoundError,
  PermissionDeniedError,
  RateLimitError,
  RuntimeError,
  ServiceUnavailableError,
  WebhookVerificationError,
  type CommandFailure,
  type RuntimeErrorParts,
} from "./errors.js";
export { verifyWebhook, type VerifyOptions, type WebhookEvent } from "./webhook.js";
export {
  Transport,
  type Call,
  type CapacityWait,
  type Opened,
  type RequestOptions,
  type TransportOptions,
} from "./transport/transport.js";
export type { Query } from "./transport/path.js";
export { apiOrigin } from "./transport/origin.js";
export { VERSION } from "./version.js";
export type {
  CreateSandbox,
  DeletedSandbox,
  FileEntry,
  FileStat,
  Limits,
  Me,
  NetworkSettings,
  OnTimeout,
  OutOfMemory,
  ProcessInfo,
  ProcessState,
  SandboxInfo,
  SandboxState,
  SignalName,
  UpdateSandbox,
} from "./types.js";
