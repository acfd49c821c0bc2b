// What the methods of the client take and return, where it is not exactly a type of the server.

import type * as api from "./generated.js";
import type { CapacityOptions, KeyedRequestOptions, RequestOptions } from "./http.js";
import type { ToolSet } from "./tools.js";

/** The operations of the server by name, and what each takes and answers. */
export type Shapes = api.Operations;
export type Name = keyof Shapes;
export type Query<K extends Name> = NonNullable<Shapes[K]["query"]>;

/** Blocks of the Messages API, for example `{ type: "text", text: "…" }`. */
export interface ContentBlock {
  type: "text" | "image" | "document";
  [field: string]: unknown;
}
export type MessageContent = string | ContentBlock[];

/** A file to write; text is base64. */
export interface FileUpload {
  path: string;
  content: string | Uint8Array;
}

/** Bytes and where they come from: `sandbox` or `snapshot`. */
export interface DownloadedFile {
  buffer: Uint8Array;
  mimeType: string;
  source: string;
}

/** A session that came back, and the receipt that says what came back with it; null if it was active all the time. */
export type ResumedSession = api.Session & { receipt: api.Receipt | null };
export type RewoundSession = api.Session & { rewound: api.Rewind };

export type Tools = { tools?: ToolSet | api.ClientTool[] | undefined };
type SessionOptions<Body> = Omit<Body, "tools"> & Tools;

export type CreateAgentOptions = Omit<api.DeployRequest, "name" | "files"> & {
  files?: FileUpload[] | undefined;
} & KeyedRequestOptions;
export type CreateSessionOptions = SessionOptions<Omit<api.CreateSessionRequest, "agent">> &
  KeyedRequestOptions &
  CapacityOptions;
export type SessionConfigOptions = SessionOptions<api.SessionConfigPatch> & RequestOptions;
export type ResumeSessionOptions = SessionConfigOptions & CapacityOptions;
export type ForkSessionOptions = api.ForkRequest & KeyedRequestOptions;
export type ListSessionsOptions = Query<"listSessions"> & {
  metadata?: Record<string, string> | undefined;
} & RequestOptions;
export type SendMessageOptions = Omit<api.SendMessageRequest, "content"> & KeyedRequestOptions & CapacityOptions;
export type SendMessageStreamOptions = SendMessageOptions & {
  /** Functions of this program: calls of the agent are answered while the stream is read. */
  tools?: ToolSet | undefined;
  /** When the agent or its sandbox dies, let the turn continue, and read on. Without it the stream ends with the `error`. */
  continueInterrupted?: boolean | undefined;
};
export type StreamSessionOptions = {
  /** The id of the last event that the caller has; without one, everything from the beginning. */
  after?: string | undefined;
  /** False: without the pieces of messages that are not complete yet. */
  includePartialMessages?: boolean | undefined;
} & RequestOptions;
export type UsageFilter = Omit<Query<"listUsageEvents">, "by"> & {
  sessionId?: string | undefined;
  agentName?: string | undefined;
} & RequestOptions;

export type UsageGrouping = "turn" | "session" | "agent" | "owner" | "model" | "day";

/** The last arguments of the methods that read the history. */
export type HistoryOptions = { limit?: number | undefined; afterSequence?: number | undefined } & RequestOptions;
/** As of this checkpoint; without one, now. */
export type AtCheckpoint = { checkpoint?: number | undefined };
export type AllRequestOptions = KeyedRequestOptions & CapacityOptions;

/** Separates what the server is told from how it is told. */
export function split<T extends object>(
  options: T & AllRequestOptions,
): [Omit<T, keyof AllRequestOptions>, AllRequestOptions] {
  const { signal, retry, lock, idempotencyKey, waitForCapacity, ...rest } = options;
  return [rest as Omit<T, keyof AllRequestOptions>, { signal, retry, lock, idempotencyKey, waitForCapacity }];
}
