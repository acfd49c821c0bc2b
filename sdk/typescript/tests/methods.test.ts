// Every method of the client, against the real server. The last test names the methods that no other one calls.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { gunzipSync } from "node:zlib";
import {
  type AshClient,
  AshError,
  extractDisplayItems,
  extractStreamDelta,
  extractTextFromEvent,
  isKnownBlock,
  parseSSEStream,
} from "../src/index.js";
import { methods, noteCalls, uncalled } from "./support/calls.js";
import { collect, text, types } from "./support/events.js";
import { eventually } from "./support/eventually.js";
import { TestServer } from "./support/server.js";

const INTERNAL_SECRET = "a-secret-of-the-tests-only";

let server: TestServer;
let client: AshClient;

before(async () => {
  server = await TestServer.start({ ASH_INTERNAL_SECRET: INTERNAL_SECRET });
  client = noteCalls(server.client());
});

after(() => server.remove());

const bytes = (text: string) => new TextEncoder().encode(text);

function hasCode(code: string) {
  return (error: unknown) => {
    assert.ok(error instanceof AshError, String(error));
    assert.equal(error.code, code, error.message);
    return true;
  };
}

async function session(sessionId: string): Promise<string> {
  return (await client.createSession("default", { sessionId })).id;
}

/** A session whose turn runs until `letGo`. */
async function busySession(
  sessionId: string,
): Promise<{ id: string; letGo: () => Promise<void>; turn: Promise<string[]> }> {
  const id = await session(sessionId);
  const turn = collect(client.sendMessageStream(id, "hold go: one two")).then(types);
  await eventually(async () => (await client.getSession(id)).openTurns === 1);
  const letGo = async () => {
    await client.writeSessionFiles(id, [{ path: "go", content: "" }]);
  };
  return { id, letGo, turn };
}

test("agents are deployed from a folder or from files, changed and deleted", async () => {
  const folder = join(server.home, "from-folder");
  await mkdir(folder);
  await writeFile(join(folder, "CLAUDE.md"), "# Folder\n");
  assert.equal((await client.deployAgent("from-folder", folder)).name, "from-folder");
  const files = [{ path: "notes.txt", content: bytes("from a file") }];
  const helper = await client.createAgent("helper", { systemPrompt: "You help.", env: { TEAM: "blue" }, files });
  assert.deepEqual([helper.name, helper.version], ["helper", 1]);
  assert.deepEqual((await client.listAgents()).map(({ name }) => name).sort(), ["from-folder", "helper"]);
  assert.deepEqual((await client.getAgent("helper")).env, { TEAM: "***" });
  assert.deepEqual((await client.updateAgent("helper", { env: { TEAM: "red", ROOM: "1" } })).env, {
    TEAM: "***",
    ROOM: "***",
  });
  assert.deepEqual(await client.updateAgentConfig("helper", { colour: "blue" }), { colour: "blue" });
  assert.deepEqual(await client.getAgentConfig("helper"), { colour: "blue" });
  const { id } = await client.createSession("helper");
  assert.equal((await client.getSessionFile(id, "notes.txt")).content, "from a file");
  await client.deleteAgent("helper");
  await assert.rejects(client.getAgent("helper"), hasCode("agent_not_found"));
});

test("a session is paused, resumed with a receipt, stopped, forked and ended", async () => {
  const id = await session("life");
  await client.sendMessageAndWait(id, "write notes.txt: milk");
  assert.equal((await client.pauseSession(id)).status, "paused");
  const resumed = await client.resumeSession(id);
  assert.deepEqual([resumed.status, resumed.receipt?.lost], ["active", []]);
  assert.equal((await client.stopSession(id)).status, "stopped");
  const again = await client.resumeSession(id, { metadata: undefined, maxTurns: 9 } as object);
  assert.deepEqual([again.receipt?.path, again.receipt?.verified, again.config.maxTurns], ["cold", true, 9]);
  const fork = await client.forkSession(id, { sessionId: "life-2", checkpoint: 1 });
  assert.deepEqual([fork.id, fork.parentSessionId], ["life-2", id]);
  assert.equal((await client.endSession(id)).status, "ended");
  await client.endSession("life-2", { purge: true });
  await assert.rejects(client.getSession("life-2"), hasCode("session_not_found"));
});

test("sessions are listed by agent, status, metadata and page", async () => {
  await session("listed-1");
  await session("listed-2");
  await client.updateSessionMetadata("listed-2", { ticket: "42" });
  const ids = async (list: Promise<Array<{ id: string }>>) => (await list).map(({ id }) => id);
  assert.deepEqual(await ids(client.listSessions({ idPrefix: "listed-", status: "active" })), ["listed-2", "listed-1"]);
  assert.deepEqual(await ids(client.listSessions({ metadata: { ticket: "42" } })), ["listed-2"]);
  assert.ok((await ids(client.listSessions("default"))).includes("listed-1"));
  const page = await client.listSessionsWithTotal({ idPrefix: "listed-", limit: 1 });
  assert.deepEqual([page.total, page.sessions.length], [2, 1]);
  const rest = await client.listSessionsWithTotal({ idPrefix: "listed-", cursor: page.nextCursor ?? undefined });
  assert.deepEqual(
    rest.sessions.map(({ id }) => id),
    ["listed-1"],
  );
});

test("a message is sent as a stream, as a raw response, and as one answer", async () => {
  const id = await session("messages");
  const events = await collect(client.sendMessageStream(id, "slow 1: one two", { includePartialMessages: true }));
  assert.equal(text(events), "one two");
  const messages = events.flatMap((event) => (event.type === "message" ? [event.data] : []));
  assert.equal(messages.map(extractStreamDelta).join(""), "one two");
  assert.deepEqual(
    messages.map(extractTextFromEvent).filter((text) => text !== null),
    ["one two"],
  );
  const response = await client.sendMessage(id, [{ type: "text", text: "run: echo raw" }]);
  const raw = await collect(parseSSEStream(response.body ?? assert.fail("no body")));
  assert.equal(types(raw).at(-1), "done");
  const items = raw.flatMap((event) => (event.type === "message" ? (extractDisplayItems(event.data) ?? []) : []));
  assert.deepEqual(items.map(({ type }) => type).slice(0, 2), ["tool_use", "tool_result"]);
  assert.deepEqual(items[0], { type: "tool_use", content: "run", toolName: "run", toolInput: "command: echo raw" });
  const answer = await client.sendMessageAndWait(id, "run: echo whole");
  assert.deepEqual([answer.status, answer.checkpoint], ["done", 3]);
  assert.deepEqual(
    (await client.listMessages(id, { limit: 1 })).map(({ role }) => role),
    ["user"],
  );
  assert.equal((await client.listMessages(id, { afterSequence: 1, all: true }))[0]?.sequence, 2);
  const [created] = await client.listSessionEvents(id, { type: "lifecycle", limit: 1 });
  assert.equal(created?.sequence, 1);
  assert.ok((await client.listSessionEvents(id, { afterSequence: 1 })).every(({ sequence }) => sequence > 1));
});

test("the same idempotency key is the same message, session, fork, checkpoint and key", async () => {
  const idempotencyKey = "once";
  const id = (await client.createSession("default", { idempotencyKey })).id;
  assert.equal((await client.createSession("default", { idempotencyKey })).id, id);
  const first = await client.sendMessageAndWait(id, "run: echo x >> count; wc -l < count", { idempotencyKey });
  assert.deepEqual(
    await client.sendMessageAndWait(id, "run: echo x >> count; wc -l < count", { idempotencyKey }),
    first,
  );
  assert.equal(
    (await client.forkSession(id, { idempotencyKey })).id,
    (await client.forkSession(id, { idempotencyKey })).id,
  );
  assert.equal(
    await client.createCheckpoint(id, { idempotencyKey }),
    await client.createCheckpoint(id, { idempotencyKey }),
  );
});

test("a session is followed from any event on", async () => {
  const id = await session("followed");
  await client.sendMessageAndWait(id, "slow 1: one two three");
  await client.endSession(id);
  const all = await collect(client.streamSession(id));
  assert.deepEqual([all[0]?.type, all.at(-1)?.type], ["created", "ended"]);
  const middle = all.findIndex(({ type }) => type === "text_delta");
  assert.deepEqual(await collect(client.streamSession(id, { after: all[middle]?.id })), all.slice(middle + 1));
  assert.deepEqual(await collect(client.streamSession(id, { after: all.at(-1)?.id })), []);
  assert.equal(text(await collect(client.streamSession(id, { includePartialMessages: false }))), "");
});

test("waiting messages are listed, reordered and withdrawn, and a turn is interrupted", async () => {
  const { id, turn } = await busySession("queue");
  const waiting = [client.sendMessageAndWait(id, "run: echo a"), client.sendMessageAndWait(id, "run: echo b")];
  const queue = await eventually(async () => {
    const queue = (await client.listQueue(id)).filter(({ status }) => status === "queued");
    return queue.length === 2 && queue;
  });
  const order = queue.map(({ turn }) => turn).reverse();
  assert.deepEqual(
    (await client.reorderQueue(id, order)).filter(({ status }) => status === "queued").map(({ turn }) => turn),
    order,
  );
  const [first] = order;
  assert.equal((await client.withdrawMessage(id, first ?? "")).status, "cancelled");
  await assert.rejects(client.sendMessageAndWait(id, "no", { onBusy: "reject" }), hasCode("session_busy"));
  assert.equal((await client.interruptSession(id)).ok, true);
  assert.equal((await turn).at(-1), "done");
  assert.deepEqual((await Promise.all(waiting)).map(({ status }) => status).sort(), ["cancelled", "done"]);
});

test("a lock keeps other writers out", async () => {
  const id = await session("locked");
  const { token } = await client.acquireLock(id, { ttl: 30, holder: "test" });
  assert.equal((await client.getLock(id))?.holder, "test");
  await assert.rejects(client.sendMessageAndWait(id, "hello"), hasCode("session_locked"));
  assert.equal((await client.sendMessageAndWait(id, "hello", { lock: token })).status, "done");
  assert.equal((await client.acquireLock(id, { ttl: 60, lock: token })).ttl, 60);
  await client.releaseLock(id, token);
  assert.equal(await client.getLock(id), null);
});

test("every turn leaves a checkpoint, which can be compared and returned to", async () => {
  const id = await session("checkpoints");
  await client.sendMessageAndWait(id, "write notes.txt: milk");
  await client.sendMessageAndWait(id, "write more.txt: bread");
  assert.deepEqual(
    (await client.listCheckpoints(id)).map(({ number }) => number),
    [2, 1],
  );
  assert.equal((await client.getCheckpoint(id, 2)).current, true);
  const diff = await client.diffCheckpoint(id, 1, { to: 2 });
  assert.ok(
    diff.files.some(({ path }) => path.endsWith("more.txt")),
    JSON.stringify(diff),
  );
  const { rewound, status } = await client.rewindSession(id, 1);
  assert.deepEqual([rewound.checkpoint, rewound.from, status], [1, 2, "paused"]);
  assert.deepEqual(
    (await client.getSessionFiles(id)).files.map(({ path }) => path),
    ["CLAUDE.md", "notes.txt"],
  );
  assert.equal((await client.rewindSession(id, rewound.from ?? 0)).rewound.checkpoint, 2);
  await client.writeSessionFiles(id, [{ path: "notes.txt", content: bytes("eggs") }]);
  const last = await client.createCheckpoint(id);
  assert.deepEqual((await client.diffCheckpoint(id, last)).files, []);
  assert.ok(last > 2);
});

test("files are written, read, downloaded, deleted and run", async () => {
  const id = await session("files");
  const text = "grüße 🌍\n";
  const { files } = await client.writeSessionFiles(id, [{ path: "a b/ü#?.txt", content: bytes(text) }], "in");
  assert.deepEqual(
    files.map(({ path, written }) => [path, written]),
    [["in/a b/ü#?.txt", true]],
  );
  assert.equal((await client.getSessionFile(id, "in/a b/ü#?.txt")).content, text);
  const downloaded = await client.downloadSessionFile(id, "in/a b/ü#?.txt");
  assert.deepEqual([new TextDecoder().decode(downloaded.buffer), downloaded.source], [text, "sandbox"]);
  assert.equal(await (await client.downloadSessionFileRaw(id, "in/a b/ü#?.txt")).text(), text);
  assert.deepEqual(
    (await client.getSessionFiles(id, { includeHidden: false })).files.map(({ path }) => path),
    ["CLAUDE.md", "in/a b/ü#?.txt"],
  );
  const run = await client.exec(id, "cat in/*/*; exit 3", { timeout: 20_000 });
  assert.deepEqual([run.stdout, run.exitCode], [text, 3]);
  assert.ok(Array.isArray((await client.getSessionLogs(id, { after: -1 })).logs));
  const archive = await client.downloadWorkspace(id);
  assert.ok(gunzipSync(archive).includes(text));
  assert.equal((await client.deleteSessionFile(id, "in/a b/ü#?.txt")).deleted, true);
  assert.ok((await client.uploadWorkspace(id, archive)).written >= 1);
  assert.equal((await client.getSessionFile(id, "in/a b/ü#?.txt")).content, text);
});

test("a plan and documents are read", async () => {
  const id = await session("documents");
  await client.exec(id, "echo 1. look > $ASH_SESSION_DIR/plan.md; echo hi > $ASH_SESSION_DIR/files/notes.txt");
  assert.equal((await client.getPlan(id)).plan, "1. look\n");
  assert.deepEqual(
    (await client.listArtifacts(id)).artifacts.map(({ path }) => path),
    ["notes.txt"],
  );
  assert.equal((await client.getArtifact(id, "notes.txt")).content, "hi\n");
  assert.deepEqual((await client.downloadArtifact(id, "notes.txt")).buffer, bytes("hi\n"));
});

test("options of a session are changed, and budgets hold", async () => {
  const id = await session("options");
  const { config } = await client.updateSessionConfig(id, {
    maxTokens: 1000,
    turnLimits: { maxTurns: 5 },
    limits: { turnSeconds: 60 },
  });
  assert.deepEqual([config.maxTokens, config.turnLimits?.maxTurns], [1000, 5]);
  await assert.rejects(client.updateSessionConfig(id, { modle: "x" } as object), hasCode("unknown_field"));
});

test("usage is counted by turn, session, agent, owner, model and day", async () => {
  const id = await session("usage");
  await client.sendMessageAndWait(id, "hello");
  assert.ok((await client.listUsageEvents({ sessionId: id })).every((event) => event.sessionId === id));
  const report = await client.getUsageReport("session", { agentName: "default", since: "1h" });
  assert.equal(report.by, "session");
  assert.ok(
    report.usage.some(({ session }) => session === id),
    JSON.stringify(report),
  );
  assert.equal(typeof (await client.getUsageStats({ session: id })).totalMessages, "number");
});

test("a request for permission that is not there cannot be answered", async () => {
  const id = await session("permissions");
  assert.deepEqual(await client.listPermissions(id), []);
  const answer = client.answerPermission(id, crypto.randomUUID(), { behavior: "allow" });
  await assert.rejects(answer, hasCode("permission_not_found"));
});

test("sessions share a workspace", async () => {
  assert.equal((await client.createWorkspace("shared", { agent: "default" })).slug, "shared");
  await client.createSession("default", { sessionId: "left", workspace: "shared" });
  await client.createSession("default", { sessionId: "right", workspace: "shared" });
  await client.sendMessageAndWait("left", "write note: hello");
  assert.equal((await client.exec("right", "cat note")).stdout, "hello");
  assert.deepEqual(
    (await client.listWorkspaces()).map(({ slug }) => slug),
    ["shared"],
  );
  assert.deepEqual((await client.getWorkspace("shared")).sessions.map(({ id }) => id).sort(), ["left", "right"]);
  assert.deepEqual(
    (await client.getWorkspaceFiles("shared")).files.map(({ path }) => path),
    ["CLAUDE.md", "note"],
  );
  assert.equal((await client.listWorkspaceCheckpoints("shared", { limit: 5 })).length, 1);
  await client.endSession("left");
  await client.endSession("right");
  await client.deleteWorkspace("shared");
  await assert.rejects(client.getWorkspace("shared"), hasCode("workspace_not_found"));
});

test("keys are made for owners and tenants, listed and deleted", async () => {
  const alice = await client.createApiKey({ label: "alice's", owner: "alice" });
  const hers = server.client({ apiKey: alice.key });
  assert.equal((await hers.createSession("default")).owner, "alice");
  await assert.rejects(hers.listAudit(), hasCode("admin_only"));
  assert.ok((await client.listApiKeys()).some((key) => "owner" in key && key.owner === "alice"));
  await client.deleteApiKey(alice.id);
  await assert.rejects(hers.listSessions(), hasCode("unauthorized"));
  const tenant = await client.createTenantApiKey(INTERNAL_SECRET, { tenantId: "team-a" });
  assert.deepEqual(await server.client({ apiKey: tenant.key }).listSessions(), []);
  await assert.rejects(client.createTenantApiKey("wrong", { tenantId: "team-a" }), hasCode("unauthorized"));
});

test("credentials are stored without being shown, listed, used and deleted", async () => {
  const stored = await client.storeCredential("anthropic", "sk-secret-of-a-test", "research");
  assert.deepEqual([stored.type, stored.label], ["anthropic", "research"]);
  const bedrock = await client.storeBedrockCredential({ accessKeyId: "a", secretAccessKey: "b", region: "c" });
  const listed = await client.listCredentials();
  assert.deepEqual(
    listed.map(({ id }) => id),
    [bedrock.id, stored.id],
  );
  assert.ok(!JSON.stringify(listed).includes("sk-secret"));
  await assert.rejects(client.createSession("default", { credentialId: bedrock.id }), hasCode("option_unsupported"));
  await client.deleteCredential(bedrock.id);
  await client.deleteCredential(stored.id);
  await assert.rejects(client.deleteCredential(stored.id), hasCode("credential_not_found"));
  assert.deepEqual(await client.listCredentials(), []);
});

test("retention and the audit are read", async () => {
  await client.endSession(await session("old"));
  const pruned = await client.pruneSessions({ olderThan: "0s", status: "ended", purge: true, dryRun: true });
  assert.ok(pruned.dryRun && pruned.sessions.some(({ id }) => id === "old"));
  assert.deepEqual((await client.getRetention()).rules, []);
  assert.deepEqual((await client.applyRetention()).sessions, []);
  const { audit } = await client.listAudit({ session: "old", limit: 10 });
  assert.ok(
    audit.some(({ action }) => action === "ended"),
    JSON.stringify(audit),
  );
});

test("the server tells about itself", async () => {
  assert.equal((await client.health()).status, "ok");
  assert.equal((await client.getServer()).name, "ash");
  assert.match(await client.getMetrics(), /^ash_up/m);
  assert.equal((await client.getOpenApi())["openapi"], "3.1.0");
  assert.deepEqual(await client.getDocsJson(), await client.getOpenApi());
  assert.match(await client.getDocsYaml(), /^openapi:/m);
  assert.match(await client.getDocs(), /<script/);
});

test("the conversation and the log are read in pages", async () => {
  const id = await session("conversation");
  await client.sendMessageAndWait(id, "run: echo hi");
  const { items } = await client.getConversation(id, { limit: 10 });
  assert.deepEqual(items.map(({ role }) => role).slice(0, 2), ["user", "assistant"]);
  const calls = items.flatMap(({ blocks }) => blocks.filter(isKnownBlock)).filter(({ type }) => type === "tool_call");
  assert.deepEqual(
    calls.map((call) => call.type === "tool_call" && [call.name, call.result?.content, call.result?.isError]),
    [["run", "hi", false]],
  );
  const [first, second] = items;
  const page = await client.getConversation(id, { limit: 1 });
  assert.deepEqual([page.items, page.nextAfter], [[first], first?.after]);
  const rest = await client.getConversation(id, { after: first?.after, limit: 1 });
  assert.deepEqual(rest.items, [second]);
  const { events } = await client.getSessionLog(id, { limit: 1000 });
  assert.equal(events[0]?.event, "created");
  await client.endSession(id);
  const after = events.at(-1)?.id;
  const followed = await collect(client.streamSession(id, { includePartialMessages: false }));
  assert.deepEqual(
    followed.slice(0, events.length).map(({ type, data, id }) => ({ id, event: type, data })),
    events,
  );
  assert.deepEqual(await collect(client.streamSession(id, { after })), followed.slice(events.length));
});

test("every method was called", () => {
  // These have a file of their own.
  const elsewhere = ["listToolCalls", "answerToolCall", "createStreamToken"];
  assert.deepEqual(
    uncalled().filter((name) => !elsewhere.includes(name)),
    [],
  );
});

test("every operation of the server has a method", () => {
  const document = JSON.parse(readFileSync(new URL("../../../../docs/openapi.json", import.meta.url), "utf8")) as {
    paths: Record<string, Record<string, { operationId: string }>>;
  };
  const operations = Object.values(document.paths).flatMap((path) =>
    Object.values(path).map(({ operationId }) => operationId),
  );
  assert.deepEqual(
    operations.filter((name) => !methods().includes(name)),
    [],
  );
});
