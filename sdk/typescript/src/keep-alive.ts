import { NotFoundError } from "./errors.js";
import type { Sandbox } from "./sandbox.js";
import { sleep } from "./transport/sleep.js";

/** How {@link Sandbox.keepAlive} looks after a sandbox. */
export interface KeepAliveOptions {
  /** Seconds between two looks, at least 10. Default 60. */
  everySeconds?: number | undefined;
  /** Seconds that shall always be left, 3,600 at most. Default 600. */
  marginSeconds?: number | undefined;
  /** Told of a look that failed; the next one comes all the same. */
  onError?: ((error: unknown) => void) | undefined;
}

const SHORTEST_EVERY_SECONDS = 10;
const LONGEST_EXTENSION_SECONDS = 3600;

/** Looks again and again whether the sandbox's time ends soon, and then extends it. */
export function keepAlive(sandbox: Sandbox, options: KeepAliveOptions): () => void {
  const every = Math.max(SHORTEST_EVERY_SECONDS, options.everySeconds ?? 60);
  const margin = options.marginSeconds ?? 600;
  const ended = new AbortController();
  void (async (): Promise<void> => {
    do {
      try {
        if (!(await look(sandbox, margin + every, ended.signal))) return;
      } catch (error) {
        if (error instanceof NotFoundError || ended.signal.aborted) return;
        options.onError?.(error);
      }
    } while (await sleep(every * 1000, ended.signal, "idle"));
  })();
  return () => {
    ended.abort();
  };
}

/** False once there is nothing left to look after. */
async function look(sandbox: Sandbox, wantedSeconds: number, signal: AbortSignal): Promise<boolean> {
  const { state, endsAt } = (await sandbox.refresh({ signal })).info;
  if (state === "stopped" || state === "stopping") return false;
  if (state !== "running" || endsAt == null) return true;
  const missing = Math.ceil(wantedSeconds - (Date.parse(endsAt) - Date.now()) / 1000);
  if (missing > 0) await sandbox.extend(Math.min(missing, LONGEST_EXTENSION_SECONDS), { signal });
  return true;
}
