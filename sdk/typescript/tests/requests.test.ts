// How requests fail, are repeated, and are cancelled.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { AshClient, AshError } from "../src/index.js";
import { assertEachOnce, collect, collectAnd, types } from "./support/events.js";
import { eventually } from "./support/eventually.js";
import { TestServer } from "./support/server.js";

let server: TestServer;
let client: AshClient;

before(async () => {
  server = await TestServer.start({ ASH_MAX_SANDBOXES: "1" });
  client = server.client();
});

after(() => server.remove());

test("a refusal has the code, the status and the message of the server", async () => {
  const error: unknown = await client.getSession("missing").catch((error: unknown) => error);
  assert.ok(error instanceof AshError && error instanceof Error);
  assert.deepEqual([error.name, error.code, error.statusCode], ["AshError", "session_not_found", 404]);
  assert.equal(error.message, error.body.error);
});

test("a wrong key is refused", async () => {
  await assert.rejects(server.client({ apiKey: "wrong" }).listSessions(), { code: "unauthorized", statusCode: 401 });
});

test("a server url that is none is refused at once", () => {
  assert.throws(() => new AshClient({ serverUrl: "no url" }), TypeError);
});

test("an answer that is not from the server keeps its status", async () => {
  const elsewhere = server.client({ serverUrl: `${server.url}/elsewhere/` });
  await assert.rejects(elsewhere.health(), { statusCode: 404 });
});

test("an answer that is not JSON is refused at once", async () => {
  const elsewhere = new AshClient({ serverUrl: `${server.url}/docs?` });
  await assert.rejects(elsewhere.getServer(), { code: "invalid_answer", statusCode: 200 });
});

test("a request without a server fails when the time for retries is over", async () => {
  const impatient = server.client({ retry: { maxElapsedMs: 100 } });
  await server.kill();
  try {
    await assert.rejects(impatient.listSessions(), { code: "connection_failed", statusCode: 0 });
    await assert.rejects(client.listSessions({ retry: false }), { code: "connection_failed" });
    await assert.rejects(client.pauseSession("any"), { code: "connection_failed" }, "not repeated: it has no key");
  } finally {
    await server.restart();
  }
});

test("requests that can be repeated wait for the server to come back", async () => {
  await server.kill();
  const list = client.listSessions();
  const created = client.createSession("default", { sessionId: "patient" });
  await server.restart();
  assert.equal((await created).id, "patient");
  await list;
  await client.endSession("patient");
});

test("a request waits while all sandboxes are at work, here or in the server's queue", async () => {
  const { id } = await client.createSession("default", { sessionId: "at-work" });
  const busy = client.sendMessageStream(id, "hold go: one two", { includePartialMessages: true });
  await collectAnd(
    busy,
    ({ type }) => type === "text_delta",
    async () => {
      await assert.rejects(client.createSession("default", { retry: false }), {
        code: "capacity_reached",
        statusCode: 503,
      });
      const repeated = client.createSession("default", { sessionId: "repeated" });
      await client.writeSessionFiles(id, [{ path: "go", content: "" }]);
      await repeated;
    },
  );
  assert.equal((await client.createSession("default", { sessionId: "queued", waitForCapacity: 30 })).id, "queued");
});

test("a signal cancels a request, the wait for a retry, and a stream", async () => {
  const reason = new Error("enough");
  const aborted = AbortSignal.abort(reason);
  await assert.rejects(client.health({ signal: aborted }), reason);
  await assert.rejects(collect(client.sendMessageStream("any", "hello", { signal: aborted })), reason);

  const nowhere = new AshClient({
    serverUrl: "http://127.0.0.1:9",
    retry: { initialDelayMs: 60_000, maxDelayMs: 60_000, maxElapsedMs: 600_000 },
  });
  const waiting = new AbortController();
  const waits = nowhere.health({ signal: waiting.signal });
  setImmediate(() => waiting.abort(reason));
  await assert.rejects(waits, reason);

  const { id } = await client.createSession("default");
  const stop = new AbortController();
  const stream = client.sendMessageStream(id, "hold go: one two", {
    includePartialMessages: true,
    signal: stop.signal,
  });
  await assert.rejects(
    collectAnd(
      stream,
      ({ type }) => type === "text_delta",
      async () => stop.abort(reason),
    ),
    reason,
  );
  await client.endSession(id);
});

test("a loop that is left early closes its connection, and the turn goes on", async () => {
  const { id } = await client.createSession("default");
  for await (const { type } of client.sendMessageStream(id, "hold go: one two", { includePartialMessages: true })) {
    if (type === "text_delta") break;
  }
  await client.writeSessionFiles(id, [{ path: "go", content: "" }]);
  await eventually(async () => (await client.getSession(id)).openTurns === 0);
  assert.equal((await client.getSession(id)).lastText, "one two");
});

test("a turn whose agent dies ends the stream with the reason, and the same message continues it", async () => {
  const { id } = await client.createSession("default");
  const idempotencyKey = "dies";
  const cut = await collect(client.sendMessageStream(id, "run: kill -9 $PPID", { idempotencyKey }));
  const last = cut.at(-1);
  assert.ok(
    last?.type === "error" && last.data.code === "agent_died" && last.data.queued === true,
    JSON.stringify(last),
  );
  const continued = types(await collect(client.sendMessageStream(id, "run: kill -9 $PPID", { idempotencyKey })));
  assert.ok(continued.includes("turn_continued"));
  assert.deepEqual(continued.at(-1), "done");
  await client.endSession(id);
});

test("a turn whose agent dies continues in the same stream if the caller wants that", async () => {
  const { id } = await client.createSession("default");
  const events = await collect(client.sendMessageStream(id, "run: kill -9 $PPID", { continueInterrupted: true }));
  assertEachOnce(events);
  const shown = types(events).filter((type) => ["error", "turn_continued", "done"].includes(type));
  assert.deepEqual(shown, ["error", "turn_continued", "done"]);
});
