// One request: address, headers, retries where a repetition is safe, and refusals as errors.

import { AshError, INVALID_ANSWER, connectionFailed, refusal } from "./errors.js";
import { Backoff, type RetryPolicy } from "./retry.js";

export interface ClientOptions {
  /** For example `http://localhost:4100`. */
  serverUrl: string;
  apiKey?: string | undefined;
  retry?: RetryPolicy | false | undefined;
  /** Used instead of the global `fetch`. */
  fetch?: typeof fetch | undefined;
}

/** What every method takes as its last argument. */
export interface RequestOptions {
  signal?: AbortSignal | undefined;
  /** Instead of the client's policy; `false`: no retries. */
  retry?: RetryPolicy | false | undefined;
  /** The token of the session's lock, if the caller holds it. */
  lock?: string | undefined;
}

/** For requests that the server can recognize when they are repeated. */
export interface KeyedRequestOptions extends RequestOptions {
  /** Default: a fresh one for each call. Give your own to repeat the call later, also from another process. */
  idempotencyKey?: string | undefined;
}

/** For requests that need a sandbox. */
export interface CapacityOptions {
  /** How many seconds to wait for a sandbox when all are at work. */
  waitForCapacity?: number | undefined;
}

export interface Route {
  readonly method: string;
  readonly path: string;
  /** A repetition changes nothing. */
  readonly idempotent: boolean;
  /** The server takes an Idempotency-Key. */
  readonly keyed: boolean;
}

export interface Call {
  path?: Record<string, string | number> | undefined;
  query?: object | undefined;
  body?: unknown;
  accept?: string | undefined;
  headers?: Record<string, string> | undefined;
}

type AnyOptions = KeyedRequestOptions & CapacityOptions;

export class Http {
  readonly #base: string;
  readonly #apiKey: string | undefined;
  readonly #fetch: typeof fetch;
  readonly retry: RetryPolicy | false | undefined;

  constructor({ serverUrl, apiKey, retry, fetch: given }: ClientOptions) {
    this.#base = new URL(serverUrl).href.replace(/\/+$/, "");
    this.#apiKey = apiKey;
    this.retry = retry;
    // Browsers refuse a `fetch` that is called as a method of another object.
    this.#fetch = given ?? ((input, init) => fetch(input, init));
  }

  json<T>(route: Route, call: Call, options: AnyOptions = {}): Promise<T> {
    return this.#repeat(route, call, options, (response) => response.json() as Promise<T>);
  }

  text(route: Route, call: Call, options: AnyOptions = {}): Promise<string> {
    return this.#repeat(route, call, options, (response) => response.text());
  }

  bytes(route: Route, call: Call, options: AnyOptions = {}): Promise<{ bytes: Uint8Array; headers: Headers }> {
    return this.#repeat(route, call, options, async (response) => {
      return { bytes: new Uint8Array(await response.arrayBuffer()), headers: response.headers };
    });
  }

  /** The response as it comes, its body unread. */
  response(route: Route, call: Call, options: AnyOptions = {}): Promise<Response> {
    return this.#repeat(route, call, options, async (response) => response);
  }

  /** One attempt, for callers that repeat by themselves. */
  async once(route: Route, call: Call, options: AnyOptions = {}): Promise<Response> {
    const { signal } = options;
    const init: RequestInit = { method: route.method, headers: this.#headers(route, call, options) };
    if (call.body !== undefined) init.body = JSON.stringify(call.body);
    if (signal !== undefined) init.signal = signal;
    const response = await this.#reach(this.#base + pathOf(route, call), init);
    if (!response.ok) throw await refusal(response);
    return response;
  }

  async #repeat<T>(
    route: Route,
    call: Call,
    options: AnyOptions,
    read: (response: Response) => Promise<T>,
  ): Promise<T> {
    const keyed = withKey(route, options);
    const isSafe = route.idempotent || keyed.idempotencyKey !== undefined;
    const backoff = new Backoff(isSafe ? (options.retry ?? this.retry) : false);
    for (;;) {
      try {
        const response = await this.once(route, call, keyed);
        return await read(response).catch((error: unknown) => Promise.reject(unreadable(response, error)));
      } catch (error) {
        options.signal?.throwIfAborted();
        await backoff.wait(error, options.signal);
      }
    }
  }

  async #reach(url: string, init: RequestInit): Promise<Response> {
    try {
      return await this.#fetch(url, init);
    } catch (error) {
      init.signal?.throwIfAborted();
      throw connectionFailed(error);
    }
  }

  #headers(route: Route, call: Call, options: AnyOptions): Record<string, string> {
    const headers: Record<string, string> = { ...call.headers };
    if (this.#apiKey !== undefined) headers["authorization"] ??= `Bearer ${this.#apiKey}`;
    if (call.body !== undefined) headers["content-type"] = "application/json";
    if (call.accept !== undefined) headers["accept"] = call.accept;
    if (options.lock !== undefined) headers["x-ash-lock"] = options.lock;
    if (options.waitForCapacity !== undefined) headers["prefer"] = `wait=${options.waitForCapacity}`;
    if (route.keyed && options.idempotencyKey !== undefined) headers["idempotency-key"] = options.idempotencyKey;
    return headers;
  }
}

/** A body that breaks off comes complete next time; one that is no JSON never does, because no ash server answers there. */
function unreadable(response: Response, cause: unknown): AshError {
  if (!(cause instanceof SyntaxError)) return connectionFailed(cause);
  const message = `The answer of ${response.url} is not JSON`;
  return new AshError({ message, code: INVALID_ANSWER, statusCode: response.status, cause });
}

/** The same options with an Idempotency-Key, if the route takes one. */
export function withKey<T extends AnyOptions>(route: Route, options: T): T {
  return route.keyed ? { ...options, idempotencyKey: options.idempotencyKey ?? crypto.randomUUID() } : options;
}

function pathOf({ path }: Route, { path: parameters = {}, query = {} }: Call): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodePath(name, String(parameters[name])));
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query) as Array<[string, unknown]>) {
    if (value !== undefined && value !== null) search.append(name, String(value));
  }
  return search.size > 0 ? `${filled}?${search}` : filled;
}

/** Only a file's path has slashes of its own. */
function encodePath(name: string, value: string): string {
  return name === "path" ? value.split("/").map(encodeURIComponent).join("/") : encodeURIComponent(value);
}
