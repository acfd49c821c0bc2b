// What the package exports.

export { AshClient } from "./client.js";
export type {
  ContentBlock,
  CreateAgentOptions,
  CreateSessionOptions,
  DownloadedFile,
  FileUpload,
  ForkSessionOptions,
  ListSessionsOptions,
  MessageContent,
  ResumedSession,
  ResumeSessionOptions,
  RewoundSession,
  SendMessageOptions,
  SendMessageStreamOptions,
  SessionConfigOptions,
  StreamSessionOptions,
  UsageFilter,
  UsageGrouping,
} from "./options.js";
export { AshError, CONNECTION_FAILED, INVALID_ANSWER } from "./errors.js";
export type { AshStreamEvent } from "./events.js";
export { compareEventIds } from "./event-id.js";
export type {
  CapacityOptions,
  ClientOptions as AshClientOptions,
  KeyedRequestOptions,
  RequestOptions,
} from "./http.js";
export type { RetryPolicy } from "./retry.js";
export { parseSSEStream } from "./sse.js";
export {
  extractDisplayItems,
  extractStreamDelta,
  extractTextFromEvent,
  isKnownBlock,
  type DisplayItem,
} from "./display.js";
export {
  declareTools,
  serveTools,
  tool,
  type ServeToolsOptions,
  type Tool,
  type ToolContext,
  type ToolSet,
} from "./tools.js";
export type * from "./generated.js";
