// Tools that run in the client: the agent calls a function of this program, and the server keeps the call until it is
// answered, also across crashes of either side.

import { linkedTo } from "./abort.js";
import type { AshClient } from "./client.js";
import { AshError } from "./errors.js";
import type { AshStreamEvent } from "./events.js";
import type { ClientTool, ToolCall } from "./generated.js";

/** Where and why a tool runs. */
export interface ToolContext {
  sessionId: string;
  /** Stays the same when the call is made again after a crash. */
  callId: string;
  /** Aborts when the client stops to serve the tools, or the server withdraws the call. */
  signal: AbortSignal;
}

export interface Tool {
  description: string;
  /** The JSON Schema of the input. */
  inputSchema: Record<string, unknown>;
  /** Returns the result, anything that JSON can hold. An exception becomes the error that the agent gets. */
  run(input: never, context: ToolContext): unknown;
}

/** Tools by name. */
export type ToolSet = Record<string, Tool>;

interface ToolDefinition<Input> extends Omit<Tool, "run"> {
  run(input: Input, context: ToolContext): unknown;
}

/** A function of this program for the agent. The type of `input` is yours: the server does not check it against the schema. */
export function tool<Input = Record<string, unknown>>(definition: ToolDefinition<Input>): ToolDefinition<Input> {
  return definition;
}

/** Tools as a session's options name them. */
export function declareTools(tools: ToolSet): ClientTool[] {
  return Object.entries(tools).map(([name, { description, inputSchema }]) => ({ name, description, inputSchema }));
}

export interface ServeToolsOptions {
  /** Stops serving. Calls that are not answered stay open. */
  signal?: AbortSignal | undefined;
}

/**
 * Answers the calls of a session until it ends or the signal aborts: those that are open already, and each new one. A call
 * of a tool that is not in `tools` is left to other clients.
 */
export async function serveTools(
  client: AshClient,
  sessionId: string,
  tools: ToolSet,
  options: ServeToolsOptions = {},
): Promise<void> {
  const link = linkedTo(options.signal);
  const runner = new ToolRunner({ client, sessionId, tools, fail: link.abort });
  try {
    await follow(client, sessionId, runner, link.signal);
  } catch (error) {
    if (!options.signal?.aborted) throw error;
  } finally {
    link.unlink();
    runner.stop();
  }
}

async function follow(client: AshClient, sessionId: string, runner: ToolRunner, signal: AbortSignal): Promise<void> {
  // First a place in the log, then the open calls: a call in between shows up in the stream.
  const after = await recentPlace(client, sessionId, signal);
  const { calls } = await client.listToolCalls(sessionId, { signal });
  for (const call of calls) runner.start(call);
  for await (const event of client.streamSession(sessionId, { after, includePartialMessages: false, signal })) {
    runner.hear(event);
  }
  await runner.idle();
}

/** A place near the end of the log, so that a long session is not read again as a whole; undefined: the beginning. */
async function recentPlace(client: AshClient, sessionId: string, signal: AbortSignal): Promise<string | undefined> {
  const { workspace } = await client.getSession(sessionId, { signal });
  // In a shared workspace the newest checkpoint may be that of another session, and name a place in its log.
  if (workspace !== null) return undefined;
  const [newest] = await client.listCheckpoints(sessionId, { limit: 1, signal });
  return newest === undefined ? undefined : String(newest.seq);
}

interface ToolRunnerSetup {
  client: AshClient;
  sessionId: string;
  tools: ToolSet;
  /** Called when an answer cannot be delivered. */
  fail(reason: unknown): void;
}

/** Runs the calls of one session, each once. */
export class ToolRunner {
  readonly #setup: ToolRunnerSetup;
  readonly #running = new Map<string, { abort: AbortController; finished: Promise<void> }>();
  readonly #seen = new Set<string>();

  constructor(setup: ToolRunnerSetup) {
    this.#setup = setup;
  }

  hear(event: AshStreamEvent): void {
    if (event.type === "tool_requested") this.start(event.data);
    if (event.type === "tool_answered") this.#running.get(event.data.id)?.abort.abort();
  }

  start(call: ToolCall): void {
    const { tools } = this.#setup;
    const tool = Object.hasOwn(tools, call.tool) ? tools[call.tool] : undefined;
    if (tool === undefined || this.#seen.has(call.id)) return;
    this.#seen.add(call.id);
    const abort = new AbortController();
    const finished = this.#answer(call, tool, abort.signal)
      .catch((error: unknown) => {
        if (!abort.signal.aborted) this.#setup.fail(error);
      })
      .finally(() => this.#running.delete(call.id));
    this.#running.set(call.id, { abort, finished });
  }

  /** Resolves when every call is answered. */
  async idle(): Promise<void> {
    await Promise.all([...this.#running.values()].map(({ finished }) => finished));
  }

  stop(): void {
    for (const { abort } of this.#running.values()) abort.abort();
  }

  async #answer(call: ToolCall, tool: Tool, signal: AbortSignal): Promise<void> {
    const { client, sessionId } = this.#setup;
    // A stream that is read again shows calls that were answered long ago.
    const { calls } = await client.listToolCalls(sessionId, { signal });
    if (!calls.some(({ id }) => id === call.id)) return;
    const outcome = await run(tool, call, { sessionId, callId: call.id, signal });
    try {
      await client.answerToolCall(sessionId, call.id, outcome, { signal });
    } catch (error) {
      if (!isSettled(error)) throw error;
    }
  }
}

async function run(
  tool: Tool,
  call: ToolCall,
  context: ToolContext,
): Promise<{ result: unknown } | { error: string }> {
  try {
    const result: unknown = await tool.run(call.input as never, context);
    return { result: result ?? null };
  } catch (error) {
    return { error: error instanceof Error ? error.message : String(error) };
  }
}

/** Another client was faster, or the agent does not wait any more. */
function isSettled(error: unknown): boolean {
  const codes = ["tool_answered", "tool_withdrawn", "tool_call_not_found", "session_ended"];
  return error instanceof AshError && codes.includes(error.code);
}
