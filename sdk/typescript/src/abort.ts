// An AbortController that also aborts with the caller's signal. (AbortSignal.any is missing in older runtimes.)

export interface LinkedController {
  signal: AbortSignal;
  abort(reason?: unknown): void;
  /** Forgets the caller's signal, which may live much longer. */
  unlink(): void;
}

export function linkedTo(signal: AbortSignal | undefined): LinkedController {
  const controller = new AbortController();
  const abort = () => controller.abort(signal?.reason);
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  return {
    signal: controller.signal,
    abort: (reason) => controller.abort(reason),
    unlink: () => signal?.removeEventListener("abort", abort),
  };
}
