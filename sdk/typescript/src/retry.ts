// When a failed attempt is repeated, and after how long: connection failures, those of a proxy in between (502, 504), and
// 503 with Retry-After, with growing, jittered delays, for a bounded time.

import { AshError, CONNECTION_FAILED } from "./errors.js";

export interface RetryPolicy {
  /** How long to go on after the first failure in a row, in milliseconds; 0: no retries. Default 30 s. */
  maxElapsedMs?: number | undefined;
  /** The delay before the first retry; it doubles each time. Default 100 ms. */
  initialDelayMs?: number | undefined;
  /** The longest delay between two attempts. Default 2 s. */
  maxDelayMs?: number | undefined;
}

const DEFAULTS = { maxElapsedMs: 30_000, initialDelayMs: 100, maxDelayMs: 2_000 };

export function isTransient(error: unknown): error is AshError {
  if (!(error instanceof AshError)) return false;
  const { code, statusCode, retryAfterMs } = error;
  const isUnreachable = code === CONNECTION_FAILED || statusCode === 502 || statusCode === 504;
  return isUnreachable || (statusCode === 503 && retryAfterMs !== undefined);
}

/** The delays of one request or stream. `reset` begins anew when something got through. */
export class Backoff {
  readonly #policy: typeof DEFAULTS;
  #attempts = 0;
  #firstFailureAt = 0;

  constructor(policy: RetryPolicy | false = {}) {
    const given: RetryPolicy = policy === false ? { maxElapsedMs: 0 } : policy;
    this.#policy = {
      maxElapsedMs: given.maxElapsedMs ?? DEFAULTS.maxElapsedMs,
      initialDelayMs: given.initialDelayMs ?? DEFAULTS.initialDelayMs,
      maxDelayMs: given.maxDelayMs ?? DEFAULTS.maxDelayMs,
    };
  }

  reset(): void {
    this.#attempts = 0;
  }

  /** Waits before the next attempt, or throws the error if it is final or the time is over. */
  async wait(error: unknown, signal: AbortSignal | undefined): Promise<void> {
    if (!isTransient(error)) throw error;
    const now = Date.now();
    if (this.#attempts === 0) this.#firstFailureAt = now;
    const delay = this.#delay(error.retryAfterMs ?? 0);
    if (now + delay - this.#firstFailureAt > this.#policy.maxElapsedMs) throw error;
    this.#attempts += 1;
    await sleep(delay, signal);
  }

  #delay(atLeast: number): number {
    const { initialDelayMs, maxDelayMs } = this.#policy;
    const longest = Math.min(maxDelayMs, initialDelayMs * 2 ** this.#attempts);
    return atLeast + longest * (0.5 + Math.random() / 2);
  }
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    if (signal?.aborted) return abort();
    signal?.addEventListener("abort", abort, { once: true });
  });
}
