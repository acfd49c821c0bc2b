// Follows a session from a web page, which has no API key: your server makes a stream token for it, which opens the stream
// of one session for a quarter of an hour.

import { AshError } from "./errors.js";
import type { AshStreamEvent } from "./events.js";
import { Http } from "./http.js";
import type { RetryPolicy } from "./retry.js";
import { readEvents } from "./stream.js";

export { AshError } from "./errors.js";
export type { AshStreamEvent } from "./events.js";

export interface FollowOptions {
  serverUrl: string;
  sessionId: string;
  /** The token, or a function that fetches one: it is called again when the token has expired. */
  token: string | (() => string | Promise<string>);
  /** The id of the last event that the page has; without one, everything from the beginning. */
  after?: string | undefined;
  /** False: without the pieces of messages that are not complete yet. */
  includePartialMessages?: boolean | undefined;
  retry?: RetryPolicy | false | undefined;
  signal?: AbortSignal | undefined;
}

const ROUTE = { method: "GET", path: "/api/sessions/{id}/stream", idempotent: true, keyed: false } as const;

/** The events of a session, each once, until it ends. Broken connections are continued. */
export function followSession(options: FollowOptions): AsyncGenerator<AshStreamEvent> {
  const { serverUrl, sessionId, after, includePartialMessages, retry, signal } = options;
  const http = new Http({ serverUrl });
  const fresh = async () => (typeof options.token === "string" ? options.token : options.token());
  let token: string | undefined;
  const openWith = (token: string, lastId: string | undefined) => {
    // In the query, not as headers: a page of another origin needs no preflight then.
    const query = { token, after: lastId, includePartialMessages };
    return http.once(ROUTE, { path: { id: sessionId }, query }, { signal });
  };
  const open = async (lastId: string | undefined) => {
    try {
      return await openWith((token ??= await fresh()), lastId);
    } catch (error) {
      if (!isExpired(error) || typeof options.token === "string") throw error;
      return openWith((token = await fresh()), lastId);
    }
  };
  return readEvents({ open, next: ({ type }) => (type === "ended" ? "end" : "more"), lastId: after, retry, signal });
}

function isExpired(error: unknown): boolean {
  return error instanceof AshError && error.statusCode === 401;
}
