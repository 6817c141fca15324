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
export {
  Sandbox,
  type AtEnd,
  type SessionAccess,
  type SettleOptions,
  type ResizeOptions,
  type WakeOptions,
  type WithClient,
} from "./sandbox.js";
export { Sandboxes, type BulkFailure, type CreateInput, type CreateOptions, type ListFilter } from "./sandboxes.js";
export { Snapshots, type SnapshotFilter, type SnapshotOptions } from "./snapshots.js";
export { Network } from "./network.js";
export { Sessions } from "./sessions.js";
export { Terminal, type TerminalOptions } from "./terminal.js";
export { Tunnel, TunnelConnection } from "./tunnel.js";
export { PortForward, type ForwardOptions } from "./forward.js";
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
  type ListOptions,
  type MkdirOptions,
  type RemoveOptions,
  type RenameOptions,
  type WriteFileOptions,
  type WriteStreamOptions,
} from "./files/files.js";
export {
  FollowedWatch,
  Watch,
  Watches,
  type FollowedWatchOptions,
  type WatchExit,
  type WatchNotice,
  type WatchOptions,
} from "./files/watch.js";
export type { ArchiveOptions, UnarchiveOptions } from "./files/archive.js";
export type { CopyOptions } from "./files/local.js";
export type { FileData, FileStream } from "./files/pieces.js";
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
  CreateSession,
  DeletedSandbox,
  FileChange,
  FileChangeType,
  FileEntry,
  FileStat,
  ForkSandbox,
  Limits,
  Me,
  NetworkDecision,
  NetworkSettings,
  NewSession,
  OnTimeout,
  OutOfMemory,
  ProcessInfo,
  ProcessState,
  PtySize,
  SandboxInfo,
  SandboxNetwork,
  SandboxSize,
  SandboxState,
  Session,
  SessionState,
  SignalName,
  Snapshot,
  SnapshotMode,
  SnapshotState,
  TakeSnapshot,
  TracedFiles,
  UpdateSandbox,
  WatchInfo,
  UpdateSnapshot,
} from "./types.js";
