// Why a request failed. One class, because callers decide by `code`, the part of a refusal that never changes.

import type { ApiError } from "./generated.js";

/** The code of an error that is not an answer of the server: the connection failed, and retries did not help. */
export const CONNECTION_FAILED = "connection_failed";

/** The code of an answer that is none of this API, for example of a proxy. */
export const INVALID_ANSWER = "invalid_answer";

/** A refusal of the server, or a connection that failed. */
export class AshError extends Error {
  /** For programs: `session_not_found`, `session_busy`, …; `connection_failed` and `invalid_answer` are the client's own. */
  readonly code: string;
  /** The HTTP status; 0 if there was no answer. */
  readonly statusCode: number;
  /** The whole answer: some refusals have `limit`, `used`, `quota`, `queued` or `turn`. */
  readonly body: Partial<ApiError>;
  /** How long the server asks to wait, in milliseconds. */
  readonly retryAfterMs: number | undefined;

  constructor(failure: AshFailure) {
    super(failure.message, failure.cause === undefined ? undefined : { cause: failure.cause });
    this.name = "AshError";
    this.code = failure.code;
    this.statusCode = failure.statusCode;
    this.body = failure.body ?? {};
    this.retryAfterMs = failure.retryAfterMs;
  }
}

export interface AshFailure {
  message: string;
  code: string;
  statusCode: number;
  body?: Partial<ApiError>;
  retryAfterMs?: number;
  cause?: unknown;
}

export function connectionFailed(cause: unknown): AshError {
  const message = `The connection to the server failed: ${messageOf(cause)}`;
  return new AshError({ message, code: CONNECTION_FAILED, statusCode: 0, cause });
}

/** Reads a refusal, also of a proxy in between, whose body may be anything. */
export async function refusal(response: Response): Promise<AshError> {
  const text = await response.text().catch(() => "");
  const body = errorBody(text);
  return new AshError({
    message: body.error ?? (response.statusText || `The server answered ${response.status}`),
    code: body.code ?? `http_${response.status}`,
    statusCode: response.status,
    body,
    ...retryAfter(response.headers.get("retry-after")),
  });
}

function errorBody(text: string): Partial<ApiError> {
  try {
    const body: unknown = JSON.parse(text);
    return typeof body === "object" && body !== null ? body : {};
  } catch {
    return {};
  }
}

function retryAfter(header: string | null): { retryAfterMs?: number } {
  if (header === null) return {};
  const seconds = Number(header);
  const ms = Number.isNaN(seconds) ? Date.parse(header) - Date.now() : seconds * 1000;
  return Number.isNaN(ms) ? {} : { retryAfterMs: Math.max(0, ms) };
}

/** The innermost reason: `fetch` hides it beneath a general message. */
function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? messageOf(error.cause) : error.message;
}
