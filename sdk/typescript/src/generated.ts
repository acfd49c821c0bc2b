// The types of the server's API. Made from openapi.json by scripts/generate.mjs: do not edit.

export interface AcquireLockRequest {
  /** The name of the holder that other clients see. */
  holder?: string | null | undefined;
  /** Whether to take the lock from another holder. */
  takeover?: boolean | undefined;
  /** Seconds after its last use; 60 without one. */
  ttl?: number | null | undefined;
}

export interface AcquiredLock {
  expiresAt: Timestamp;
  /** The holder's name for itself. */
  holder: string | null;
  /** A turn of the holder is running, so the lock holds whatever `expiresAt` says. */
  inUse: boolean;
  /** Higher than that of every earlier lock. */
  number: number;
  /** For the header X-Ash-Lock. */
  token: string;
  /** Seconds after its last use. */
  ttl: number;
}

export interface AcquiredLockAnswer {
  lock: AcquiredLock;
}

/** The packs or the object store knew more of the session than the database. */
export interface AdoptedEvent {
  data: AdoptedHistory;
  event: "adopted";
}

/** The session took its history from a witness that knew more than the database. */
export interface AdoptedHistory {
  /** The newest checkpoint that the witness knew. */
  checkpoint: number | null;
  /** What the database had instead, if it contradicted the witness: this is now a session of its own. */
  diverged?: SessionId | undefined;
  /** The epoch of the last event that the witness knew. */
  epoch: Epoch;
  /** The last event that the witness knew. */
  seq: u64;
  /** The source of the history. */
  witness: HistorySource;
}

/** Up to where the history comes from another witness. */
export interface AdoptionPoint {
  /** The newest checkpoint that was adopted. */
  checkpoint: number | null;
  /** The epoch of the last event that was adopted. */
  epoch: Epoch;
  /** The last event that was adopted. */
  seq: u64;
}

/** What a session runs. Each deploy makes a version. */
export interface Agent {
  /** The settings that `PATCH …/config` merges. */
  config: Record<string, unknown>;
  createdAt: Timestamp;
  /** The names of its variables, each with the value `***`. */
  env?: Record<string, string> | undefined;
  id: string;
  /** The container image. */
  image?: Image | undefined;
  limits?: ResourceLimits | undefined;
  name: AgentName;
  /** What it needs from its sandbox. */
  needs?: SandboxRequirements | undefined;
  /** Where it was deployed from. */
  path: string;
  /** The model service; without one, the server's. */
  provider?: ModelProvider | undefined;
  runtime: AgentRuntime;
  tenantId: TenantId;
  updatedAt: Timestamp;
  /** Counts its deploys. */
  version: number;
}

export interface AgentAnswer {
  agent: Agent;
}

export interface AgentConfigAnswer {
  config: Record<string, unknown>;
}

/** Any settings; each replaces the one of the same name. */
export type AgentConfigPatch = Record<string, unknown>;

export interface AgentFileUpload {
  /** In base64. */
  content: string;
  path: string;
}

export interface AgentListAnswer {
  agents: Agent[];
}

/** As the agent sent it: `type` is `assistant`, `user`, `result`, `system`, `stream_event` or another. */
export type AgentMessage = Record<string, unknown>;

/** Agent name must be 1 to 255 letters, digits, '-' or '_'. */
export type AgentName = string;

export interface AgentPatch {
  /** Merged into the settings. */
  config?: Record<string, unknown> | null | undefined;
  /** Replaces all variables. */
  env?: Record<string, string> | null | undefined;
}

/** The agent program of a version. */
export type AgentRuntime = "builtin" | "claude";

/** One choice, or several where the question allows it. */
export type AnswerChoice = string | string[];

export interface AnsweredPermission {
  /** `allow` or `deny`. */
  behavior: string;
  id: PermissionId;
}

/** A call is closed. It has a `result` or an `error`, or neither if it was withdrawn. */
export interface AnsweredToolCall {
  by: VerdictSource;
  /** Why there is no result. */
  error?: string | undefined;
  id: ToolRequestId;
  /** What the tool returned. */
  result?: unknown | undefined;
  /** Null: the agent called outside of a turn. */
  turn: TurnId | null;
}

/** The body of every error. */
export interface ApiError {
  /** For programs; never changes. */
  code: string;
  /** For people: the cause and the remedy. */
  error: string;
  /** The limit that is reached. */
  limit?: number | undefined;
  /** Whether that message is still in the queue; null if the server cannot tell. */
  queued?: boolean | null | undefined;
  /** The quota that is reached: its name in `ASH_QUOTAS`. */
  quota?: string | undefined;
  /** The status of the answer. */
  statusCode: number;
  /** The turn of a message whose answer was cut off. */
  turn?: string | undefined;
  /** How much was used or sent. */
  used?: number | undefined;
}

export type ApiKey = EnvironmentApiKey | StoredApiKey;

export interface ApiKeyListAnswer {
  keys: ApiKey[];
}

export interface ArtifactListAnswer {
  artifacts: FileEntry[];
  /** The path of their folder in the sandbox. */
  path: string;
  /** `sandbox` or `snapshot`. */
  source: string;
}

export interface AuditLine {
  action: string;
  at: Timestamp;
  by: AuditSource;
  /** Which checkpoints, settings, variables, agent or permission. */
  detail?: string | undefined;
  /** Counts the lines of the tenant. */
  id: number;
  /** The owner of the subject. */
  owner: OwnerId | null;
  /** What it is about; for a purged session `purged:` and a hash. */
  subject: string;
}

export interface AuditListAnswer {
  audit: AuditLine[];
  /** The `cursor` of the next page; null: this may be the last. */
  nextCursor: string | null;
}

/** Who caused it. */
export interface AuditSource {
  key: string | null;
  owner: OwnerId | null;
  rule: string | null;
}

/** Limits for the usage. */
export interface BudgetLimits {
  /** Dollars. */
  maxBudgetUsd?: number | undefined;
  /** Tokens of all kinds. */
  maxTokens?: number | undefined;
  /** Answers of the agent's own loop. */
  maxTurns?: number | undefined;
}

/** A limit is used up; the running turn is interrupted. */
export interface BudgetReachedEvent {
  data: ReachedLimit;
  event: "budget_reached";
}

/** The scope of a budget. */
export type BudgetScope = "session" | "turn";

/** What happens to a message that arrives while a turn is running. */
export type BusyPolicy = "queue" | "reject" | "interrupt" | "steer";

/** A model service that a client uses with its own key. The key itself is not stored here. */
export interface ByokEndpoint {
  /** At Azure: the version of the API, as a date. */
  apiVersion?: string | undefined;
  /** The base URL, without the path of an endpoint. */
  baseUrl: string;
  /** At Azure: the deployment to call. */
  deploymentId?: string | undefined;
  /** The API of the service. */
  type: ModelApiDialect;
}

/** Whether processes could write while the files were captured. */
export type CaptureConsistency = "frozen" | "stopped" | "live";

export interface ChangedFile {
  /** What a modified file was before. */
  before?: FileState | undefined;
  /** `added`, `modified` or `deleted`. */
  change: string;
  /** `file` or `link`. */
  kind: string;
  /** The permission bits. */
  mode: number;
  path: string;
  size: number;
  /** The target of a link. */
  target?: string | undefined;
}

export interface ChangedMetadata {
  metadata: SessionMetadata;
}

/** A saved state of conversation, agent and files. */
export interface Checkpoint {
  at: Timestamp;
  /** The checkpoint to which a shared workspace went back. */
  back?: number | undefined;
  /** Turns of other sessions that were running in the workspace. */
  beside?: ConcurrentTurn[] | undefined;
  bytes: number;
  consistency: CaptureConsistency;
  /** The session is at this checkpoint. */
  current: boolean;
  files: number;
  midTurn: boolean;
  number: number;
  /** The object store has all of it. */
  remote: boolean;
  /** Present and true if its files were deleted. */
  removed?: boolean | undefined;
  /** It was taken from what a crash left behind. */
  salvage: boolean;
  /** The last event that it covers. */
  seq: number;
  /** The turn that it ends; null: it was taken between turns. */
  turn: TurnId | null;
}

export interface CheckpointAnswer {
  checkpoint: CheckpointDetail;
}

/** A checkpoint with all details. */
export interface CheckpointDetail {
  at: Timestamp;
  /** The checkpoint to which a shared workspace went back. */
  back?: number | undefined;
  /** Turns of other sessions that were running in the workspace. */
  beside?: ConcurrentTurn[] | undefined;
  bytes: number;
  consistency: CaptureConsistency;
  /** The session is at this checkpoint. */
  current: boolean;
  files: number;
  midTurn: boolean;
  number: number;
  /** The object store has all of it. */
  remote: boolean;
  /** Present and true if its files were deleted. */
  removed?: boolean | undefined;
  /** It was taken from what a crash left behind. */
  salvage: boolean;
  /** The last event that it covers. */
  seq: number;
  /** How many files could not be read; null: not counted. */
  skipped: number | null;
  /** The turn that it ends; null: it was taken between turns. */
  turn: TurnId | null;
  /** How many files changed while they were read; null: not counted. */
  unsettled: number | null;
}

/** What changed between two states of the files. */
export interface CheckpointDiff {
  files: ChangedFile[];
  from: number;
  /** Left out: the current files. */
  to?: number | undefined;
  /** How many more there are whose names are not UTF-8. */
  unnamed: number;
}

/** A checkpoint was made. */
export interface CheckpointEvent {
  data: SavedCheckpoint;
  event: "checkpoint";
}

export interface CheckpointListAnswer {
  checkpoints: Checkpoint[];
}

/** A tool that a client declares and executes. */
export interface ClientTool {
  /** What the tool does, for the model. */
  description?: string | undefined;
  /** The JSON Schema of the input: an object. */
  inputSchema?: Record<string, unknown> | undefined;
  /** Letters, digits, `-` and `_`. */
  name: string;
}

/** The agent has summarized its conversation. */
export interface CompactionCompleteEvent {
  data: CompactionResult;
  event: "compaction_complete";
}

/** Thresholds are fractions of the context window. */
export interface CompactionOptions {
  /** From this fraction on the agent compacts in the background. */
  backgroundCompactionThreshold: number;
  /** From this fraction on turns wait for the compaction. */
  bufferExhaustionThreshold: number;
  /** The window in tokens; null or left out: the model's usual window. */
  contextWindow?: number | undefined;
  /** Whether the agent compacts at all. */
  enabled: boolean;
}

/** Fields that the agent leaves out are left out. */
export interface CompactionResult {
  summary?: string | undefined;
  tokensAfter?: number | undefined;
  tokensBefore?: number | undefined;
  /** As the model's service counts it. */
  usage?: unknown | undefined;
}

/** Fields that the agent leaves out are left out. */
export interface CompactionStart {
  tokens?: number | undefined;
}

/** The agent begins to summarize its conversation. */
export interface CompactionStartEvent {
  data: CompactionStart;
  event: "compaction_start";
}

/** How the files were compared with a checkpoint. */
export type ComparisonMethod = "metadata" | "content";

/** A turn of another session of the workspace. */
export interface ConcurrentTurn {
  /** Null or left out: the session has been purged. */
  session: SessionId | null;
  /** That session's turn. */
  turn: TurnId;
}

/** The options of the session changed. */
export interface ConfigEvent {
  data: NoData;
  event: "config";
}

export interface ConversationAnswer {
  items: ConversationItem[];
  /** `after` of the next page; null if there is none. */
  nextAfter: u64 | null;
}

/** A part of a message. A block that is none of the known ones is as the sender wrote it. */
export type ConversationBlock = KnownBlock | OtherBlock;

/** A message of a user, or one of the agent. */
export interface ConversationItem {
  /** Its place in the log: `after` of a request for what follows. */
  after: u64;
  at: Timestamp;
  blocks: ConversationBlock[];
  /** The events of the message itself, in their order. The results of its calls have events of their own. */
  events: u64[];
  /** Of a subagent: the id of the tool call that started it. */
  parent?: string | undefined;
  /** `user` or `assistant`. */
  role: string;
  /** Null: the agent wrote it outside of a turn. */
  turn: TurnId | null;
  /** As the model's service counts it; null if the agent does not say. */
  usage: unknown;
}

export interface CreateCheckpointRequest {
  /** Count changes from this checkpoint on. */
  base?: boolean | undefined;
}

export interface CreateCredentialRequest {
  /** The key; for `bedrock` a JSON object as text, with `accessKeyId`, `secretAccessKey` and `region`. */
  key: string;
  /** A name for people. */
  label?: string | null | undefined;
  /** The service that the key is for. */
  type: CredentialKind;
}

export interface CreateKeyRequest {
  /** A name for people; `dashboard-key` without one. */
  label?: string | null | undefined;
  /** Restricts the key to the sessions of this owner; null or left out: all sessions of the tenant. */
  owner?: OwnerId | null | undefined;
}

export interface CreateSessionRequest {
  /** The name of the agent. */
  agent: string;
  /** Tools that the agent may call without permission. */
  allowedTools?: string[] | null | undefined;
  /** Text after the agent's own instructions. */
  appendSystemPrompt?: string | null | undefined;
  /** The only tools that the agent has. */
  availableTools?: string[] | null | undefined;
  /** Beta features of the model's API, by their header names. */
  betas?: string[] | null | undefined;
  /** Where the agent looks for its user's configuration: instructions, skills, settings. */
  configDir?: string | null | undefined;
  /** A stored credential whose key is sent to the model service; with `provider`, to the one that it names. */
  credentialId?: string | null | undefined;
  /** Subagents as a list, in the form of other SDKs. */
  customAgents?: CustomAgent[] | null | undefined;
  /** Skills that the agent does not get. */
  disabledSkills?: string[] | null | undefined;
  /** Tools that the agent may not use; also accepted as `excludedTools`. */
  disallowedTools?: string[] | null | undefined;
  /** When a turn counts as done; null or left out: the server's setting. */
  durability?: Durability | null | undefined;
  /** Variables for the processes of the session. */
  env?: Record<string, string> | null | undefined;
  /** Keep only the log and make no checkpoints: the files are lost with the sandbox. */
  ephemeral?: boolean | null | undefined;
  /** More variables; they win over `env`. */
  extraEnv?: Record<string, string> | null | undefined;
  /** How many seconds a session may be unused before its sandbox is released, 0 for ever; null or left out: the server's setting. */
  idleTimeout?: number | null | undefined;
  /** Compaction: true, false, or its settings, each of which keeps its value if it is left out. */
  infiniteSessions?: boolean | {
    backgroundCompactionThreshold?: number | undefined;
    bufferExhaustionThreshold?: number | undefined;
    /** Tokens; null: the model's own. */
    contextWindow?: number | null | undefined;
    enabled?: boolean | undefined;
  } | undefined;
  /** The subagent that starts the conversation. */
  initialAgent?: string | null | undefined;
  /** Resource limits; 0: none. One that is left out keeps its value, and null selects that of the agent or the server. */
  limits?: {
    cpuPercent?: number | null | undefined;
    diskMb?: number | null | undefined;
    maxFiles?: number | null | undefined;
    maxOpenFiles?: number | null | undefined;
    maxProcesses?: number | null | undefined;
    memoryMb?: number | null | undefined;
    outputKbPerSecond?: number | null | undefined;
    turnSeconds?: number | null | undefined;
  } | undefined;
  /** The limit for the cost of the session, in dollars. */
  maxBudgetUsd?: number | null | undefined;
  /** The limit for tokens of all kinds in the session. */
  maxTokens?: number | null | undefined;
  /** The limit for answers of the agent's loop in the whole session. */
  maxTurns?: number | null | undefined;
  /** How many seconds background work may delay the end of a turn; null or left out: the server's setting. */
  maxWait?: number | null | undefined;
  /** MCP servers by name. The values of `env` and `headers` are secrets: they are never shown, and `***` keeps one. */
  mcpServers?: Record<string, McpServer> | null | undefined;
  metadata?: SessionMetadata | null | undefined;
  /** The model; null or left out: the agent's own. */
  model?: string | null | undefined;
  /** The default for messages that arrive during another turn. */
  onBusy?: BusyPolicy | null | undefined;
  /** What happens to a turn that a crash interrupted; null or left out: the server's setting. */
  onInterrupted?: InterruptedTurnPolicy | null | undefined;
  /** What happens to a permission request without an answer; null or left out: it is denied. */
  onPermissionTimeout?: PermissionTimeoutPolicy | null | undefined;
  /** `fail`: the agent gets an error; `interrupt`: the turn is interrupted. */
  onToolTimeout?: ToolTimeoutPolicy | null | undefined;
  /** The owner; only a caller whose key has no owner may set it. */
  owner?: OwnerId | null | undefined;
  /** `bypassPermissions`, `permissionsByAgent`, `default`, `acceptEdits`, `plan` or `dontAsk`. */
  permissionMode?: string | null | undefined;
  /** How many seconds a call waits for permission; null or left out: the server's setting. */
  permissionTimeout?: number | null | undefined;
  /** A service that the server has a key for, or one that the caller names, with its own key. */
  provider?: "offline" | "anthropic" | {
    apiKey?: string | null | undefined;
    apiVersion?: string | null | undefined;
    /** Also accepted as `endpoint`. */
    baseUrl?: string | null | undefined;
    deploymentId?: string | null | undefined;
    headers?: Record<string, string> | undefined;
    /** `anthropic`, `openai` or `azure`; `offline` without other fields. */
    type: string;
  } | undefined;
  /** `low`, `medium`, `high`, `xhigh` or `max`; also accepted as `effort`. */
  reasoningEffort?: string | null | undefined;
  /** The id of the new session; without one, the server chooses. */
  sessionId?: SessionId | null | undefined;
  /** Folders with skills, besides those that the agent finds by itself. */
  skillDirectories?: string[] | null | undefined;
  /** Whether the agent streams partial answers; the default is yes. */
  streaming?: boolean | null | undefined;
  /** Subagents by name, in the agent's own format. */
  subagents?: Record<string, unknown> | null | undefined;
  /** A text that is appended to the agent's own instructions, or a text with a mode. */
  systemMessage?: string | {
    content: string;
    /** `append`, as without one, or `replace`. */
    mode?: string | null | undefined;
  } | undefined;
  /** Replaces the agent's own instructions. */
  systemPrompt?: string | null | undefined;
  /** How many seconds a call of such a tool waits, 0: without limit. The default is a day. */
  toolTimeout?: number | null | undefined;
  /** Tools that the session's clients execute; replaced as a whole. */
  tools?: ClientTool[] | null | undefined;
  /** How many seconds after its last activity the session ends and goes to the trash; null or 0: never. */
  ttl?: number | null | undefined;
  /** The limits of each turn, unless a message sets its own. */
  turnLimits?: BudgetLimits | null | undefined;
  /** Whether a resumed agent gets a note about how long it slept and what happened meanwhile. */
  wakeReport?: boolean | null | undefined;
  /** The agent's working directory; null or left out: the workspace itself. */
  workingDirectory?: string | null | undefined;
  /** The name of a shared workspace; also accepted as `workspaceId`. */
  workspace?: string | null | undefined;
}

export interface CreateTenantKeyRequest {
  label?: string | null | undefined;
  owner?: OwnerId | null | undefined;
  tenantId: string;
}

export interface CreateWorkspaceRequest {
  /** The agent that its sessions run; `default` without one. */
  agent?: string | undefined;
  /** Only a caller whose key has no owner may set the owner. */
  owner?: OwnerId | null | undefined;
  /** Its name; also accepted as `name` or `workspaceId`. */
  slug: string;
}

export interface CreatedApiKeyAnswer {
  id: string;
  /** Shown only here. */
  key: string;
  owner?: OwnerId | undefined;
}

export interface CreatedCheckpointAnswer {
  /** Its number. */
  checkpoint: number;
}

export interface CreatedCredential {
  /** Always true: a deleted credential is gone. */
  active: boolean;
  createdAt: Timestamp;
  id: CredentialId;
  /** Empty without one. */
  label: string;
  type: CredentialKind;
}

export interface CreatedCredentialAnswer {
  credential: CreatedCredential;
}

/** The session was created. */
export interface CreatedEvent {
  data: SessionCreated;
  event: "created";
}

export interface CreatedTenantKeyAnswer {
  id: string;
  /** Shown only here. */
  key: string;
  owner?: OwnerId | undefined;
  tenantId: TenantId;
}

/** A stored credential. No answer has its key. */
export interface Credential {
  /** Always true: a deleted credential is gone. */
  active: boolean;
  createdAt: Timestamp;
  id: CredentialId;
  /** Empty without one. */
  label: string;
  /** When a session last started with it; null: never. */
  lastUsedAt: Timestamp | null;
  type: CredentialKind;
}

/** Credential id must be 36 lowercase hexadecimal digits and '-'. */
export type CredentialId = string;

/** The service that a stored key is for. */
export type CredentialKind = "anthropic" | "openai" | "bedrock" | "custom";

export interface CredentialListAnswer {
  credentials: Credential[];
}

/** The form in the guides of other SDKs: a list of objects with names. */
export interface CustomAgent {
  description?: string | null | undefined;
  displayName?: string | null | undefined;
  model?: string | null | undefined;
  name: string;
  prompt: string;
  tools?: string[] | null | undefined;
}

export interface DeletedAgentAnswer {
  /** Always true. */
  ok: boolean;
}

export interface DeletedFileAnswer {
  /** Always true. */
  deleted: boolean;
  path: string;
}

export interface DeletedWorkspaceAnswer {
  deleted: Slug;
}

export interface DeltaText {
  delta: string;
}

export interface DeployRequest {
  /** Variables for its processes. */
  env?: Record<string, string> | null | undefined;
  files?: AgentFileUpload[] | null | undefined;
  name: AgentName;
  /** An absolute path on the server's machine. */
  path?: string | null | undefined;
  runtime?: AgentRuntime | null | undefined;
  /** The content of CLAUDE.md, if `files` has none. */
  systemPrompt?: string | null | undefined;
}

/** The turn is over and its files are saved. It is the last event of a message's stream. */
export interface DoneEvent {
  data: TurnDone;
  event: "done";
}

/** When a turn counts as done: once it is saved here, or once the object store has it too. */
export type Durability = "local" | "remote";

/** The limits that apply to a sandbox of the session. */
export interface EffectiveLimits {
  /** Percent of one processor for all processes together: 150 is one and a half. */
  cpuPercent?: number | undefined;
  /** Disk space of the files. */
  diskMb?: number | undefined;
  /** Which mechanism enforces each of them. */
  enforcedBy: Record<string, string>;
  /** The number of files, folders and links. */
  maxFiles?: number | undefined;
  /** Open files of each process. */
  maxOpenFiles?: number | undefined;
  /** The number of processes and threads. */
  maxProcesses?: number | undefined;
  /** Memory of all processes together. */
  memoryMb?: number | undefined;
  /** The sustained output rate of the processes. */
  outputKbPerSecond?: number | undefined;
  /** The duration of one turn. */
  turnSeconds?: number | undefined;
}

/** An empty object. */
export type EmptyAnswer = Record<string, never>;

/** The session has ended. It is the last event. */
export interface EndedEvent {
  data: NoData;
  event: "ended";
}

export interface EndedSessionAnswer {
  /** Present and true after a purge. */
  purged?: boolean | undefined;
  session: Session;
}

/** The key from the server's environment. */
export interface EnvironmentApiKey {
  /** Always empty. */
  createdAt: string;
  id: string;
  keyPrefix: string;
  label: string;
}

/** The number of a hold on a workspace; a write with an older epoch is refused. */
export type Epoch = number;

/** Something failed. With `queued`, it is the last frame of a message's stream that was cut off. */
export interface ErrorEvent {
  data: StreamError;
  event: "error";
}

export interface ExecCommandRequest {
  /** For `/bin/sh -c`. */
  command: string;
  /** Milliseconds; 30,000 without one. */
  timeout?: number | null | undefined;
}

export interface ExecResult {
  exitCode: number;
  stderr: string;
  stdout: string;
  timedOut: boolean;
  /** The command wrote more than the server keeps. */
  truncated: boolean;
}

/** A session to which a rule applies. */
export interface ExpiringSession {
  /** `end` or `purge`. */
  action: string;
  id: SessionId;
  lastActiveAt: Timestamp;
  owner: OwnerId | null;
  rule: string;
  status: SessionStatus;
}

export interface FailedTier {
  reason: string;
  /** The tier that was tried. */
  tier: Tier;
}

/** A file as text. */
export interface FileContentAnswer {
  content: string;
  path: string;
  /** In bytes. */
  size: number;
  /** `sandbox` or `snapshot`. */
  source: string;
}

export interface FileEntry {
  modifiedAt: Timestamp;
  path: string;
  /** In bytes. */
  size: number;
}

export interface FileListAnswer {
  files: FileEntry[];
  /** `sandbox` while a sandbox runs in the workspace, else `snapshot`. Left out for a workspace without sessions. */
  source?: string | undefined;
}

export interface FileState {
  /** `file` or `link`. */
  kind: string;
  /** The permission bits. */
  mode: number;
  size: number;
  /** The target of a link. */
  target?: string | undefined;
}

export interface ForkRequest {
  /** The checkpoint to fork from; without one, now. */
  checkpoint?: number | null | undefined;
  /** The id of the fork; without one, the server chooses. */
  sessionId?: SessionId | null | undefined;
  /** The workspace of the parent; without it the fork works in a copy. Also accepted as `workspaceId`. */
  workspace?: string | null | undefined;
}

/** The session is a fork. */
export interface ForkedEvent {
  data: SessionForked;
  event: "forked";
}

export interface Health {
  activeSandboxes: number;
  activeSessions: number;
  coordinatorId?: string | undefined;
  /** Present and true if something is wrong. */
  degraded?: boolean | undefined;
  error?: string | undefined;
  /** Free disk space, if it is too little. */
  freeBytes?: number | undefined;
  objectStore?: ObjectStoreHealth | undefined;
  pool: PoolStats;
  /** Always 0. */
  remoteRunners: number;
  /** `ok`, `full` (too little disk space) or `stopping`. */
  status: string;
  trouble?: Trouble[] | undefined;
  /** Seconds. */
  uptime: number;
  version: string;
}

/** The source that knew more of a session than the database. */
export type HistorySource = "packs" | "bucket";

export interface IdleSession {
  idleDurationMs: number;
  /** `evicted`: another session needed the place. */
  reason?: string | undefined;
}

export interface IdleWarning {
  /** How long the session has been unused. */
  idleDurationMs: number;
  /** When its sandbox is released. */
  remainingMs: number;
}

/** Image must be 1 to 255 letters, digits, '.', '_', '-', '/', ':' or '@', and start with a letter or digit. */
export type Image = string;

export interface InterruptAnswer {
  /** Always true. */
  ok: boolean;
  /** The turn that is interrupted; null: none ran. */
  turn: TurnId | null;
}

/** What a start does with a turn that a crash interrupted. */
export type InterruptedTurnPolicy = "continue" | "ask";

/** A client interrupts the turn. */
export interface InterruptingEvent {
  data: TurnRef;
  event: "interrupting";
}

/** Told apart by `type`. */
export type KnownBlock = {
  text: string;
  type: "text";
} | {
  thinking: string;
  type: "thinking";
} | {
  id: string;
  input: unknown;
  /** Letters, digits, `-` and `_` only. */
  name: string;
  /** Null: there is none yet, or the call was cut off. */
  result: ToolCallResult | null;
  type: "tool_call";
};

/** The last checkpoints. */
export interface LastCheckpoints {
  /** The one that the files are based on. */
  local: number | null;
  /** The last one that the object store has. */
  remote: number | null;
}

/** A setting that a running agent can change. */
export type LiveSetting = {
  /** This model. */
  model: string;
} | {
  /** This permission mode, in the agent's own terms. */
  permissionMode: string;
};

/** Who holds the lock. */
export interface Lock {
  expiresAt: Timestamp;
  /** The holder's name for itself. */
  holder: string | null;
  /** A turn of the holder is running, so the lock holds whatever `expiresAt` says. */
  inUse: boolean;
  /** Higher than that of every earlier lock. */
  number: number;
}

export interface LockAnswer {
  /** Null: nobody holds it. */
  lock: Lock | null;
}

export interface LockNumber {
  number: number;
}

/** The new holder of a lock. */
export interface LockTaken {
  expiresAt: Timestamp;
  holder: string | null;
  number: number;
  /** Tells the previous holder that it has lost the lock. */
  takenOver: boolean;
}

/** A client acquired the lock. */
export interface LockedEvent {
  data: LockTaken;
  event: "locked";
}

/** A line that the agent or its setup wrote. */
export interface LogEntry {
  index: number;
  /** `stdout`, `stderr` or `system`. */
  level: string;
  text: string;
  ts: Timestamp;
}

export interface LogListAnswer {
  logs: LogEntry[];
  /** Always `sandbox`. */
  source: string;
}

/** The fields of the reference, of Claude Code, and of the SDKs that we follow. */
export interface McpServer {
  alwaysLoad?: boolean | null | undefined;
  args?: string[] | null | undefined;
  command?: string | null | undefined;
  cwd?: string | null | undefined;
  env?: Record<string, unknown> | null | undefined;
  headers?: Record<string, unknown> | null | undefined;
  headersHelper?: string | null | undefined;
  timeout?: number | null | undefined;
  tools?: string[] | null | undefined;
  type?: McpTransport | null | undefined;
  url?: string | null | undefined;
}

export type McpTransport = "stdio" | "local" | "http" | "streamable-http" | "sse" | "ws";

/** A message of the conversation. */
export interface Message {
  /** JSON as text: `{"type": "user", "content": …}`, or the agent's own message. */
  content: string;
  createdAt: Timestamp;
  id: string;
  /** `user` or `assistant`. */
  role: string;
  /** Its number in the session. */
  sequence: number;
  sessionId: SessionId;
  tenantId: TenantId;
  turn: TurnId | null;
}

/** The agent's own message, verbatim. It follows the granular events that come from it. */
export interface MessageEvent {
  data: AgentMessage;
  event: "message";
}

export interface MessageListAnswer {
  messages: Message[];
}

/** The metadata of the session changed. */
export interface MetadataEvent {
  data: ChangedMetadata;
  event: "metadata";
}

/** An event that is lost. It keeps its number. */
export interface MissingEvent {
  data: NoData;
  event: "missing";
}

/** The API of a model service. */
export type ModelApiDialect = "anthropic" | "openai" | "azure";

/** The model provider of the built-in agent. */
export type ModelProvider = "offline" | "anthropic";

/** An empty object. */
export type NoData = Record<string, never>;

/** Replication to the object store. */
export interface ObjectStoreHealth {
  code?: string | undefined;
  error?: string | undefined;
  lagSeconds: number;
  /** Since when it is in trouble. */
  since?: Timestamp | undefined;
  /** `ok` or `trouble`. */
  status: string;
  url: string;
  waitingCheckpoints: number;
}

/** An `image`, a `document`, or a block that the server does not know. */
export type OtherBlock = Record<string, unknown>;

export interface OutputFormat {
  schema?: Record<string, unknown> | null | undefined;
  type?: string | null | undefined;
}

/** Owner must be 1 to 128 letters, digits, '-', '_', '.', '@', '+' or ':'. */
export type OwnerId = string;

/** The session is paused. */
export interface PausedEvent {
  data: NoData;
  event: "paused";
}

/** The agent waits for permission to call a tool, or for the answer to a question. */
export interface Permission {
  expiresAt: Timestamp;
  id: PermissionId;
  /** The input for the tool. */
  input: unknown;
  /** What happens when it expires. */
  onTimeout: PermissionTimeoutPolicy;
  /** A question to a person: it needs `answers`. */
  question: boolean;
  /** Rules that the agent suggests, so that it does not ask again; `updatedPermissions` of an answer takes some of them. */
  suggestions: unknown[];
  tool: string;
  /** The id of the call in the agent's message. */
  toolUseId: string | null;
  /** Null: the agent asks outside of a turn. */
  turn: TurnId | null;
}

export interface PermissionAnswerRequest {
  /** For a question: the chosen options, by the text of each question. */
  answers?: Record<string, AnswerChoice> | null | undefined;
  behavior: PermissionBehavior;
  /** Why it is denied: the agent gets it instead of a result. */
  message?: string | null | undefined;
  /** A replacement for the tool's input. */
  updatedInput?: Record<string, unknown> | null | undefined;
  /** Some of the request's `suggestions`, which apply from now on. */
  updatedPermissions?: unknown[] | null | undefined;
}

/** A permission request is closed. */
export interface PermissionAnsweredEvent {
  data: StreamedAnswer;
  event: "permission_answered";
}

export type PermissionBehavior = "allow" | "deny";

/** One permission request of an agent. */
export type PermissionId = string;

export interface PermissionListAnswer {
  permissions: Permission[];
}

/** The agent waits for permission, or for an answer. */
export interface PermissionRequestEvent {
  data: Permission;
  event: "permission_request";
}

/** What happens to a request that no client answers in time. */
export type PermissionTimeoutPolicy = "deny" | "allow" | "interrupt";

export interface Plan {
  /** The path in the sandbox. */
  path: string;
  /** Null: there is none. */
  plan: string | null;
  /** `sandbox` or `snapshot`, as for files; `log`: the plan exists only in a permission request. */
  source: string;
  updatedAt: Timestamp | null;
}

/** Sandboxes by state. */
export interface PoolStats {
  cold: number;
  maxCapacity: number;
  preWarmHits: number;
  /** Requests that wait for a sandbox; for callers with a key. */
  queued?: number | undefined;
  resumeColdHits: number;
  resumeWarmHits: number;
  running: number;
  total: number;
  waiting: number;
  warm: number;
  warming: number;
}

/** A failure as a client sees it: a stable code for programs, a sentence with the remedy for people. */
export interface Problem {
  /** For programs; never changes. */
  code: string;
  /** For people: the cause and the remedy. */
  error: string;
}

export interface PruneRequest {
  /** Whether to show what would be done, and do nothing. */
  dryRun?: boolean | undefined;
  /** How long they have been unused: `90s`, `30m`, `24h` or `7d`. */
  olderThan: string;
  owner?: OwnerId | null | undefined;
  /** Whether to purge them, instead of ending them. */
  purge?: boolean | undefined;
  /** `paused`, `stopped`, `error` or `ended`. */
  status?: SessionStatus | null | undefined;
}

export interface PrunedSessionsAnswer {
  /** `end` or `purge`. */
  action: string;
  /** Nothing was changed. */
  dryRun: boolean;
  sessions: Session[];
}

export interface QueueAnswer {
  queue: QueuedMessage[];
}

/** The order of the waiting messages changed. */
export interface QueueEvent {
  data: QueueOrder;
  event: "queue";
}

export interface QueueOrder {
  /** All waiting messages, the next one first. */
  order: TurnId[];
  /** Messages that a caller withdrew. */
  withdrawn: TurnId[];
}

/** A message that runs or waits. */
export interface QueuedMessage {
  attempt: number;
  /** A text, or blocks of content; null for a turn that the agent started by itself. */
  content: unknown;
  createdAt: Timestamp | null;
  /** 0 is the first. */
  position: number;
  /** `queued`, `running`, `saving`, `cut` or `steering`. */
  status: string;
  turn: TurnId;
}

/** A limit that is used up. */
export interface ReachedLimit {
  /** Null: no price is known for the model. */
  limit: number | null;
  of: BudgetScope;
  turn: TurnId | null;
  /** There is a limit in dollars, and the model has no price. */
  unpriced?: boolean | undefined;
  used: number;
  /** The name of the option. */
  which: string;
}

/** What one resume restored. */
export interface Receipt {
  /** The session took its history from another witness, which knew more than the database. */
  adopted?: AdoptionPoint | undefined;
  /** The checkpoint that the session continues from. */
  checkpoint: number | null;
  /** What was compared. */
  compared?: ResumeComparison | undefined;
  /** The source of the files. */
  from: TreeOrigin;
  /** What is missing, by name. Empty: nothing. */
  lost: string[];
  /** Whether there was a sandbox. */
  path: ResumePath;
  /** The repairs of the agent's memory. */
  repaired?: string[] | undefined;
  /** The number of the checkpoint that keeps a tree that could not be trusted. */
  salvage?: number | undefined;
  /** The source of the state. */
  source: ResumeSource;
  /** How the agent got its memory back. */
  tier: Tier;
  /**
   * True only if the loaded state was compared with the saved state and nothing was missing. A warm resume loads
   * nothing.
   */
  verified: boolean;
}

/** Why the object store was not compared. */
export type RemoteComparison = "unreachable";

export interface ReorderQueueRequest {
  /** Turns, the next one first. Messages that are not named keep their order, after these. */
  order: string[];
}

/** Whole numbers. Null or left out: the next level decides. 0: no limit. */
export interface ResourceLimits {
  /** Percent of one processor for all processes together: 150 is one and a half. */
  cpuPercent?: number | undefined;
  /** Disk space of the files. */
  diskMb?: number | undefined;
  /** The number of files, folders and links. */
  maxFiles?: number | undefined;
  /** Open files of each process. */
  maxOpenFiles?: number | undefined;
  /** The number of processes and threads. */
  maxProcesses?: number | undefined;
  /** Memory of all processes together. */
  memoryMb?: number | undefined;
  /** The sustained output rate of the processes. */
  outputKbPerSecond?: number | undefined;
  /** The duration of one turn. */
  turnSeconds?: number | undefined;
}

/** What sandboxes used. */
export interface Resources {
  cpuSeconds: number;
  diskBytes: number;
  files: number;
  peakMemoryBytes: number;
}

/** Files are being restored. It has no id: a client cannot continue after it. */
export interface RestoreProgressEvent {
  data: RestoreStatus;
  event: "restore_progress";
}

export interface RestoreStatus {
  bytes: number;
  fetchedBytes: number;
  files: number;
  /** `fetching` from the object store, or `writing` to the disk. */
  phase: string;
  totalBytes: number;
}

/** How much of the saved state was compared with the restored state. */
export interface ResumeComparison {
  /** The version of the agent. */
  agentVersion: number;
  /** How the restored files were compared with that tree; null or left out: other sessions were changing them. */
  by?: ComparisonMethod | undefined;
  /** Settings that differ from the checkpoint because a caller changed them since. */
  changed?: string[] | undefined;
  /** How many log events of the newest checkpoint were compared, byte for byte. */
  events: number;
  /** How many messages the agent should have in its memory. */
  messages?: number | undefined;
  /** The model that the session is set to. */
  model?: string | undefined;
  /** The permission mode that the session is set to. */
  permissionMode?: string | undefined;
  /** Why the object store's history was not compared with the log. */
  remote?: RemoteComparison | undefined;
  /** The tree of the checkpoint, with all files and their metadata. */
  tree?: string | undefined;
}

/** The agent did not start with its memory; the next lower tier is tried. */
export interface ResumeFailedEvent {
  data: FailedTier;
  event: "resume_failed";
}

/** Whether the session had a sandbox at the resume. */
export type ResumePath = "warm" | "cold";

/** The source of the restored state. */
export type ResumeSource = "local" | "cloud" | "fresh";

/** The session was resumed. */
export interface ResumedEvent {
  data: Receipt;
  event: "resumed";
}

export interface ResumedSessionAnswer {
  /** What was restored from where; null if the session was active. */
  resume: Receipt | null;
  session: Session;
}

export interface RetentionAnswer {
  /** Nothing was changed. */
  dryRun: boolean;
  /** As in `ASH_RETENTION`. */
  rules: string[];
  sessions: ExpiringSession[];
}

/**
 * The target of a rewind, the checkpoint that leads back, and the turn that was running at the target, which does not
 * continue.
 */
export interface Rewind {
  checkpoint: number;
  /** The checkpoint of the state before the rewind. */
  from: number | null;
  midTurn: boolean;
  /** The last event that counts. */
  seq: number;
  turn: TurnId | null;
  /** How many turns the conversation has now. */
  turns: number;
}

export interface RewindRequest {
  /** Its number. */
  checkpoint: number;
  /** Whether to rewind the files, too. Default: yes, unless other sessions are using them. */
  files?: boolean | null | undefined;
}

/** The session went back to a checkpoint. */
export interface RewoundEvent {
  data: Rewind;
  event: "rewound";
}

export interface RewoundSessionAnswer {
  rewound: Rewind;
  session: Session;
}

/** A path beneath /workspace or /home/agent, as a process in the sandbox sees it; without "..". */
export type SandboxPath = string;

/** What an agent's sandboxes need beyond an image and limits. */
export interface SandboxRequirements {
  /** The agent has an `install.sh`, which may take this long. */
  installSeconds?: number | undefined;
  /** How many prewarmed sandboxes it has. */
  prewarm?: number | undefined;
  /** The agent has a `startup.sh`, which may take this long. */
  startupSeconds?: number | undefined;
  /** Its work needs user namespaces. */
  userNamespaces?: boolean | undefined;
}

/** A checkpoint, as the log names it. */
export interface SavedCheckpoint {
  /** The files of a shared workspace are those of this earlier checkpoint again. */
  back?: number | undefined;
  /** Turns of other sessions that were running in the same workspace. */
  beside?: ConcurrentTurn[] | undefined;
  /** How many bytes its files have. */
  bytes: number;
  /** Whether processes could write during the capture. */
  consistency: CaptureConsistency;
  /** How many files, folders and links the snapshot has. */
  files: number;
  /** Taken while the turn was running. */
  midTurn?: boolean | undefined;
  /** Its number in the workspace. */
  number: number;
  /** A tree that we found, not the result of a turn: kept so that no file is thrown away. */
  salvage?: boolean | undefined;
  /** Paths that were left out on purpose. */
  skipped?: string[] | undefined;
  /** The id of the snapshot. */
  tree: string;
  /** The turn before the checkpoint, if any. */
  turn: TurnId | null;
  /** Paths that a checkpoint cannot hold or could not read, up to a limit. A restore does not bring them back. */
  unsaved?: UnsavedPath[] | undefined;
  /** How many more there are than `unsaved` lists. */
  unsavedMore?: number | undefined;
}

export interface SendMessageRequest {
  /** False: a session that is paused or stopped is not resumed by the message. */
  autoResume?: boolean | null | undefined;
  /** A text, or blocks of the Messages API with their own fields: `text`, `source`, … */
  content: string | Array<{
    type: "text" | "image" | "document";
  }>;
  /** When a turn counts as done; null or left out: the server's setting. */
  durability?: Durability | null | undefined;
  /** `low`, `medium`, `high` or `max`. */
  effort?: string | null | undefined;
  /** Whether the stream has the pieces of messages that are not complete yet. */
  includePartialMessages?: boolean | undefined;
  /** Limit for the cost of this turn. */
  maxBudgetUsd?: number | null | undefined;
  /** Limit for tokens of all kinds in this turn. */
  maxTokens?: number | null | undefined;
  /** Limit for answers of the model in this turn. */
  maxTurns?: number | null | undefined;
  /** The model; null or left out: the agent's own. */
  model?: string | null | undefined;
  /** The default for messages that arrive during another turn. */
  onBusy?: BusyPolicy | null | undefined;
  outputFormat?: OutputFormat | null | undefined;
  thinking?: ThinkingOptions | null | undefined;
}

export interface ServerAnswer {
  api: string;
  health: string;
  name: string;
  version: string;
}

/** A conversation with one version of an agent in one workspace. */
export interface Session {
  ageSeconds: number;
  agentName: AgentName;
  /** The version of the agent that it runs. */
  agentVersion: number;
  checkpoint: LastCheckpoints;
  config: SessionConfig;
  createdAt: Timestamp;
  /** Why the session cannot go on. */
  error: Problem | null;
  /** When its time to live ends if it is not used before. */
  expiresAt?: Timestamp | undefined;
  id: SessionId;
  /** Options that have no effect on the agent's runtime. */
  ignoredOptions?: string[] | undefined;
  lastActiveAt: Timestamp;
  /** The beginning of the agent's last answer. */
  lastText: string | null;
  metadata: SessionMetadata;
  model: string | null;
  /** How many of them are not over. */
  openTurns: number;
  owner: OwnerId | null;
  /** The session that it was forked from. */
  parentSessionId: SessionId | null;
  /** Always null: the server has no other runners. */
  runnerId: string | null;
  runtime: AgentRuntime;
  sandboxId: WorkspaceId;
  status: SessionStatus;
  tenantId: TenantId;
  title: string | null;
  /** How many turns there were. */
  turns: number;
  /** The name of its workspace, if that is shared. */
  workspace: Slug | null;
  workspaceId: WorkspaceId;
}

export interface SessionAnswer {
  session: Session;
}

/** The options of a session. */
export interface SessionConfig {
  /** Tools that the agent may call without permission. */
  allowedTools?: string[] | undefined;
  /** Text after the agent's own instructions. */
  appendSystemPrompt?: string | undefined;
  /** The only tools that the agent has. */
  availableTools?: string[] | undefined;
  /** The checkpoint that changes are relative to; null or left out: the agent's own files. */
  base?: number | undefined;
  /** Beta features of the model's API, by their header names. */
  betas?: string[] | undefined;
  /** Where the agent looks for its user's configuration: instructions, skills, settings. */
  configDir?: SandboxPath | undefined;
  /** The stored credential whose key is added to calls of `ownProvider`. */
  credentialId?: CredentialId | undefined;
  /** Skills that the agent does not get. */
  disabledSkills?: string[] | undefined;
  /** Tools that the agent may not call at all. */
  disallowedTools?: string[] | undefined;
  /** When a turn counts as done; null or left out: the server's setting. */
  durability?: Durability | undefined;
  /** The names of its variables, each with the value `***`. */
  env?: Record<string, string> | undefined;
  /** Keep only the log and make no checkpoints: the files are lost with the sandbox. */
  ephemeral?: boolean | undefined;
  /** How many seconds a session may be unused before its sandbox is released, 0 for ever; null or left out: the server's setting. */
  idleTimeout?: number | undefined;
  /** When the agent compacts long conversations. */
  infiniteSessions?: CompactionOptions | undefined;
  /** The subagent that starts the conversation. */
  initialAgent?: string | undefined;
  /** The resource limits of the sandbox; null or left out: the agent's, or the server's. */
  limits?: ResourceLimits | undefined;
  /** The limit for the cost of the session, in dollars. */
  maxBudgetUsd?: number | undefined;
  /** The limit for tokens of all kinds in the session. */
  maxTokens?: number | undefined;
  /** The limit for answers of the agent's loop in the whole session. */
  maxTurns?: number | undefined;
  /** How many seconds background work may delay the end of a turn; null or left out: the server's setting. */
  maxWait?: number | undefined;
  /** MCP servers by name, in the agent's own format, with masks instead of secrets. */
  mcpServers?: unknown | undefined;
  /** The model; null or left out: the agent's own. */
  model?: string | undefined;
  /** The default for messages that arrive during another turn. */
  onBusy?: BusyPolicy | undefined;
  /** What happens to a turn that a crash interrupted; null or left out: the server's setting. */
  onInterrupted?: InterruptedTurnPolicy | undefined;
  /** What happens to a permission request without an answer; null or left out: it is denied. */
  onPermissionTimeout?: PermissionTimeoutPolicy | undefined;
  /** What happens to a call of a client's tool without an answer; null or left out: it fails. */
  onToolTimeout?: ToolTimeoutPolicy | undefined;
  /** The client's own service. Without `credentialId`, a client that resumes the session must send the key again. */
  ownProvider?: ByokEndpoint | undefined;
  /** When the agent asks for permission, in its own terms. */
  permissionMode?: string | undefined;
  /** How many seconds a call waits for permission; null or left out: the server's setting. */
  permissionTimeout?: number | undefined;
  /** Null or left out: the agent's own provider, or the one that the server has a key for. */
  provider?: ModelProvider | undefined;
  /** The reasoning effort, in the agent's own terms. */
  reasoningEffort?: string | undefined;
  /** Folders with skills, besides those that the agent finds by itself. */
  skillDirectories?: SandboxPath[] | undefined;
  /** Whether the agent streams partial answers; the default is yes. */
  streaming?: boolean | undefined;
  /** Subagents by name, in the agent's own format. */
  subagents?: unknown | undefined;
  /** Replaces the agent's own instructions. */
  systemPrompt?: string | undefined;
  /** How many seconds a call of a client's tool waits, 0: without limit; null or left out: a day. */
  toolTimeout?: number | undefined;
  /** Tools that the clients of the session execute. */
  tools?: ClientTool[] | undefined;
  /** How many seconds after its last activity the session ends and goes to the trash; null or 0: never. */
  ttl?: number | undefined;
  /** The limits of each turn, unless a message sets its own. */
  turnLimits?: BudgetLimits | undefined;
  /** Whether a resumed agent gets a note about how long it slept and what happened meanwhile. */
  wakeReport?: boolean | undefined;
  /** The agent's working directory; null or left out: the workspace itself. */
  workingDirectory?: SandboxPath | undefined;
}

export interface SessionConfigPatch {
  /** Tools that the agent may call without permission. */
  allowedTools?: string[] | null | undefined;
  /** Text after the agent's own instructions. */
  appendSystemPrompt?: string | null | undefined;
  /** The only tools that the agent has. */
  availableTools?: string[] | null | undefined;
  /** Beta features of the model's API, by their header names. */
  betas?: string[] | null | undefined;
  /** Where the agent looks for its user's configuration: instructions, skills, settings. */
  configDir?: string | null | undefined;
  /** A stored credential whose key is sent to the model service; with `provider`, to the one that it names. */
  credentialId?: string | null | undefined;
  /** Subagents as a list, in the form of other SDKs. */
  customAgents?: CustomAgent[] | null | undefined;
  /** Skills that the agent does not get. */
  disabledSkills?: string[] | null | undefined;
  /** Tools that the agent may not use; also accepted as `excludedTools`. */
  disallowedTools?: string[] | null | undefined;
  /** When a turn counts as done; null or left out: the server's setting. */
  durability?: Durability | null | undefined;
  /** Replaces all variables. */
  env?: Record<string, string> | null | undefined;
  /** Keep only the log and make no checkpoints: the files are lost with the sandbox. */
  ephemeral?: boolean | null | undefined;
  /** More variables; they win over `env`. */
  extraEnv?: Record<string, string> | null | undefined;
  /** How many seconds a session may be unused before its sandbox is released, 0 for ever; null or left out: the server's setting. */
  idleTimeout?: number | null | undefined;
  /** Compaction: true, false, or its settings, each of which keeps its value if it is left out. */
  infiniteSessions?: boolean | {
    backgroundCompactionThreshold?: number | undefined;
    bufferExhaustionThreshold?: number | undefined;
    /** Tokens; null: the model's own. */
    contextWindow?: number | null | undefined;
    enabled?: boolean | undefined;
  } | undefined;
  /** The subagent that starts the conversation. */
  initialAgent?: string | null | undefined;
  /** Resource limits; 0: none. One that is left out keeps its value, and null selects that of the agent or the server. */
  limits?: {
    cpuPercent?: number | null | undefined;
    diskMb?: number | null | undefined;
    maxFiles?: number | null | undefined;
    maxOpenFiles?: number | null | undefined;
    maxProcesses?: number | null | undefined;
    memoryMb?: number | null | undefined;
    outputKbPerSecond?: number | null | undefined;
    turnSeconds?: number | null | undefined;
  } | undefined;
  /** The limit for the cost of the session, in dollars. */
  maxBudgetUsd?: number | null | undefined;
  /** The limit for tokens of all kinds in the session. */
  maxTokens?: number | null | undefined;
  /** The limit for answers of the agent's loop in the whole session. */
  maxTurns?: number | null | undefined;
  /** How many seconds background work may delay the end of a turn; null or left out: the server's setting. */
  maxWait?: number | null | undefined;
  /** MCP servers by name. The values of `env` and `headers` are secrets: they are never shown, and `***` keeps one. */
  mcpServers?: Record<string, McpServer> | null | undefined;
  /** The model; null or left out: the agent's own. */
  model?: string | null | undefined;
  /** The default for messages that arrive during another turn. */
  onBusy?: BusyPolicy | null | undefined;
  /** What happens to a turn that a crash interrupted; null or left out: the server's setting. */
  onInterrupted?: InterruptedTurnPolicy | null | undefined;
  /** What happens to a permission request without an answer; null or left out: it is denied. */
  onPermissionTimeout?: PermissionTimeoutPolicy | null | undefined;
  /** `fail`: the agent gets an error; `interrupt`: the turn is interrupted. */
  onToolTimeout?: ToolTimeoutPolicy | null | undefined;
  /** `bypassPermissions`, `permissionsByAgent`, `default`, `acceptEdits`, `plan` or `dontAsk`. */
  permissionMode?: string | null | undefined;
  /** How many seconds a call waits for permission; null or left out: the server's setting. */
  permissionTimeout?: number | null | undefined;
  /** A service that the server has a key for, or one that the caller names, with its own key. */
  provider?: "offline" | "anthropic" | {
    apiKey?: string | null | undefined;
    apiVersion?: string | null | undefined;
    /** Also accepted as `endpoint`. */
    baseUrl?: string | null | undefined;
    deploymentId?: string | null | undefined;
    headers?: Record<string, string> | undefined;
    /** `anthropic`, `openai` or `azure`; `offline` without other fields. */
    type: string;
  } | undefined;
  /** `low`, `medium`, `high`, `xhigh` or `max`; also accepted as `effort`. */
  reasoningEffort?: string | null | undefined;
  /** Folders with skills, besides those that the agent finds by itself. */
  skillDirectories?: string[] | null | undefined;
  /** Whether the agent streams partial answers; the default is yes. */
  streaming?: boolean | null | undefined;
  /** Subagents by name, in the agent's own format. */
  subagents?: Record<string, unknown> | null | undefined;
  /** A text that is appended to the agent's own instructions, or a text with a mode. */
  systemMessage?: string | {
    content: string;
    /** `append`, as without one, or `replace`. */
    mode?: string | null | undefined;
  } | undefined;
  /** Replaces the agent's own instructions. */
  systemPrompt?: string | null | undefined;
  /** How many seconds a call of such a tool waits, 0: without limit. The default is a day. */
  toolTimeout?: number | null | undefined;
  /** Tools that the session's clients execute; replaced as a whole. */
  tools?: ClientTool[] | null | undefined;
  /** How many seconds after its last activity the session ends and goes to the trash; null or 0: never. */
  ttl?: number | null | undefined;
  /** The limits of each turn, unless a message sets its own. */
  turnLimits?: BudgetLimits | null | undefined;
  /** Whether a resumed agent gets a note about how long it slept and what happened meanwhile. */
  wakeReport?: boolean | null | undefined;
  /** The agent's working directory; null or left out: the workspace itself. */
  workingDirectory?: string | null | undefined;
}

export interface SessionCreated {
  agentName: AgentName;
  agentVersion: number;
}

/** A session with everything about it. */
export interface SessionDetail {
  ageSeconds: number;
  agentName: AgentName;
  /** The version of the agent that it runs. */
  agentVersion: number;
  checkpoint: LastCheckpoints;
  config: SessionConfig;
  createdAt: Timestamp;
  /** Why the session cannot go on. */
  error: Problem | null;
  /** When its time to live ends if it is not used before. */
  expiresAt?: Timestamp | undefined;
  id: SessionId;
  /** Options that have no effect on the agent's runtime. */
  ignoredOptions?: string[] | undefined;
  lastActiveAt: Timestamp;
  /** The beginning of the agent's last answer. */
  lastText: string | null;
  limits: EffectiveLimits;
  lock: Lock | null;
  metadata: SessionMetadata;
  model: string | null;
  /** How many of them are not over. */
  openTurns: number;
  owner: OwnerId | null;
  /** The session that it was forked from. */
  parentSessionId: SessionId | null;
  /** Open permission requests and questions. */
  pending: Permission[];
  /** Calls of the client's tools that wait for an answer. */
  pendingTools: WaitingToolCall[];
  resources: Resources;
  /** Always null: the server has no other runners. */
  runnerId: string | null;
  runtime: AgentRuntime;
  sandboxId: WorkspaceId;
  status: SessionStatus;
  tenantId: TenantId;
  title: string | null;
  /** How many turns there were. */
  turns: number;
  usage: Usage;
  /** The name of its workspace, if that is shared. */
  workspace: Slug | null;
  workspaceId: WorkspaceId;
}

export interface SessionDetailAnswer {
  session: SessionDetail;
}

/** An entry of the timeline. */
export interface SessionEvent {
  createdAt: Timestamp;
  /** JSON as text. Of a `lifecycle` entry, `action` says what happened. */
  data: string;
  id: string;
  /** The number of the event; the entries of one event have the same. */
  sequence: number;
  sessionId: SessionId;
  tenantId: TenantId;
  turn: TurnId | null;
  /** `text`, `tool_start`, `tool_result`, `reasoning`, `error`, `turn_complete` or `lifecycle`. */
  type: string;
}

export interface SessionEventListAnswer {
  events: SessionEvent[];
}

export interface SessionForked {
  /** Null: the parent was purged. */
  parentSessionId: SessionId | null;
}

/** Session id must be 1 to 128 letters, digits, '-', '_' or '.', and not start with a dot. */
export type SessionId = string;

/** The session came to rest, or its sandbox was released. */
export interface SessionIdleEvent {
  data: IdleSession;
  event: "session_idle";
}

export interface SessionListAnswer {
  /** The `cursor` of the next page; null: this may be the last. */
  nextCursor: string | null;
  sessions: Session[];
  /** How many sessions the filter matches on all pages. */
  total: number;
}

export interface SessionLog {
  events: SessionLogEvent[];
  /** `after` of the next page; null if there is none. */
  nextAfter: u64 | null;
}

/** A frame of the session's stream. */
export interface SessionLogEvent {
  /** The data of the `StreamEvent` with this name. A text if the agent wrote a line that is no JSON. */
  data: unknown;
  /** The name of the event. */
  event: string;
  /** The id of the frame: a stream continues after it. */
  id: string;
}

/** Labels of the caller: at most 50 names of 1 to 64 bytes, with texts of at most 1024 bytes. */
export type SessionMetadata = Record<string, string>;

export interface SessionStart {
  sessionId: SessionId;
  turn: TurnId;
  /** The server's version. */
  version: string;
}

/** A message was accepted. It is the first event of a message's stream. */
export interface SessionStartEvent {
  data: SessionStart;
  event: "session_start";
}

/** The status of a session. Only `ended` is final. */
export type SessionStatus = "starting" | "active" | "paused" | "stopped" | "error" | "ended";

export interface SetMetadataRequest {
  /** All entries. */
  metadata: SessionMetadata;
}

/** A setting of the running agent changed. */
export interface SettingEvent {
  data: LiveSetting;
  event: "setting";
}

/** Workspace name must be 1 to 63 lowercase letters, digits or '-', and start and end with a letter or digit. */
export type Slug = string;

/** A message reached the agent in the middle of another turn, and ends with it. */
export interface SteeredEvent {
  data: SteeredMessage;
  event: "steered";
}

export interface SteeredMessage {
  /** The turn that received it. */
  into: TurnId;
  /** The message's own turn. */
  turn: TurnId;
}

/** The session was stopped. */
export interface StoppedEvent {
  data: NoData;
  event: "stopped";
}

export interface StoredApiKey {
  createdAt: Timestamp;
  id: string;
  keyPrefix: string;
  label: string;
  /** The owner whose sessions and workspaces the key opens; null: those of the whole tenant. */
  owner: OwnerId | null;
}

export interface StreamError {
  /** For programs, as of an `ApiError`. */
  code: string;
  /** For people. */
  error: string;
  /** Whether the message is still in the queue; null if the server cannot tell. */
  queued?: boolean | null | undefined;
}

/** A frame of an event stream: `event` is its name, `data` its JSON. The frame also has an `id:`, after which a client can continue. Blocks and deltas of the agent that are none of these come under names of their own: a client ignores events that it does not know. */
export type StreamEvent = SessionStartEvent | TextDeltaEvent | ThinkingDeltaEvent | ToolUseEvent | ToolResultEvent | TurnCompleteEvent | ErrorEvent | DoneEvent | TurnContinuedEvent | TurnStartedEvent | InterruptingEvent | SteeredEvent | CheckpointEvent | CreatedEvent | ForkedEvent | ResumedEvent | ResumeFailedEvent | RewoundEvent | WorkspaceRewoundEvent | PermissionRequestEvent | PermissionAnsweredEvent | ToolRequestedEvent | ToolAnsweredEvent | SettingEvent | QueueEvent | LockedEvent | UnlockedEvent | BudgetReachedEvent | UsageReportEvent | TimeoutWarningEvent | SessionIdleEvent | ConfigEvent | MetadataEvent | RestoreProgressEvent | CompactionStartEvent | CompactionCompleteEvent | PausedEvent | StoppedEvent | EndedEvent | AdoptedEvent | MissingEvent | MessageEvent;

export interface StreamToken {
  /** Until then it opens the stream. A stream that is open goes on. */
  expiresAt: Timestamp;
  /** For the parameter `token` of `GET …/stream`. */
  token: string;
}

export interface StreamedAnswer {
  /** For a question: the chosen options, by the text of each question. */
  answers?: Record<string, string> | undefined;
  /** `allow`, `deny`, or `cancelled`: the agent does not wait any more. */
  behavior: string;
  by: VerdictSource;
  id: PermissionId;
  /** Why it was denied. */
  message?: string | undefined;
  /** Null: the agent asked outside of a turn. */
  turn: TurnId | null;
  /** A replacement for the tool's input. */
  updatedInput?: unknown | undefined;
  /** Rules that apply from now on. */
  updatedPermissions?: unknown[] | undefined;
}

/** Tenant id must be 1 to 64 letters, digits, '-' or '_'. */
export type TenantId = string;

/** A piece of the agent's text. */
export interface TextDeltaEvent {
  data: DeltaText;
  event: "text_delta";
}

/** A piece of the agent's thinking; also a whole thinking block. */
export interface ThinkingDeltaEvent {
  data: DeltaText;
  event: "thinking_delta";
}

export interface ThinkingOptions {
  budgetTokens?: number | null | undefined;
  type?: string | null | undefined;
}

/** How the agent got its memory back, best tier first. */
export type Tier = "native" | "repaired" | "rebuilt" | "history" | "fresh";

/** The session is unused, and its sandbox will be released. */
export interface TimeoutWarningEvent {
  data: IdleWarning;
  event: "timeout_warning";
}

/** ISO 8601 in UTC, with milliseconds. */
export type Timestamp = string;

/** Tokens by kind, of one or more answers. */
export interface TokenUsage {
  /** The part of the input written to the cache that the service keeps for an hour, which costs more. */
  cacheCreation1hTokens?: number | undefined;
  /** Input that was written to the service's cache. */
  cacheCreationTokens: number;
  /** Input that was read from the service's cache. */
  cacheReadTokens: number;
  /** Input outside the service's cache. */
  inputTokens: number;
  /** Output of the model. */
  outputTokens: number;
}

export interface ToolAnswerReceipt {
  /** Always true: a call that takes no answer any more is refused. */
  answered: boolean;
  id: ToolRequestId;
}

/** A call of a client's tool is closed. */
export interface ToolAnsweredEvent {
  data: AnsweredToolCall;
  event: "tool_answered";
}

/** The agent waits for the output of a client's tool. */
export interface ToolCall {
  /** Null: the call does not expire. */
  expiresAt: Timestamp | null;
  id: ToolRequestId;
  /** The input for the tool. */
  input: unknown;
  /** The tool's name, as the client declared it. */
  tool: string;
  /** The id of the call in the agent's message. */
  toolUseId: string | null;
  /** Null: the agent calls outside of a turn. */
  turn: TurnId | null;
}

/** The outcome of a call. */
export type ToolCallOutcome = "not_started" | "unknown" | "done";

/** A call from an earlier attempt of a turn. */
export interface ToolCallRecord {
  /** The outcome of the call. */
  how: ToolCallOutcome;
  /** The id of the call in the agent's message. */
  id: string;
  /** The tool's name. */
  tool: string;
}

/** What the model got back. */
export interface ToolCallResult {
  /** The text of the result; `[image]` and the like for what is no text. */
  content: string;
  isError: boolean;
  /** True: the results of one message are too long, and the log has the rest of this one. */
  truncated?: boolean | undefined;
}

export interface ToolListAnswer {
  /** The calls that wait for an answer, in the order in which they were made. */
  calls: WaitingToolCall[];
  /** What the session's clients declared. */
  tools: ClientTool[];
}

/** What the tool returned: either of the two. */
export interface ToolOutputRequest {
  /** Why there is no result, for the model. */
  error?: string | null | undefined;
  /** The result: a text, or JSON that the agent gets as text. Null is a result. */
  result?: unknown | undefined;
}

/** One call of a client's tool. */
export type ToolRequestId = string;

/** The agent calls a tool of the client, and waits for the output. */
export interface ToolRequestedEvent {
  data: ToolCall;
  event: "tool_requested";
}

export interface ToolResult {
  /** A text, or blocks of content. */
  content: unknown;
  is_error?: boolean | null | undefined;
  tool_use_id: string;
}

/** The result of a call. */
export interface ToolResultEvent {
  data: ToolResult;
  event: "tool_result";
}

/** What happens to a call that no client answers in time. */
export type ToolTimeoutPolicy = "fail" | "interrupt";

export interface ToolUse {
  id: string;
  input: unknown;
  /** Letters, digits, `-` and `_` only; the agent's message has the original. */
  name: string;
}

/** The agent calls a tool. */
export interface ToolUseEvent {
  data: ToolUse;
  event: "tool_use";
}

/** The source of the files. */
export type TreeOrigin = "live" | "checkpoint";

/** What is wrong, since when. */
export interface Trouble {
  code: string;
  error: string;
  since: Timestamp;
}

export interface TurnComplete {
  /** How many answers of the model it took; null if the agent does not say. */
  numTurns: number | null;
  /** The agent's final text; null if there is none. */
  result: string | null;
}

/** The agent's loop came to its end; its files are not saved yet. */
export interface TurnCompleteEvent {
  data: TurnComplete;
  event: "turn_complete";
}

export interface TurnContinued {
  /** The first attempt was 1. */
  attempt: number;
  /** The calls of earlier attempts, and what became of them. */
  calls: ToolCallRecord[];
  /** The last event that counts. */
  discardAfter: u64;
  turn: TurnId;
}

/** An interrupted turn continues: what came after event `discardAfter` does not count. */
export interface TurnContinuedEvent {
  data: TurnContinued;
  event: "turn_continued";
}

export interface TurnDone {
  checkpoint: number | null;
  sessionId: SessionId;
  status: TurnOutcome;
  turn: TurnId;
}

/** One message and all work until the agent is idle. Also the idempotency key that the agent gets. */
export type TurnId = string;

/** How a turn ended. */
export type TurnOutcome = "done" | "failed" | "interrupted" | "cancelled";

export interface TurnRef {
  turn: TurnId;
}

/** The whole result of a message. */
export interface TurnResult {
  /** The checkpoint after the turn. */
  checkpoint: number | null;
  /** What went wrong. */
  error: Problem | null;
  status: TurnOutcome;
  /** The agent's final text. */
  text: string;
  turn: TurnId;
  /** What the agent says the turn used; null if it did not say. */
  usage: TokenUsage | null;
}

export interface TurnStarted {
  /** `agent`: the agent began by itself. */
  origin?: string | undefined;
  turn: TurnId;
}

/** A turn begins. */
export interface TurnStartedEvent {
  data: TurnStarted;
  event: "turn_started";
}

export interface TurnUsage {
  /** The part of the input written to the cache that the service keeps for an hour, which costs more. */
  cacheCreation1hTokens?: number | undefined;
  /** Input that was written to the service's cache. */
  cacheCreationTokens: number;
  /** Input that was read from the service's cache. */
  cacheReadTokens: number;
  /** Input outside the service's cache. */
  inputTokens: number;
  /** Output of the model. */
  outputTokens: number;
  turn: TurnId;
}

/** The lock was released, or had expired. */
export interface UnlockedEvent {
  data: LockNumber;
  event: "unlocked";
}

/** An entry of a tree that the checkpoint does not hold. */
export interface UnsavedPath {
  /** The path with its root: `workspace/pipe`. */
  path: string;
  /** What it is, or why it was not readable, for a person. */
  what: string;
}

export interface UploadBundleRequest {
  /** A tar archive, plain or gzipped, in base64. */
  bundle: string;
}

export interface UploadedFile {
  /** In base64; at most 50 MiB each and 100 MiB together. */
  content: string;
  path: string;
}

export interface UploadedWorkspaceAnswer {
  /** `Workspace restored to live sandbox` or `Workspace saved as snapshot`. */
  message: string;
  /** How many entries were written. */
  written: number;
}

/** A sum. */
export interface Usage {
  /** The part of the input written to the cache that the service keeps for an hour, which costs more. */
  cacheCreation1hTokens?: number | undefined;
  /** Input that was written to the service's cache. */
  cacheCreationTokens: number;
  /** Input that was read from the service's cache. */
  cacheReadTokens: number;
  /** Null if no model in it has a price. */
  costUsd: number | null;
  firstAt: Timestamp | null;
  /** Input outside the service's cache. */
  inputTokens: number;
  lastAt: Timestamp | null;
  /** Output of the model. */
  outputTokens: number;
  /** Answers of the agent's own loop. */
  rounds: number;
  /** Tokens of all kinds. */
  tokens: number;
  turns: number;
  /** A part of it has no price, which `costUsd` leaves out. */
  unpriced: boolean;
}

/** With `by` a report, without it the list of the Ash API. */
export type UsageAnswer = UsageEventListAnswer | UsageReportAnswer;

/** One number of one turn. */
export interface UsageEvent {
  agentName: AgentName | null;
  createdAt: Timestamp | null;
  /** `input_tokens`, `output_tokens`, `cache_creation_tokens`, `cache_read_tokens` or `message`. */
  eventType: string;
  id: string;
  sessionId: SessionId | null;
  tenantId: TenantId;
  value: number;
}

export interface UsageEventListAnswer {
  events: UsageEvent[];
}

/** The sum of one group, with the fields that name the group. */
export interface UsageGroup {
  agent?: AgentName | null | undefined;
  /** The part of the input written to the cache that the service keeps for an hour, which costs more. */
  cacheCreation1hTokens?: number | undefined;
  /** Input that was written to the service's cache. */
  cacheCreationTokens: number;
  /** Input that was read from the service's cache. */
  cacheReadTokens: number;
  /** Null if no model in it has a price. */
  costUsd: number | null;
  /** In UTC, as 2026-03-31. */
  day?: string | null | undefined;
  firstAt: Timestamp | null;
  /** Input outside the service's cache. */
  inputTokens: number;
  lastAt: Timestamp | null;
  model?: string | null | undefined;
  /** Output of the model. */
  outputTokens: number;
  owner?: OwnerId | null | undefined;
  resources?: Resources | null | undefined;
  /** Answers of the agent's own loop. */
  rounds: number;
  session?: SessionId | null | undefined;
  /** Tokens of all kinds. */
  tokens: number;
  turn?: TurnId | null | undefined;
  turns: number;
  /** A part of it has no price, which `costUsd` leaves out. */
  unpriced: boolean;
}

export interface UsageReportAnswer {
  /** `turn`, `session`, `agent`, `owner`, `model` or `day`. */
  by: string;
  total: UsageReportTotal;
  usage: UsageGroup[];
}

/** What the agent says the turn used. */
export interface UsageReportEvent {
  data: TurnUsage;
  event: "usage";
}

export interface UsageReportTotal {
  /** The part of the input written to the cache that the service keeps for an hour, which costs more. */
  cacheCreation1hTokens?: number | undefined;
  /** Input that was written to the service's cache. */
  cacheCreationTokens: number;
  /** Input that was read from the service's cache. */
  cacheReadTokens: number;
  /** Null if no model in it has a price. */
  costUsd: number | null;
  firstAt: Timestamp | null;
  /** Input outside the service's cache. */
  inputTokens: number;
  lastAt: Timestamp | null;
  /** Output of the model. */
  outputTokens: number;
  resources: Resources;
  /** Answers of the agent's own loop. */
  rounds: number;
  /** Tokens of all kinds. */
  tokens: number;
  turns: number;
  /** A part of it has no price, which `costUsd` leaves out. */
  unpriced: boolean;
}

/** The totals in the form of the Ash API. */
export interface UsageStats {
  totalCacheCreationTokens: number;
  totalCacheReadTokens: number;
  totalComputeSeconds: number;
  totalInputTokens: number;
  totalMessages: number;
  totalOutputTokens: number;
  /** Always 0: the server does not count them. */
  totalToolCalls: number;
}

export interface UsageStatsAnswer {
  stats: UsageStats;
}

/** What closed a request. */
export type VerdictSource = "client" | "policy" | "cancelled";

/** A call that waits, and since when. */
export interface WaitingToolCall {
  /** Null: the call does not expire. */
  expiresAt: Timestamp | null;
  id: ToolRequestId;
  /** The input for the tool. */
  input: unknown;
  requestedAt: Timestamp;
  /** The tool's name, as the client declared it. */
  tool: string;
  /** The id of the call in the agent's message. */
  toolUseId: string | null;
  /** Null: the agent calls outside of a turn. */
  turn: TurnId | null;
}

export interface WithdrawnMessageAnswer {
  /** Always `cancelled`. */
  status: string;
  turn: TurnId;
}

/** A workspace that several sessions can share. */
export interface Workspace {
  agentName: AgentName;
  /** Its newest checkpoint. */
  checkpoint: number | null;
  createdAt: Timestamp;
  id: WorkspaceId;
  owner: OwnerId | null;
  /** How many sessions it has. */
  sessions: number;
  slug: Slug;
  /** `ready` or `deleting`. */
  status: string;
}

export interface WorkspaceAnswer {
  workspace: Workspace;
}

export interface WorkspaceDetailAnswer {
  sessions: WorkspaceMember[];
  workspace: Workspace;
}

/** A directory tree with its checkpoints. Directories are named after this, never after a caller's id. */
export type WorkspaceId = string;

export interface WorkspaceListAnswer {
  workspaces: Workspace[];
}

/** A session of a workspace. */
export interface WorkspaceMember {
  id: SessionId;
  status: SessionStatus;
  title: string | null;
}

/** Another session of the workspace rewound the files of all sessions to checkpoint `to`; they are `checkpoint` now. */
export interface WorkspaceRewind {
  /** Null or left out: the session has been purged. */
  by: SessionId | null;
  /** The checkpoint that the workspace has now. */
  checkpoint: number;
  /** The older checkpoint with the same files. */
  to: number;
}

/** Another session of the workspace rewound the files of all. */
export interface WorkspaceRewoundEvent {
  data: WorkspaceRewind;
  event: "workspace_rewound";
}

export interface WriteFilesRequest {
  files: UploadedFile[];
  /** The folder of the workspace to write to. */
  targetPath?: string | null | undefined;
}

/** What became of one file. */
export interface WrittenFile {
  /** Why it was not written. */
  error?: string | undefined;
  path: string;
  size?: number | undefined;
  written: boolean;
}

export interface WrittenFilesAnswer {
  files: WrittenFile[];
}

export type u64 = number;

/** The query, the body and the answer of every operation. */
export interface Operations {
  /** Name and version */
  getServer: {
    query: undefined;
    body: undefined;
    answer: ServerAnswer;
  };
  /** List agents */
  listAgents: {
    query: undefined;
    body: undefined;
    answer: AgentListAnswer;
  };
  /** Deploy an agent */
  createAgent: {
    query: undefined;
    body: DeployRequest;
    answer: AgentAnswer;
  };
  /** Delete an agent */
  deleteAgent: {
    query: undefined;
    body: undefined;
    answer: DeletedAgentAnswer;
  };
  /** Get an agent */
  getAgent: {
    query: undefined;
    body: undefined;
    answer: AgentAnswer;
  };
  /** Change an agent's settings */
  updateAgent: {
    query: undefined;
    body: AgentPatch;
    answer: AgentAnswer;
  };
  /** Get an agent's settings */
  getAgentConfig: {
    query: undefined;
    body: undefined;
    answer: AgentConfigAnswer;
  };
  /** Merge into an agent's settings */
  updateAgentConfig: {
    query: undefined;
    body: AgentConfigPatch;
    answer: AgentConfigAnswer;
  };
  /** List API keys */
  listApiKeys: {
    query: undefined;
    body: undefined;
    answer: ApiKeyListAnswer;
  };
  /** Create an API key */
  createApiKey: {
    query: undefined;
    body: CreateKeyRequest;
    answer: CreatedApiKeyAnswer;
  };
  /** Delete an API key */
  deleteApiKey: {
    query: undefined;
    body: undefined;
    answer: EmptyAnswer;
  };
  /** List the audit log */
  listAudit: {
    query: {
      /** Only lines about this session. */
      session?: SessionId | null | undefined;
      /** A time or an age. */
      since?: string | null | undefined;
      /** 100 without one. */
      limit?: number | null | undefined;
      /** The `nextCursor` of a page before. */
      cursor?: number | null | undefined;
    };
    body: undefined;
    answer: AuditListAnswer;
  };
  /** List credentials */
  listCredentials: {
    query: undefined;
    body: undefined;
    answer: CredentialListAnswer;
  };
  /** Create a credential */
  storeCredential: {
    query: undefined;
    body: CreateCredentialRequest;
    answer: CreatedCredentialAnswer;
  };
  /** Delete a credential */
  deleteCredential: {
    query: undefined;
    body: undefined;
    answer: EmptyAnswer;
  };
  /** Create an API key of any tenant */
  createTenantApiKey: {
    query: undefined;
    body: CreateTenantKeyRequest;
    answer: CreatedTenantKeyAnswer;
  };
  /** End or purge unused sessions */
  pruneSessions: {
    query: undefined;
    body: PruneRequest;
    answer: PrunedSessionsAnswer;
  };
  /** The retention rules, and what they would remove now */
  getRetention: {
    query: undefined;
    body: undefined;
    answer: RetentionAnswer;
  };
  /** Apply the retention rules now */
  applyRetention: {
    query: undefined;
    body: undefined;
    answer: RetentionAnswer;
  };
  /** List sessions */
  listSessions: {
    query: {
      /** Only sessions of this agent */
      agent?: AgentName | undefined;
      /** Only sessions with this status */
      status?: SessionStatus | undefined;
      /** Only sessions of this workspace */
      workspace?: Slug | undefined;
      /** Only sessions whose id begins so */
      idPrefix?: string | undefined;
      /** Only sessions of this owner */
      owner?: OwnerId | undefined;
      /** Only sessions whose last activity is longer ago: `90s`, `30m`, `24h` or `7d` */
      olderThan?: string | undefined;
      /** Only sessions with activity since then: `90s`, `30m`, `24h` or `7d` */
      newerThan?: string | undefined;
      /** How many; without one, all */
      limit?: number | undefined;
      /** How many to leave out at the beginning */
      offset?: number | undefined;
      /** The `nextCursor` of the page before */
      cursor?: string | undefined;
      /** Accepted; the answer always has the total */
      includeTotal?: boolean | undefined;
    };
    body: undefined;
    answer: SessionListAnswer;
  };
  /** Create a session */
  createSession: {
    query: undefined;
    body: CreateSessionRequest;
    answer: SessionAnswer;
  };
  /** End a session */
  endSession: {
    query: {
      /** Also purges the session. */
      purge?: boolean | undefined;
    };
    body: undefined;
    answer: EndedSessionAnswer;
  };
  /** Get a session with its details */
  getSession: {
    query: undefined;
    body: undefined;
    answer: SessionDetailAnswer;
  };
  /** Replace a session's metadata */
  updateSessionMetadata: {
    query: undefined;
    body: SetMetadataRequest;
    answer: SessionAnswer;
  };
  /** List the agent's documents */
  listArtifacts: {
    query: {
      /** As of this checkpoint; without one, now. */
      checkpoint?: number | null | undefined;
    };
    body: undefined;
    answer: ArtifactListAnswer;
  };
  /** Read a document of the agent */
  getArtifact: {
    query: {
      /** `raw` (the bytes, as without one) or `json`. */
      format?: string | null | undefined;
      /** The checkpoint to read from; 0: the agent's own files. */
      checkpoint?: number | null | undefined;
    };
    body: undefined;
    answer: FileContentAnswer;
  };
  /** List checkpoints */
  listCheckpoints: {
    query: {
      /** 100 without one. */
      limit?: number | null | undefined;
      /** Only checkpoints with lower numbers. */
      before?: number | null | undefined;
    };
    body: undefined;
    answer: CheckpointListAnswer;
  };
  /** Save the files now */
  createCheckpoint: {
    query: undefined;
    body: CreateCheckpointRequest;
    answer: CreatedCheckpointAnswer;
  };
  /** Get a checkpoint */
  getCheckpoint: {
    query: undefined;
    body: undefined;
    answer: CheckpointAnswer;
  };
  /** Files that changed since a checkpoint */
  diffCheckpoint: {
    query: {
      /** Also files that .gitignore excludes, and dependencies. */
      all?: boolean | null | undefined;
      /** Another checkpoint; without one, the current files. */
      to?: number | null | undefined;
    };
    body: undefined;
    answer: CheckpointDiff;
  };
  /** Change a session's options */
  updateSessionConfig: {
    query: undefined;
    body: SessionConfigPatch;
    answer: SessionDetailAnswer;
  };
  /** Read the conversation as items */
  getConversation: {
    query: {
      /** 100 without one. A page of large items has fewer. */
      limit?: number | null | undefined;
      /** Only items after this place: `after` of an item, or `nextAfter` of the page before. */
      after?: u64 | null | undefined;
      /** The conversation as it was at this checkpoint. */
      checkpoint?: number | null | undefined;
      /** Also messages that were withdrawn, and what a rewind or a second attempt superseded. */
      all?: boolean | null | undefined;
    };
    body: undefined;
    answer: ConversationAnswer;
  };
  /** List what happened, in the event types of the Ash API */
  listSessionEvents: {
    query: {
      /** 100 messages or 200 events without one. */
      limit?: number | null | undefined;
      /** Only entries with a higher `sequence`. */
      after?: number | null | undefined;
      /** Of events: only those of this type. */
      type?: string | null | undefined;
      /** Of messages: also those that a rewind superseded. */
      all?: boolean | null | undefined;
    };
    body: undefined;
    answer: SessionEventListAnswer;
  };
  /** Run a command in the sandbox */
  exec: {
    query: undefined;
    body: ExecCommandRequest;
    answer: ExecResult;
  };
  /** List the files of a session */
  getSessionFiles: {
    query: {
      /** False: without caches and temporary folders. */
      includeHidden?: boolean | null | undefined;
      /** As of this checkpoint; without one, now. */
      checkpoint?: number | null | undefined;
    };
    body: undefined;
    answer: FileListAnswer;
  };
  /** Write files */
  writeSessionFiles: {
    query: undefined;
    body: WriteFilesRequest;
    answer: WrittenFilesAnswer;
  };
  /** Delete a file */
  deleteSessionFile: {
    query: undefined;
    body: undefined;
    answer: DeletedFileAnswer;
  };
  /** Read a file */
  getSessionFile: {
    query: {
      /** `raw` (the bytes, as without one) or `json`. */
      format?: string | null | undefined;
      /** The checkpoint to read from; 0: the agent's own files. */
      checkpoint?: number | null | undefined;
    };
    body: undefined;
    answer: FileContentAnswer;
  };
  /** Fork a session */
  forkSession: {
    query: undefined;
    body: ForkRequest;
    answer: SessionAnswer;
  };
  /** Interrupt the running turn */
  interruptSession: {
    query: undefined;
    body: undefined;
    answer: InterruptAnswer;
  };
  /** Release the lock */
  releaseLock: {
    query: undefined;
    body: undefined;
    answer: LockAnswer;
  };
  /** Who holds the lock */
  getLock: {
    query: undefined;
    body: undefined;
    answer: LockAnswer;
  };
  /** Acquire, renew or take over the lock */
  acquireLock: {
    query: undefined;
    body: AcquireLockRequest;
    answer: AcquiredLockAnswer;
  };
  /** Read what the stream sent, in pages */
  getSessionLog: {
    query: {
      /** 200 without one. The frames of one event stay together, also if they are more. */
      limit?: number | null | undefined;
      /** Only events with a higher number: `nextAfter` of the page before. */
      after?: u64 | null | undefined;
    };
    body: undefined;
    answer: SessionLog;
  };
  /** Lines that the agent and its setup wrote */
  getSessionLogs: {
    query: {
      /** Only lines with a higher index; -1 without one. */
      after?: number | null | undefined;
    };
    body: undefined;
    answer: LogListAnswer;
  };
  /** List the messages of the conversation */
  listMessages: {
    query: {
      /** 100 messages or 200 events without one. */
      limit?: number | null | undefined;
      /** Only entries with a higher `sequence`. */
      after?: number | null | undefined;
      /** Of events: only those of this type. */
      type?: string | null | undefined;
      /** Of messages: also those that a rewind superseded. */
      all?: boolean | null | undefined;
    };
    body: undefined;
    answer: MessageListAnswer;
  };
  /** Send a message */
  sendMessage: {
    query: undefined;
    body: SendMessageRequest;
    answer: TurnResult;
  };
  /** Pause a session */
  pauseSession: {
    query: undefined;
    body: undefined;
    answer: SessionAnswer;
  };
  /** List open permission requests and questions */
  listPermissions: {
    query: undefined;
    body: undefined;
    answer: PermissionListAnswer;
  };
  /** Answer a permission request or a question */
  answerPermission: {
    query: undefined;
    body: PermissionAnswerRequest;
    answer: AnsweredPermission;
  };
  /** Read the agent's plan */
  getPlan: {
    query: {
      /** As of this checkpoint; without one, now. */
      checkpoint?: number | null | undefined;
    };
    body: undefined;
    answer: Plan;
  };
  /** List running and waiting messages */
  listQueue: {
    query: undefined;
    body: undefined;
    answer: QueueAnswer;
  };
  /** Reorder the waiting messages */
  reorderQueue: {
    query: undefined;
    body: ReorderQueueRequest;
    answer: QueueAnswer;
  };
  /** Cancel a waiting message */
  withdrawMessage: {
    query: undefined;
    body: undefined;
    answer: WithdrawnMessageAnswer;
  };
  /** Resume a session */
  resumeSession: {
    query: undefined;
    body: SessionConfigPatch;
    answer: ResumedSessionAnswer;
  };
  /** Go back to a checkpoint */
  rewindSession: {
    query: undefined;
    body: RewindRequest;
    answer: RewoundSessionAnswer;
  };
  /** Stop a session */
  stopSession: {
    query: undefined;
    body: undefined;
    answer: SessionAnswer;
  };
  /** Follow a session */
  streamSession: {
    query: {
      /** The id of the last frame that the client has; Last-Event-ID wins. */
      after?: string | null | undefined;
      /** False: without the pieces of messages that are not complete yet. */
      includePartialMessages?: boolean | null | undefined;
      /** A token of `POST …/stream-token`, for clients that cannot send an Authorization header. A header wins. */
      token?: string | null | undefined;
    };
    body: undefined;
    answer: undefined;
  };
  /** Create a token for the stream */
  createStreamToken: {
    query: undefined;
    body: undefined;
    answer: StreamToken;
  };
  /** List the client's tools and the calls that wait */
  listToolCalls: {
    query: undefined;
    body: undefined;
    answer: ToolListAnswer;
  };
  /** Answer a call of a client's tool */
  answerToolCall: {
    query: undefined;
    body: ToolOutputRequest;
    answer: ToolAnswerReceipt;
  };
  /** Download the workspace */
  downloadWorkspace: {
    query: undefined;
    body: undefined;
    answer: undefined;
  };
  /** Unpack an archive into the workspace */
  uploadWorkspace: {
    query: undefined;
    body: UploadBundleRequest;
    answer: UploadedWorkspaceAnswer;
  };
  /** Usage and cost */
  listUsageEvents: {
    query: {
      /** `turn`, `session`, `agent`, `owner`, `model` or `day`. */
      by?: string | null | undefined;
      /** Also accepted as `sessionId`. */
      session?: string | null | undefined;
      /** Also accepted as `agentName`. */
      agent?: AgentName | null | undefined;
      owner?: OwnerId | null | undefined;
      /** A time or an age: `90s`, `30m`, `24h` or `7d`. Also accepted as `after`. */
      since?: string | null | undefined;
      /** A time or an age. Also accepted as `before`. */
      until?: string | null | undefined;
      /** 1000 groups or 100 events without one. */
      limit?: number | null | undefined;
    };
    body: undefined;
    answer: UsageAnswer;
  };
  /** Usage in total */
  getUsageStats: {
    query: {
      /** `turn`, `session`, `agent`, `owner`, `model` or `day`. */
      by?: string | null | undefined;
      /** Also accepted as `sessionId`. */
      session?: string | null | undefined;
      /** Also accepted as `agentName`. */
      agent?: AgentName | null | undefined;
      owner?: OwnerId | null | undefined;
      /** A time or an age: `90s`, `30m`, `24h` or `7d`. Also accepted as `after`. */
      since?: string | null | undefined;
      /** A time or an age. Also accepted as `before`. */
      until?: string | null | undefined;
      /** 1000 groups or 100 events without one. */
      limit?: number | null | undefined;
    };
    body: undefined;
    answer: UsageStatsAnswer;
  };
  /** List named workspaces */
  listWorkspaces: {
    query: undefined;
    body: undefined;
    answer: WorkspaceListAnswer;
  };
  /** Create a named workspace */
  createWorkspace: {
    query: undefined;
    body: CreateWorkspaceRequest;
    answer: WorkspaceAnswer;
  };
  /** Delete a workspace */
  deleteWorkspace: {
    query: undefined;
    body: undefined;
    answer: DeletedWorkspaceAnswer;
  };
  /** Get a workspace and its sessions */
  getWorkspace: {
    query: undefined;
    body: undefined;
    answer: WorkspaceDetailAnswer;
  };
  /** List the checkpoints of a workspace */
  listWorkspaceCheckpoints: {
    query: {
      /** Only checkpoints with lower numbers. */
      before?: number | null | undefined;
      /** 100 without one; more than 1000 is 1000. */
      limit?: number | null | undefined;
    };
    body: undefined;
    answer: CheckpointListAnswer;
  };
  /** List the files of a workspace */
  getWorkspaceFiles: {
    query: {
      /** False: without caches and temporary folders. */
      includeHidden?: boolean | null | undefined;
      /** As of this checkpoint; without one, now. */
      checkpoint?: number | null | undefined;
    };
    body: undefined;
    answer: FileListAnswer;
  };
  /** This document */
  getDocs: {
    query: undefined;
    body: undefined;
    answer: undefined;
  };
  /** This document */
  getDocsJson: {
    query: undefined;
    body: undefined;
    answer: Record<string, unknown>;
  };
  /** This document */
  getDocsYaml: {
    query: undefined;
    body: undefined;
    answer: undefined;
  };
  /** Load and trouble */
  health: {
    query: undefined;
    body: undefined;
    answer: Health;
  };
  /** Metrics for Prometheus */
  getMetrics: {
    query: undefined;
    body: undefined;
    answer: undefined;
  };
  /** This document */
  getOpenApi: {
    query: undefined;
    body: undefined;
    answer: Record<string, unknown>;
  };
}

/** Where every operation is, and whether a request may be repeated: as it is, or with an Idempotency-Key. */
export const operations = {
  getServer: { method: "GET", path: "/", idempotent: true, keyed: false },
  listAgents: { method: "GET", path: "/api/agents", idempotent: true, keyed: false },
  createAgent: { method: "POST", path: "/api/agents", idempotent: false, keyed: true },
  deleteAgent: { method: "DELETE", path: "/api/agents/{name}", idempotent: false, keyed: false },
  getAgent: { method: "GET", path: "/api/agents/{name}", idempotent: true, keyed: false },
  updateAgent: { method: "PATCH", path: "/api/agents/{name}", idempotent: false, keyed: false },
  getAgentConfig: { method: "GET", path: "/api/agents/{name}/config", idempotent: true, keyed: false },
  updateAgentConfig: { method: "PATCH", path: "/api/agents/{name}/config", idempotent: false, keyed: false },
  listApiKeys: { method: "GET", path: "/api/api-keys", idempotent: true, keyed: false },
  createApiKey: { method: "POST", path: "/api/api-keys", idempotent: false, keyed: true },
  deleteApiKey: { method: "DELETE", path: "/api/api-keys/{id}", idempotent: false, keyed: false },
  listAudit: { method: "GET", path: "/api/audit", idempotent: true, keyed: false },
  listCredentials: { method: "GET", path: "/api/credentials", idempotent: true, keyed: false },
  storeCredential: { method: "POST", path: "/api/credentials", idempotent: false, keyed: false },
  deleteCredential: { method: "DELETE", path: "/api/credentials/{id}", idempotent: false, keyed: false },
  createTenantApiKey: { method: "POST", path: "/api/internal/api-keys", idempotent: false, keyed: false },
  pruneSessions: { method: "POST", path: "/api/prune", idempotent: false, keyed: false },
  getRetention: { method: "GET", path: "/api/retention", idempotent: true, keyed: false },
  applyRetention: { method: "POST", path: "/api/retention", idempotent: false, keyed: false },
  listSessions: { method: "GET", path: "/api/sessions", idempotent: true, keyed: false },
  createSession: { method: "POST", path: "/api/sessions", idempotent: false, keyed: true },
  endSession: { method: "DELETE", path: "/api/sessions/{id}", idempotent: false, keyed: false },
  getSession: { method: "GET", path: "/api/sessions/{id}", idempotent: true, keyed: false },
  updateSessionMetadata: { method: "PATCH", path: "/api/sessions/{id}", idempotent: false, keyed: false },
  listArtifacts: { method: "GET", path: "/api/sessions/{id}/artifacts", idempotent: true, keyed: false },
  getArtifact: { method: "GET", path: "/api/sessions/{id}/artifacts/{path}", idempotent: true, keyed: false },
  listCheckpoints: { method: "GET", path: "/api/sessions/{id}/checkpoints", idempotent: true, keyed: false },
  createCheckpoint: { method: "POST", path: "/api/sessions/{id}/checkpoints", idempotent: false, keyed: true },
  getCheckpoint: { method: "GET", path: "/api/sessions/{id}/checkpoints/{n}", idempotent: true, keyed: false },
  diffCheckpoint: { method: "GET", path: "/api/sessions/{id}/checkpoints/{n}/diff", idempotent: true, keyed: false },
  updateSessionConfig: { method: "PATCH", path: "/api/sessions/{id}/config", idempotent: false, keyed: false },
  getConversation: { method: "GET", path: "/api/sessions/{id}/conversation", idempotent: true, keyed: false },
  listSessionEvents: { method: "GET", path: "/api/sessions/{id}/events", idempotent: true, keyed: false },
  exec: { method: "POST", path: "/api/sessions/{id}/exec", idempotent: false, keyed: false },
  getSessionFiles: { method: "GET", path: "/api/sessions/{id}/files", idempotent: true, keyed: false },
  writeSessionFiles: { method: "POST", path: "/api/sessions/{id}/files", idempotent: false, keyed: false },
  deleteSessionFile: { method: "DELETE", path: "/api/sessions/{id}/files/{path}", idempotent: false, keyed: false },
  getSessionFile: { method: "GET", path: "/api/sessions/{id}/files/{path}", idempotent: true, keyed: false },
  forkSession: { method: "POST", path: "/api/sessions/{id}/fork", idempotent: false, keyed: true },
  interruptSession: { method: "POST", path: "/api/sessions/{id}/interrupt", idempotent: false, keyed: false },
  releaseLock: { method: "DELETE", path: "/api/sessions/{id}/lock", idempotent: false, keyed: false },
  getLock: { method: "GET", path: "/api/sessions/{id}/lock", idempotent: true, keyed: false },
  acquireLock: { method: "POST", path: "/api/sessions/{id}/lock", idempotent: false, keyed: false },
  getSessionLog: { method: "GET", path: "/api/sessions/{id}/log", idempotent: true, keyed: false },
  getSessionLogs: { method: "GET", path: "/api/sessions/{id}/logs", idempotent: true, keyed: false },
  listMessages: { method: "GET", path: "/api/sessions/{id}/messages", idempotent: true, keyed: false },
  sendMessage: { method: "POST", path: "/api/sessions/{id}/messages", idempotent: false, keyed: true },
  pauseSession: { method: "POST", path: "/api/sessions/{id}/pause", idempotent: false, keyed: false },
  listPermissions: { method: "GET", path: "/api/sessions/{id}/permissions", idempotent: true, keyed: false },
  answerPermission: { method: "POST", path: "/api/sessions/{id}/permissions/{permission}", idempotent: true, keyed: false },
  getPlan: { method: "GET", path: "/api/sessions/{id}/plan", idempotent: true, keyed: false },
  listQueue: { method: "GET", path: "/api/sessions/{id}/queue", idempotent: true, keyed: false },
  reorderQueue: { method: "PATCH", path: "/api/sessions/{id}/queue", idempotent: false, keyed: false },
  withdrawMessage: { method: "DELETE", path: "/api/sessions/{id}/queue/{turn}", idempotent: false, keyed: false },
  resumeSession: { method: "POST", path: "/api/sessions/{id}/resume", idempotent: false, keyed: false },
  rewindSession: { method: "POST", path: "/api/sessions/{id}/rewind", idempotent: false, keyed: false },
  stopSession: { method: "POST", path: "/api/sessions/{id}/stop", idempotent: false, keyed: false },
  streamSession: { method: "GET", path: "/api/sessions/{id}/stream", idempotent: true, keyed: false },
  createStreamToken: { method: "POST", path: "/api/sessions/{id}/stream-token", idempotent: false, keyed: false },
  listToolCalls: { method: "GET", path: "/api/sessions/{id}/tools", idempotent: true, keyed: false },
  answerToolCall: { method: "POST", path: "/api/sessions/{id}/tools/{call}", idempotent: true, keyed: false },
  downloadWorkspace: { method: "GET", path: "/api/sessions/{id}/workspace", idempotent: true, keyed: false },
  uploadWorkspace: { method: "POST", path: "/api/sessions/{id}/workspace", idempotent: false, keyed: false },
  listUsageEvents: { method: "GET", path: "/api/usage", idempotent: true, keyed: false },
  getUsageStats: { method: "GET", path: "/api/usage/stats", idempotent: true, keyed: false },
  listWorkspaces: { method: "GET", path: "/api/workspaces", idempotent: true, keyed: false },
  createWorkspace: { method: "POST", path: "/api/workspaces", idempotent: false, keyed: false },
  deleteWorkspace: { method: "DELETE", path: "/api/workspaces/{slug}", idempotent: false, keyed: false },
  getWorkspace: { method: "GET", path: "/api/workspaces/{slug}", idempotent: true, keyed: false },
  listWorkspaceCheckpoints: { method: "GET", path: "/api/workspaces/{slug}/checkpoints", idempotent: true, keyed: false },
  getWorkspaceFiles: { method: "GET", path: "/api/workspaces/{slug}/files", idempotent: true, keyed: false },
  getDocs: { method: "GET", path: "/docs", idempotent: true, keyed: false },
  getDocsJson: { method: "GET", path: "/docs/json", idempotent: true, keyed: false },
  getDocsYaml: { method: "GET", path: "/docs/yaml", idempotent: true, keyed: false },
  health: { method: "GET", path: "/health", idempotent: true, keyed: false },
  getMetrics: { method: "GET", path: "/metrics", idempotent: true, keyed: false },
  getOpenApi: { method: "GET", path: "/openapi.json", idempotent: true, keyed: false },
} as const;
