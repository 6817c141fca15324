/**
 * Waits; answers false, at once, if the signal is aborted before the time is over.
 *
 * @param why - `idle`: waiting alone does not keep the program running.
 */
export function sleep(ms: number, signal?: AbortSignal, why: "needed" | "idle" = "needed"): Promise<boolean> {
  return new Promise((resolve) => {
    if (signal?.aborted === true) {
      resolve(false);
      return;
    }
    const stop = (): void => {
      clearTimeout(timer);
      resolve(false);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve(true);
    }, ms);
    if (why === "idle") (timer as { unref?: () => void }).unref?.();
    signal?.addEventListener("abort", stop, { once: true });
  });
}
