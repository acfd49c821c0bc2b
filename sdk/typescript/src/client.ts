// The client: a method for every operation of the server. Those of the Ash API's client keep their names and signatures;
// the last argument of each method takes a `signal`, and what else its request allows.

import { linkedTo } from "./abort.js";
import { toBase64 } from "./base64.js";
import type { AshStreamEvent } from "./events.js";
import * as api from "./generated.js";
import {
  type Call,
  type ClientOptions,
  Http,
  type KeyedRequestOptions,
  type RequestOptions,
  type Route,
  withKey,
} from "./http.js";
import type {
  AtCheckpoint,
  CreateAgentOptions,
  CreateSessionOptions,
  DownloadedFile,
  FileUpload,
  ForkSessionOptions,
  HistoryOptions,
  ListSessionsOptions,
  MessageContent,
  Name,
  Query,
  ResumedSession,
  ResumeSessionOptions,
  RewoundSession,
  SendMessageOptions,
  SendMessageStreamOptions,
  SessionConfigOptions,
  Shapes,
  StreamSessionOptions,
  Tools,
  UsageFilter,
  UsageGrouping,
  AllRequestOptions,
} from "./options.js";
import { split } from "./options.js";
import { type Next, readEvents } from "./stream.js";
import { ToolRunner, declareTools } from "./tools.js";

const routes = api.operations;

export class AshClient {
  readonly #http: Http;

  constructor(options: ClientOptions) {
    this.#http = new Http(options);
  }

  // Agents

  /** Deploys a folder on the server's machine. */
  deployAgent(name: string, path: string, options: CreateAgentOptions = {}): Promise<api.Agent> {
    return this.createAgent(name, { ...options, path });
  }

  async createAgent(name: string, options: CreateAgentOptions = {}): Promise<api.Agent> {
    const [{ files, ...rest }, request] = split(options);
    const body = { ...rest, name, files: files?.map(upload) };
    return (await this.#call("createAgent", { body }, request)).agent;
  }

  async listAgents(options?: RequestOptions): Promise<api.Agent[]> {
    return (await this.#call("listAgents", {}, options)).agents;
  }

  async getAgent(name: string, options?: RequestOptions): Promise<api.Agent> {
    return (await this.#call("getAgent", { path: { name } }, options)).agent;
  }

  async updateAgent(name: string, options: api.AgentPatch & RequestOptions): Promise<api.Agent> {
    const [body, request] = split(options);
    return (await this.#call("updateAgent", { path: { name }, body }, request)).agent;
  }

  async deleteAgent(name: string, options?: RequestOptions): Promise<void> {
    await this.#call("deleteAgent", { path: { name } }, options);
  }

  async getAgentConfig(name: string, options?: RequestOptions): Promise<Record<string, unknown>> {
    return (await this.#call("getAgentConfig", { path: { name } }, options)).config;
  }

  async updateAgentConfig(
    name: string,
    config: Record<string, unknown>,
    options?: RequestOptions,
  ): Promise<Record<string, unknown>> {
    return (await this.#call("updateAgentConfig", { path: { name }, body: config }, options)).config;
  }

  // Sessions

  async createSession(agent: string, options: CreateSessionOptions = {}): Promise<api.Session> {
    const [rest, request] = split(options);
    const body = { ...withDeclaredTools(rest), agent };
    return (await this.#call("createSession", { body }, request)).session;
  }

  /** The sessions of an agent, or those that match. */
  async listSessions(filter: string | ListSessionsOptions = {}): Promise<api.Session[]> {
    const options = typeof filter === "string" ? { agent: filter } : filter;
    return (await this.listSessionsWithTotal(options)).sessions;
  }

  /** One page, with the number of all that match, and the `cursor` of the next page. */
  listSessionsWithTotal(options: ListSessionsOptions = {}): Promise<api.SessionListAnswer> {
    const [{ metadata = {}, ...filter }, request] = split(options);
    const labels = Object.entries(metadata).map(([name, value]) => [`metadata.${name}`, value]);
    const query = { ...filter, ...Object.fromEntries(labels) };
    return this.#call("listSessions", { query }, request);
  }

  async getSession(id: string, options?: RequestOptions): Promise<api.SessionDetail> {
    return (await this.#call("getSession", { path: { id } }, options)).session;
  }

  /** Replaces the labels of a session. */
  async updateSessionMetadata(
    id: string,
    metadata: api.SessionMetadata,
    options?: RequestOptions,
  ): Promise<api.Session> {
    return (await this.#call("updateSessionMetadata", { path: { id }, body: { metadata } }, options)).session;
  }

  /** Changes options of a session from its next turn on: model, budgets, limits, permissions, … */
  async updateSessionConfig(id: string, options: SessionConfigOptions): Promise<api.SessionDetail> {
    const [rest, request] = split(options);
    const body = withDeclaredTools(rest);
    return (await this.#call("updateSessionConfig", { path: { id }, body }, request)).session;
  }

  /** Saves the session; a running turn finishes first. */
  async pauseSession(id: string, options?: RequestOptions): Promise<api.Session> {
    return (await this.#call("pauseSession", { path: { id } }, options)).session;
  }

  /** Brings a session back; its receipt says what came back. */
  async resumeSession(id: string, options: ResumeSessionOptions = {}): Promise<ResumedSession> {
    const [rest, request] = split(options);
    const body = Object.keys(rest).length > 0 ? withDeclaredTools(rest) : undefined;
    const { session, resume } = await this.#call("resumeSession", { path: { id }, body }, request);
    return { ...session, receipt: resume };
  }

  /** Saves the session and ends its sandbox. */
  async stopSession(id: string, options?: RequestOptions): Promise<api.Session> {
    return (await this.#call("stopSession", { path: { id } }, options)).session;
  }

  /** Ends a session for good. With `purge` it is deleted as well. */
  async endSession(id: string, options: Query<"endSession"> & RequestOptions = {}): Promise<api.Session> {
    const [query, request] = split(options);
    return (await this.#call("endSession", { path: { id }, query }, request)).session;
  }

  /** A new session with the state of this one, now or at a checkpoint. */
  async forkSession(id: string, options: ForkSessionOptions = {}): Promise<api.Session> {
    const [body, request] = split(options);
    return (await this.#call("forkSession", { path: { id }, body }, request)).session;
  }

  // Messages and turns

  /** Sends a message; the response is the stream as it comes, its body unread. */
  sendMessage(id: string, content: MessageContent, options: SendMessageOptions = {}): Promise<Response> {
    const [rest, request] = split(options);
    const call = messageCall(id, content, rest, "text/event-stream");
    return this.#http.response(routes.sendMessage, call, request);
  }

  /** Sends a message and waits for the end of its turn. */
  sendMessageAndWait(id: string, content: MessageContent, options: SendMessageOptions = {}): Promise<api.TurnResult> {
    const [rest, request] = split(options);
    const call = messageCall(id, content, rest, "application/json");
    return this.#http.json(routes.sendMessage, call, request);
  }

  /**
   * Sends a message and delivers the events of its turn, each once, up to `done`. A broken connection and a restart of the
   * server do not show. An `error` event with `queued` is the last one: the turn was cut off, for the reason that it gives.
   */
  async *sendMessageStream(
    id: string,
    content: MessageContent,
    options: SendMessageStreamOptions = {},
  ): AsyncGenerator<AshStreamEvent> {
    const [{ tools = {}, continueInterrupted = false, ...rest }, request] = split(options);
    const link = linkedTo(request.signal);
    const keyed = { ...withKey(routes.sendMessage, request), signal: link.signal };
    const call = messageCall(id, content, rest, "text/event-stream");
    const events = readEvents({
      // The same message with the same key: the server runs it once, and sends its turn from the beginning.
      open: () => this.#http.once(routes.sendMessage, call, keyed),
      next: (event) => afterTurnEvent(event, continueInterrupted),
      retry: request.retry ?? this.#http.retry,
      signal: link.signal,
    });
    const runner = new ToolRunner({ client: this, sessionId: id, tools, fail: link.abort });
    try {
      for await (const event of events) {
        runner.hear(event);
        yield event;
      }
    } finally {
      runner.stop();
      link.abort();
      link.unlink();
    }
  }

  /** Follows a session until it ends: the events so far, then each as it happens, each once. */
  streamSession(id: string, options: StreamSessionOptions = {}): AsyncGenerator<AshStreamEvent> {
    const [{ after, ...query }, request] = split(options);
    return readEvents({
      open: (lastId) => {
        const headers: Record<string, string> = lastId === undefined ? {} : { "last-event-id": lastId };
        return this.#http.once(routes.streamSession, { path: { id }, query, headers }, request);
      },
      next: ({ type }) => (type === "ended" ? "end" : "more"),
      lastId: after,
      retry: request.retry ?? this.#http.retry,
      signal: request.signal,
    });
  }

  /** A token with which a web page follows this session without a key, for 15 minutes. */
  createStreamToken(id: string, options?: RequestOptions): Promise<api.StreamToken> {
    return this.#call("createStreamToken", { path: { id } }, options);
  }

  /** Stops the running turn. */
  interruptSession(id: string, options?: RequestOptions): Promise<api.InterruptAnswer> {
    return this.#call("interruptSession", { path: { id } }, options);
  }

  async listMessages(id: string, options: HistoryOptions & { all?: boolean | undefined } = {}): Promise<api.Message[]> {
    const [{ afterSequence, ...rest }, request] = split(options);
    const query = { ...rest, after: afterSequence };
    return (await this.#call("listMessages", { path: { id }, query }, request)).messages;
  }

  async listSessionEvents(
    id: string,
    options: HistoryOptions & { type?: string | undefined } = {},
  ): Promise<api.SessionEvent[]> {
    const [{ afterSequence, ...rest }, request] = split(options);
    const query = { ...rest, after: afterSequence };
    return (await this.#call("listSessionEvents", { path: { id }, query }, request)).events;
  }

  /** The conversation as it stands, in messages whose tool calls have their results. */
  getConversation(
    id: string,
    options: Query<"getConversation"> & RequestOptions = {},
  ): Promise<api.ConversationAnswer> {
    const [query, request] = split(options);
    return this.#call("getConversation", { path: { id }, query }, request);
  }

  /** The log in pages, as the stream sends it. */
  getSessionLog(id: string, options: Query<"getSessionLog"> & RequestOptions = {}): Promise<api.SessionLog> {
    const [query, request] = split(options);
    return this.#call("getSessionLog", { path: { id }, query }, request);
  }

  /** The messages that wait for the running turn to end. */
  async listQueue(id: string, options?: RequestOptions): Promise<api.QueuedMessage[]> {
    return (await this.#call("listQueue", { path: { id } }, options)).queue;
  }

  /** Moves these messages to the head of the queue. */
  async reorderQueue(id: string, order: api.TurnId[], options?: RequestOptions): Promise<api.QueuedMessage[]> {
    return (await this.#call("reorderQueue", { path: { id }, body: { order } }, options)).queue;
  }

  /** Takes a waiting message back: the agent never gets it. */
  withdrawMessage(id: string, turn: api.TurnId, options?: RequestOptions): Promise<api.WithdrawnMessageAnswer> {
    return this.#call("withdrawMessage", { path: { id, turn } }, options);
  }

  // Permissions and client tools

  /** The requests and questions of the agent that wait for an answer. */
  async listPermissions(id: string, options?: RequestOptions): Promise<api.Permission[]> {
    return (await this.#call("listPermissions", { path: { id } }, options)).permissions;
  }

  answerPermission(
    id: string,
    permission: api.PermissionId,
    answer: api.PermissionAnswerRequest,
    options?: RequestOptions,
  ): Promise<api.AnsweredPermission> {
    return this.#call("answerPermission", { path: { id, permission }, body: answer }, options);
  }

  /** The tools that clients answer for this session, and the calls that wait. */
  listToolCalls(id: string, options?: RequestOptions): Promise<api.ToolListAnswer> {
    return this.#call("listToolCalls", { path: { id } }, options);
  }

  /** The first answer of a call counts. The same one again is accepted, a different one refused. */
  answerToolCall(
    id: string,
    call: api.ToolRequestId,
    output: { result: unknown } | { error: string },
    options?: RequestOptions,
  ): Promise<api.ToolAnswerReceipt> {
    return this.#call("answerToolCall", { path: { id, call }, body: output }, options);
  }

  // Locks

  async getLock(id: string, options?: RequestOptions): Promise<api.Lock | null> {
    return (await this.#call("getLock", { path: { id } }, options)).lock;
  }

  /** Exclusive write access to a session. Pass the token as `lock` to the methods that write. */
  async acquireLock(id: string, options: api.AcquireLockRequest & RequestOptions = {}): Promise<api.AcquiredLock> {
    const [body, request] = split(options);
    return (await this.#call("acquireLock", { path: { id }, body }, request)).lock;
  }

  async releaseLock(id: string, token: string, options?: RequestOptions): Promise<void> {
    await this.#call("releaseLock", { path: { id } }, { ...options, lock: token });
  }

  // Checkpoints

  /** The checkpoints of a session, newest first. */
  async listCheckpoints(
    id: string,
    options: Query<"listCheckpoints"> & RequestOptions = {},
  ): Promise<api.Checkpoint[]> {
    const [query, request] = split(options);
    return (await this.#call("listCheckpoints", { path: { id }, query }, request)).checkpoints;
  }

  /** Makes a checkpoint now, and returns its number. */
  async createCheckpoint(id: string, options: api.CreateCheckpointRequest & KeyedRequestOptions = {}): Promise<number> {
    const [body, request] = split(options);
    return (await this.#call("createCheckpoint", { path: { id }, body }, request)).checkpoint;
  }

  async getCheckpoint(id: string, n: number, options?: RequestOptions): Promise<api.CheckpointDetail> {
    return (await this.#call("getCheckpoint", { path: { id, n } }, options)).checkpoint;
  }

  /** The files that changed since a checkpoint, or between two. */
  diffCheckpoint(
    id: string,
    n: number,
    options: Query<"diffCheckpoint"> & RequestOptions = {},
  ): Promise<api.CheckpointDiff> {
    const [query, request] = split(options);
    return this.#call("diffCheckpoint", { path: { id, n }, query }, request);
  }

  /** Moves conversation, agent and files to a checkpoint. Nothing is deleted: `rewound.from` is the way back. */
  async rewindSession(
    id: string,
    checkpoint: number,
    options: Omit<api.RewindRequest, "checkpoint"> & RequestOptions = {},
  ): Promise<RewoundSession> {
    const [rest, request] = split(options);
    const { session, rewound } = await this.#call(
      "rewindSession",
      { path: { id }, body: { ...rest, checkpoint } },
      request,
    );
    return { ...session, rewound };
  }

  // Files and commands

  /** Runs a command in the sandbox of the session. `timeout` is in milliseconds. */
  exec(
    id: string,
    command: string,
    options: Omit<api.ExecCommandRequest, "command"> & RequestOptions = {},
  ): Promise<api.ExecResult> {
    const [rest, request] = split(options);
    return this.#call("exec", { path: { id }, body: { ...rest, command } }, request);
  }

  /** What the processes in the sandbox wrote. */
  getSessionLogs(id: string, options: Query<"getSessionLogs"> & RequestOptions = {}): Promise<api.LogListAnswer> {
    const [query, request] = split(options);
    return this.#call("getSessionLogs", { path: { id }, query }, request);
  }

  getSessionFiles(id: string, options: Query<"getSessionFiles"> & RequestOptions = {}): Promise<api.FileListAnswer> {
    const [query, request] = split(options);
    return this.#call("getSessionFiles", { path: { id }, query }, request);
  }

  /** A file as text. */
  getSessionFile(
    id: string,
    path: string,
    options: AtCheckpoint & RequestOptions = {},
  ): Promise<api.FileContentAnswer> {
    const [rest, request] = split(options);
    return this.#call("getSessionFile", { path: { id, path }, query: { ...rest, format: "json" } }, request);
  }

  async downloadSessionFile(
    id: string,
    path: string,
    options: AtCheckpoint & RequestOptions = {},
  ): Promise<DownloadedFile> {
    const [rest, request] = split(options);
    return downloaded(await this.#http.bytes(routes.getSessionFile, rawFile(id, path, rest), request));
  }

  /** The response as it comes, its body unread. */
  downloadSessionFileRaw(id: string, path: string, options: AtCheckpoint & RequestOptions = {}): Promise<Response> {
    const [rest, request] = split(options);
    return this.#http.response(routes.getSessionFile, rawFile(id, path, rest), request);
  }

  async writeSessionFiles(
    id: string,
    files: FileUpload[],
    targetPath?: string,
    options?: RequestOptions,
  ): Promise<{ files: api.WrittenFile[] }> {
    return this.#call("writeSessionFiles", { path: { id }, body: { files: files.map(upload), targetPath } }, options);
  }

  deleteSessionFile(id: string, path: string, options?: RequestOptions): Promise<api.DeletedFileAnswer> {
    return this.#call("deleteSessionFile", { path: { id, path } }, options);
  }

  /** The workspace as a gzipped tar archive. */
  async downloadWorkspace(id: string, options?: RequestOptions): Promise<Uint8Array> {
    return (await this.#http.bytes(routes.downloadWorkspace, { path: { id } }, options)).bytes;
  }

  /** Merges a tar archive into the workspace, as a whole or not at all. */
  uploadWorkspace(
    id: string,
    bundle: string | Uint8Array,
    options?: RequestOptions,
  ): Promise<api.UploadedWorkspaceAnswer> {
    return this.#call("uploadWorkspace", { path: { id }, body: { bundle: toBase64(bundle) } }, options);
  }

  /** The agent's plan, and where it comes from. */
  getPlan(id: string, options: AtCheckpoint & RequestOptions = {}): Promise<api.Plan> {
    const [query, request] = split(options);
    return this.#call("getPlan", { path: { id }, query }, request);
  }

  /** The documents that the agent keeps beside the workspace. */
  listArtifacts(id: string, options: AtCheckpoint & RequestOptions = {}): Promise<api.ArtifactListAnswer> {
    const [query, request] = split(options);
    return this.#call("listArtifacts", { path: { id }, query }, request);
  }

  /** A document as text. */
  getArtifact(id: string, path: string, options: AtCheckpoint & RequestOptions = {}): Promise<api.FileContentAnswer> {
    const [rest, request] = split(options);
    return this.#call("getArtifact", { path: { id, path }, query: { ...rest, format: "json" } }, request);
  }

  async downloadArtifact(
    id: string,
    path: string,
    options: AtCheckpoint & RequestOptions = {},
  ): Promise<DownloadedFile> {
    const [rest, request] = split(options);
    return downloaded(await this.#http.bytes(routes.getArtifact, rawFile(id, path, rest), request));
  }

  // Workspaces that sessions share

  async listWorkspaces(options?: RequestOptions): Promise<api.Workspace[]> {
    return (await this.#call("listWorkspaces", {}, options)).workspaces;
  }

  async createWorkspace(
    slug: api.Slug,
    options: Omit<api.CreateWorkspaceRequest, "slug"> & RequestOptions = {},
  ): Promise<api.Workspace> {
    const [rest, request] = split(options);
    return (await this.#call("createWorkspace", { body: { ...rest, slug } }, request)).workspace;
  }

  getWorkspace(slug: api.Slug, options?: RequestOptions): Promise<api.WorkspaceDetailAnswer> {
    return this.#call("getWorkspace", { path: { slug } }, options);
  }

  async deleteWorkspace(slug: api.Slug, options?: RequestOptions): Promise<void> {
    await this.#call("deleteWorkspace", { path: { slug } }, options);
  }

  async listWorkspaceCheckpoints(
    slug: api.Slug,
    options: Query<"listWorkspaceCheckpoints"> & RequestOptions = {},
  ): Promise<api.Checkpoint[]> {
    const [query, request] = split(options);
    return (await this.#call("listWorkspaceCheckpoints", { path: { slug }, query }, request)).checkpoints;
  }

  getWorkspaceFiles(
    slug: api.Slug,
    options: Query<"getWorkspaceFiles"> & RequestOptions = {},
  ): Promise<api.FileListAnswer> {
    const [query, request] = split(options);
    return this.#call("getWorkspaceFiles", { path: { slug }, query }, request);
  }

  // Usage

  async listUsageEvents(filter: UsageFilter = {}): Promise<api.UsageEvent[]> {
    const [query, request] = split(filter);
    const answer = await this.#call("listUsageEvents", { query: named(query) }, request);
    return "events" in answer ? answer.events : [];
  }

  /** One sum for each turn, session, agent, owner, model or day. */
  async getUsageReport(by: UsageGrouping, filter: UsageFilter = {}): Promise<api.UsageReportAnswer> {
    const [query, request] = split(filter);
    // With `by` the server answers with a report.
    return (await this.#call("listUsageEvents", { query: { ...named(query), by } }, request)) as api.UsageReportAnswer;
  }

  async getUsageStats(filter: UsageFilter = {}): Promise<api.UsageStats> {
    const [query, request] = split(filter);
    return (await this.#call("getUsageStats", { query: named(query) }, request)).stats;
  }

  // Keys

  async listApiKeys(options?: RequestOptions): Promise<api.ApiKey[]> {
    return (await this.#call("listApiKeys", {}, options)).keys;
  }

  /** A new key; with `owner` it opens only the owner's sessions. The key is shown this once. */
  createApiKey(options: api.CreateKeyRequest & KeyedRequestOptions = {}): Promise<api.CreatedApiKeyAnswer> {
    const [body, request] = split(options);
    return this.#call("createApiKey", { body }, request);
  }

  async deleteApiKey(id: string, options?: RequestOptions): Promise<void> {
    await this.#call("deleteApiKey", { path: { id } }, options);
  }

  /** Stores a key for a model service. Sessions use it by its id, as `credentialId`; no answer has the key. */
  async storeCredential(
    type: api.CredentialKind,
    key: string,
    label?: string,
    options?: RequestOptions,
  ): Promise<api.CreatedCredentialAnswer["credential"]> {
    const body = label === undefined ? { type, key } : { type, key, label };
    return (await this.#call("storeCredential", { body }, options)).credential;
  }

  /** Stores a key for Bedrock. No session uses it: its requests would have to be signed inside the sandbox. */
  storeBedrockCredential(
    key: { accessKeyId: string; secretAccessKey: string; region: string; sessionToken?: string },
    label?: string,
    options?: RequestOptions,
  ): Promise<api.CreatedCredentialAnswer["credential"]> {
    return this.storeCredential("bedrock", JSON.stringify(key), label, options);
  }

  async listCredentials(options?: RequestOptions): Promise<api.Credential[]> {
    return (await this.#call("listCredentials", {}, options)).credentials;
  }

  async deleteCredential(id: string, options?: RequestOptions): Promise<void> {
    await this.#call("deleteCredential", { path: { id } }, options);
  }

  /** A key of any tenant, for the operator, who has the server's internal secret. */
  createTenantApiKey(
    internalSecret: string,
    key: api.CreateTenantKeyRequest,
    options?: RequestOptions,
  ): Promise<api.CreatedTenantKeyAnswer> {
    const headers = { authorization: `Bearer ${internalSecret}` };
    return this.#call("createTenantApiKey", { body: key, headers }, options);
  }

  // Retention and audit

  /** Ends or purges the sessions that match; with `dryRun` it only lists them. */
  pruneSessions(options: api.PruneRequest & RequestOptions): Promise<api.PrunedSessionsAnswer> {
    const [body, request] = split(options);
    return this.#call("pruneSessions", { body }, request);
  }

  /** The rules of the server, and the sessions that they would end or purge now. */
  getRetention(options?: RequestOptions): Promise<api.RetentionAnswer> {
    return this.#call("getRetention", {}, options);
  }

  applyRetention(options?: RequestOptions): Promise<api.RetentionAnswer> {
    return this.#call("applyRetention", {}, options);
  }

  /** Who did what: one page, newest first, with the `cursor` of the next. */
  listAudit(options: Query<"listAudit"> & RequestOptions = {}): Promise<api.AuditListAnswer> {
    const [query, request] = split(options);
    return this.#call("listAudit", { query }, request);
  }

  // The server

  health(options?: RequestOptions): Promise<api.Health> {
    return this.#call("health", {}, options);
  }

  getServer(options?: RequestOptions): Promise<api.ServerAnswer> {
    return this.#call("getServer", {}, options);
  }

  /** The metrics in the format of Prometheus. */
  getMetrics(options?: RequestOptions): Promise<string> {
    return this.#http.text(routes.getMetrics, {}, options);
  }

  /** The OpenAPI document of the server. */
  getOpenApi(options?: RequestOptions): Promise<Record<string, unknown>> {
    return this.#call("getOpenApi", {}, options);
  }

  /** The OpenAPI document as a page for people. */
  getDocs(options?: RequestOptions): Promise<string> {
    return this.#http.text(routes.getDocs, {}, options);
  }

  getDocsJson(options?: RequestOptions): Promise<Record<string, unknown>> {
    return this.#call("getDocsJson", {}, options);
  }

  getDocsYaml(options?: RequestOptions): Promise<string> {
    return this.#http.text(routes.getDocsYaml, {}, options);
  }

  #call<K extends Name>(name: K, call: TypedCall<K>, options: RequestOptions = {}): Promise<Shapes[K]["answer"]> {
    return this.#http.json(routes[name] as Route, { ...call, accept: "application/json" }, options);
  }
}

interface TypedCall<K extends Name> extends Call {
  query?: Shapes[K]["query"] | undefined;
  body?: Shapes[K]["body"] | undefined;
}

function messageCall(id: string, content: MessageContent, rest: object, accept: string): Call {
  return { path: { id }, body: { ...rest, content }, accept };
}

/** The codes of an error after which the same message continues the turn. */
const DEATHS = ["agent_died", "sandbox_died", "sandbox_oom", "machine_died"];

function afterTurnEvent(event: AshStreamEvent, continueInterrupted: boolean): Next {
  if (event.type === "done") return "end";
  if (event.type !== "error" || !("queued" in event.data)) return "more";
  const { code, queued } = event.data;
  return continueInterrupted && queued === true && DEATHS.includes(code) ? "reopen" : "end";
}

function withDeclaredTools<T extends Tools>(options: T): Omit<T, "tools"> & { tools?: api.ClientTool[] } {
  const { tools, ...rest } = options;
  if (tools === undefined) return rest;
  return { ...rest, tools: Array.isArray(tools) ? tools : declareTools(tools) };
}

function upload({ path, content }: FileUpload): api.UploadedFile {
  return { path, content: toBase64(content) };
}

function rawFile(id: string, path: string, options: AtCheckpoint): Call {
  return { path: { id, path }, query: { ...options, format: "raw" } };
}

function downloaded({ bytes, headers }: { bytes: Uint8Array; headers: Headers }): DownloadedFile {
  const mimeType = headers.get("content-type") ?? "application/octet-stream";
  return { buffer: bytes, mimeType, source: headers.get("x-ash-source") ?? "" };
}

/** Filters under the names of the Ash API's client. */
function named({
  sessionId,
  agentName,
  ...query
}: Omit<UsageFilter, keyof AllRequestOptions>): Query<"listUsageEvents"> {
  return { session: sessionId, agent: agentName, ...query };
}
