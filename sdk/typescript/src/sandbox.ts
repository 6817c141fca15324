/**
 * A sandbox: a Linux computer of its own.
 */

import { exec, execStream, type Place } from "./commands/exec.js";
import { Process, Processes, spawn } from "./commands/process.js";
import type {
  Command,
  CommandResult,
  ExecEvent,
  ExecOptions,
  ExecStreamOptions,
  SpawnOptions,
} from "./commands/types.js";
import { invalidRequest, RuntimeError } from "./errors.js";
import { Files } from "./files/files.js";
import { forwardPort, type ForwardOptions, type PortForward } from "./forward.js";
import { keepAlive, type KeepAliveOptions } from "./keep-alive.js";
import { Network } from "./network.js";
import type { PageRequest } from "./page.js";
import { Previews } from "./previews.js";
import { defaultRuntime, type Runtime } from "./runtime.js";
import type { CreateInput, CreateOptions, ListFilter } from "./sandboxes.js";
import { Sessions } from "./sessions.js";
import { takeSnapshot, type SnapshotOptions } from "./snapshots.js";
import { openTerminal, type Terminal, type TerminalOptions } from "./terminal.js";
import { path } from "./transport/path.js";
import { Transport, type RequestOptions } from "./transport/transport.js";
import { openTunnel, type Tunnel } from "./tunnel.js";
import type {
  DeletedSandbox,
  ForkSandbox,
  SandboxInfo,
  SandboxSize,
  SandboxState,
  Snapshot,
  TakeSnapshot,
  UpdateSandbox,
} from "./types.js";

/** Seconds that the server may hold the answer to a change until it has settled. */
const SETTLE_SECONDS = 60;
/** A stop and a start. */
const RESIZE_SECONDS = 120;

/** Which client a static method uses. */
export interface WithClient {
  /** Default: one that all static methods share, made from the environment. */
  client?: Runtime | undefined;
}

/** How a change of state is made. */
export interface SettleOptions extends RequestOptions {
  /** Wait until it has settled, 60 seconds at most. Default true. */
  wait?: boolean | undefined;
}

/** How {@link Sandbox.wake} wakes. */
export interface WakeOptions extends SettleOptions {
  /** A new time limit from now on, in seconds. Default: its own again. */
  timeoutSeconds?: number | undefined;
}

/** How {@link Sandbox.resize} may do it. */
export interface ResizeOptions extends RequestOptions {
  /** It may be stopped and started again: what is in its memory is lost, its disk is kept. Default true. */
  restart?: boolean | undefined;
}

/** What the end of an `await using` block does to a sandbox. */
export type AtEnd = "delete" | "stop" | "nothing";

/** What {@link Sandbox.fromSession} is given. */
export interface SessionAccess {
  /** The `token` of {@link Sessions.create}. */
  token: string;
  sandboxId: string;
  /** Its `apiUrl`. Default: as for {@link Runtime}. */
  apiUrl?: string | undefined;
  /** What sends the requests. Default: the global `fetch`. */
  fetch?: typeof fetch | undefined;
}

/**
 * A sandbox. Made by {@link Sandbox.create} or {@link Runtime.sandboxes}; `await using` deletes it at the end of the
 * block if it was created there, and only stops it if it was found or `keep` was asked for.
 */
export class Sandbox {
  readonly id: string;
  /** Its files. */
  readonly files: Files;
  /** Its processes. */
  readonly processes: Processes;
  /** What it may reach. */
  readonly network: Network;
  /** Ways into it for web pages. */
  readonly sessions: Sessions;
  /** Web addresses for its ports. */
  readonly previews: Previews;
  readonly #place: Place;
  readonly #atEnd: AtEnd;
  /** Unknown of one whose token alone is known, until it is asked for. */
  #info: SandboxInfo | undefined;

  /** @internal */
  constructor(transport: Transport, known: SandboxInfo | { id: string; info?: never }, atEnd: AtEnd) {
    this.id = known.id;
    this.#place = { transport, sandboxId: known.id };
    this.#info = "state" in known ? known : undefined;
    this.#atEnd = atEnd;
    this.files = new Files(transport, known.id);
    this.processes = new Processes(this.#place);
    this.network = new Network(transport, known.id);
    this.sessions = new Sessions(transport, known.id);
    this.previews = new Previews(transport, this.id);
  }

  /**
   * Makes a sandbox and waits until it runs; for want of room it waits up to two minutes.
   *
   * @throws {@link RuntimeError} `start_failed`: it did not come to run; `name_taken`, `no_capacity`, `invalid_request`.
   */
  static async create(input: CreateInput = {}, options: CreateOptions & WithClient = {}): Promise<Sandbox> {
    return await clientOf(options).sandboxes.create(input, options);
  }

  /**
   * Finds the sandbox of this name and makes it run, or makes it. Of two that race for a name both get the same one;
   * where it is found, `input` changes nothing.
   *
   * @throws As {@link Sandbox.create}.
   */
  static async getOrCreate(
    name: string,
    input: Omit<CreateInput, "name"> = {},
    options: CreateOptions & WithClient = {},
  ): Promise<Sandbox> {
    return await clientOf(options).sandboxes.getOrCreate(name, input, options);
  }

  /** @throws {@link NotFoundError} `not_found`. */
  static async connect(id: string, options: RequestOptions & WithClient = {}): Promise<Sandbox> {
    return await clientOf(options).sandboxes.get(id, options);
  }

  /** Sandboxes, oldest first. */
  static list(filter: ListFilter = {}, options: RequestOptions & WithClient = {}): PageRequest<Sandbox> {
    return clientOf(options).sandboxes.list(filter, options);
  }

  /**
   * The sandbox of a session, for a web page or another program without a key. Nothing is sent; {@link Sandbox.info} is
   * known after {@link Sandbox.refresh}. It runs commands and processes and uses files; anything else is refused with
   * `forbidden`, and a session that has ended with `unauthorized`.
   */
  static fromSession({ token, sandboxId, apiUrl, fetch }: SessionAccess): Sandbox {
    return new Sandbox(new Transport({ apiKey: token, baseUrl: apiUrl, fetch }), { id: sandboxId }, "nothing");
  }

  /**
   * The record of the last answer; {@link Sandbox.refresh} asks for a new one.
   *
   * @throws {@link InvalidRequestError} `invalid_request`: there was none yet, after {@link Sandbox.fromSession}.
   */
  get info(): SandboxInfo {
    if (this.#info !== undefined) return this.#info;
    throw invalidRequest("the record of this sandbox is not known yet", "Call refresh() first.");
  }

  /** As of the last answer. */
  get state(): SandboxState {
    return this.info.state;
  }

  get name(): string | null {
    return this.info.name ?? null;
  }

  /** Asks how it is now. */
  async refresh(options?: RequestOptions): Promise<this> {
    return this.#took(await this.#get({}, options));
  }

  /**
   * Waits for a state. When the time is over, or the state can no longer come, this resolves all the same: look at
   * {@link Sandbox.state}.
   */
  async waitFor(
    state: "running" | "paused" | "stopped",
    options: RequestOptions & { /** Default 60, at most 120. */ timeoutSeconds?: number } = {},
  ): Promise<this> {
    const { timeoutSeconds = 60, ...request } = options;
    return this.#took(await this.#get({ waitFor: state, timeoutSeconds }, request));
  }

  /** Ends all that runs in it; its disk is kept, and {@link Sandbox.restart} starts it again. */
  async stop(options: SettleOptions = {}): Promise<this> {
    return await this.#verb("stop", {}, options);
  }

  /** Freezes it with its memory; nothing is charged, and the next call to it, or {@link Sandbox.wake}, goes on. */
  async pause(options: SettleOptions = {}): Promise<this> {
    return await this.#verb("pause", {}, options);
  }

  /** Goes on where it paused. One that is awake stays so, unless a new time limit was asked for. */
  async wake(options: WakeOptions = {}): Promise<this> {
    const { timeoutSeconds, ...rest } = options;
    try {
      return await this.#verb("wake", { timeoutSeconds }, rest, true);
    } catch (error) {
      const isAwake = error instanceof RuntimeError && error.code === "not_paused" && timeoutSeconds === undefined;
      if (!isAwake) throw error;
      await this.refresh({ signal: rest.signal, timeoutMs: rest.timeoutMs });
      if (this.state !== "running" && this.state !== "starting" && this.state !== "resuming") throw error;
      return this;
    }
  }

  /** Starts a stopped sandbox from its disk. */
  async restart(options: SettleOptions = {}): Promise<this> {
    return await this.#verb("restart", {}, options, true);
  }

  /**
   * Gives it another size; what is left out stays, and a disk only grows. Waits until it runs with it, at most two minutes.
   *
   * @throws {@link ConflictError} `resize_needs_restart`: `restart` was false, and it has to start again for that.
   */
  async resize(size: SandboxSize, options: ResizeOptions = {}): Promise<this> {
    const { restart = true, ...request } = options;
    return this.#took(
      await this.#place.transport.json<SandboxInfo>({
        method: "POST",
        path: `${path("sandboxes", this.id)}:resize`,
        body: { ...size, restart },
        preferWaitSeconds: RESIZE_SECONDS,
        room: {},
        options: request,
      }),
    );
  }

  /** Moves the end of its time limit by so many seconds, to a day from now at most. One without a limit stays so. */
  async extend(seconds: number, options: RequestOptions = {}): Promise<this> {
    return await this.#verb("extend", { seconds }, { ...options, wait: false });
  }

  /** Changes settings; those left out stay as they are. */
  async update(settings: UpdateSandbox, options: RequestOptions = {}): Promise<this> {
    return await this.#verb("update", settings, { ...options, wait: false });
  }

  /** Days after which it is deleted once it is paused or stopped, 1 to 365; null: never. */
  async setRetention(days: number | null, options: RequestOptions = {}): Promise<this> {
    return await this.#verb("retention", { days }, { ...options, wait: false });
  }

  /** Removes it with its disk. It is gone when this resolves; doing it twice is no error. */
  async delete(options?: RequestOptions): Promise<DeletedSandbox> {
    return await this.#place.transport.json<DeletedSandbox>({
      method: "DELETE",
      path: path("sandboxes", this.id),
      options,
    });
  }

  /**
   * Moves the end of its time limit again and again, so that it cannot end while this program needs it.
   *
   * @returns Ends that. It also ends with the program, which it does not keep alive, and when the sandbox is gone.
   */
  keepAlive(options: KeepAliveOptions = {}): () => void {
    return keepAlive(this, options);
  }

  /**
   * Runs a command and waits until it has ended; what it leaves behind is killed. A string is a line for bash, a list is
   * a program and its arguments.
   *
   * @throws {@link CommandError} with `check`, unless it exits with 0 in time; {@link RuntimeError} `cancelled` when the
   * signal is aborted: the command is sent SIGTERM, and `details` has `{ sandboxId, processId, stopped }`;
   * {@link ConflictError} `time_limit_too_short`, `sandbox_stopped`, `sandbox_paused`.
   */
  async exec(command: Command, options: ExecOptions = {}): Promise<CommandResult> {
    return await exec(this.#place, command, options);
  }

  /**
   * Runs a command and tells its output as it comes, its exit last. A cut connection is taken up again at the byte that
   * came last. Leaving the loop early does not end the command; aborting the signal does.
   *
   * @throws As {@link Sandbox.exec}.
   */
  execStream(command: Command, options: ExecStreamOptions = {}): AsyncGenerator<ExecEvent, void, undefined> {
    return execStream(this.#place, command, options);
  }

  /** Starts a process that outlives this call, until it ends, is killed, or the sandbox stops. */
  async spawn(command: Command, options: SpawnOptions = {}): Promise<Process> {
    return await spawn(this.#place, command, options);
  }

  /**
   * Keeps what it is: with mode `memory`, which is the default, its disk, memory and processes. One that runs stands still
   * meanwhile and goes on. `Sandbox.create({ snapshot: id })` begins from it.
   *
   * @throws {@link RuntimeError} `snapshot_timeout`, `snapshot_failed`, `snapshot_mode_mismatch`, with `details`
   * `{ snapshotId, sourceSandboxId }`.
   */
  async snapshot(input: TakeSnapshot = {}, options: SnapshotOptions = {}): Promise<Snapshot> {
    await this.#settle(options);
    return await takeSnapshot(this.#place.transport, this.id, input, options);
  }

  /**
   * Makes a copy that goes on where it stands, memory and processes included; with `count` a list of them. It does not
   * wait for room. The end of an `await using` block deletes a copy.
   *
   * @throws {@link ConflictError} `no_capacity`, `name_taken`; {@link InvalidRequestError} `invalid_request`.
   */
  async fork(input: ForkSandbox & { count: number }, options?: RequestOptions): Promise<Sandbox[]>;
  async fork(input?: ForkSandbox & { count?: undefined }, options?: RequestOptions): Promise<Sandbox>;
  async fork(input: ForkSandbox = {}, options: RequestOptions = {}): Promise<Sandbox | Sandbox[]> {
    await this.#settle(options);
    const { sandboxes } = await this.#place.transport.json<{ sandboxes: SandboxInfo[] }>({
      method: "POST",
      path: `${path("sandboxes", this.id)}:fork`,
      body: input,
      preferWaitSeconds: SETTLE_SECONDS,
      options,
    });
    const copies = sandboxes.map((info) => new Sandbox(this.#place.transport, info, "delete"));
    if (input.count !== undefined) return copies;
    const [copy] = copies;
    if (copy === undefined) throw new RuntimeError({ code: "invalid_answer", message: "the server made no copy" });
    return copy;
  }

  /**
   * Opens a terminal, or shows one that is open. Not in browsers, whose sessions reach no socket.
   *
   * @throws {@link RuntimeError} `terminal_refused`, of the class of the server's own error, whose code is in `details`:
   * no such process, twelve are open; `unsupported`.
   */
  async terminal(options: TerminalOptions = {}): Promise<Terminal> {
    return await openTerminal(this.#place, options);
  }

  /**
   * Opens a way to the ports of its loopback.
   *
   * @throws {@link RuntimeError} `tunnel_refused`, as a terminal's refusal; `unsupported`.
   */
  async tunnel(options: { signal?: AbortSignal | undefined } = {}): Promise<Tunnel> {
    return await openTunnel(this.#place, options);
  }

  /**
   * Listens on a port here, and carries each connection to a port of its loopback, until it is closed.
   *
   * @throws {@link RuntimeError} `tunnel_failed`: the port here is taken; `tunnel_refused`, `unsupported`.
   */
  async forwardPort(port: number, options: ForwardOptions = {}): Promise<PortForward> {
    return await forwardPort(this.#place, port, options);
  }

  /** Its record, for `JSON.stringify`. */
  toJSON(): SandboxInfo | { id: string } {
    return this.#info ?? { id: this.id };
  }

  /** The end of an `await using` block: deletes it or stops it, as the class says; a failure of that is not told. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      if (this.#atEnd === "delete") await this.delete();
      else if (this.#atEnd === "stop" && this.state !== "stopped") await this.stop({ wait: false });
    } catch {
      // What the block itself threw matters more.
    }
  }

  /** Waits until it is in a state in which it can be copied, if it is on its way to one. */
  async #settle({ signal, timeoutMs }: RequestOptions): Promise<void> {
    const request = { signal, timeoutMs };
    const { state } = await this.refresh(request);
    if (state === "starting" || state === "resuming") await this.waitFor("running", request);
    if (state === "pausing") await this.waitFor("paused", request);
  }

  async #get(query: { waitFor?: string; timeoutSeconds?: number }, options?: RequestOptions): Promise<SandboxInfo> {
    return await this.#place.transport.json<SandboxInfo>({
      method: "GET",
      path: path("sandboxes", this.id),
      query,
      options,
    });
  }

  async #verb(verb: string, body: object, options: SettleOptions, waitsForRoom = false): Promise<this> {
    const { wait = true, ...request } = options;
    return this.#took(
      await this.#place.transport.json<SandboxInfo>({
        method: "POST",
        path: `${path("sandboxes", this.id)}:${verb}`,
        body,
        ...(wait ? { preferWaitSeconds: SETTLE_SECONDS } : {}),
        ...(waitsForRoom ? { room: {} } : {}),
        options: request,
      }),
    );
  }

  #took(info: SandboxInfo): this {
    this.#info = info;
    return this;
  }
}

function clientOf(options: WithClient): Runtime {
  return options.client ?? defaultRuntime();
}
