// The server dies in the middle of turns, and comes back: a stream loses nothing, and repeats nothing.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { AshClient, AshStreamEvent } from "../src/index.js";
import { assertEachOnce, collect, collectAnd, text, types, wholeIds } from "./support/events.js";
import { eventually } from "./support/eventually.js";
import { TestServer } from "./support/server.js";
import { UnreliableNetwork } from "./support/unreliable.js";

let server: TestServer;
let client: AshClient;

before(async () => {
  server = await TestServer.start();
  client = server.client();
});

after(() => server.remove());

/** The same message again, with the same key: the server tells the turn from its beginning. */
async function retold(id: string, content: string, idempotencyKey: string): Promise<AshStreamEvent[]> {
  return collect(client.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey }));
}

async function assertComplete(events: AshStreamEvent[], id: string, content: string, key: string): Promise<void> {
  assertEachOnce(events);
  assert.equal(types(events)[0], "session_start");
  assert.equal(types(events).at(-1), "done");
  assert.deepEqual(wholeIds(events), wholeIds(await retold(id, content, key)));
}

function letGo(id: string) {
  return client.writeSessionFiles(id, [{ path: "go", content: "" }]);
}

const isType = (type: string) => (event: AshStreamEvent) => event.type === type;

async function crash(): Promise<void> {
  await server.kill();
  await server.restart();
}

test("a server that dies after the first piece of a text is not noticed", async () => {
  const [id, content, idempotencyKey] = ["piece", "hold go: one two three four five six", "piece-key"];
  await client.createSession("default", { sessionId: id });
  const stream = client.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey });
  const events = await collectAnd(stream, isType("text_delta"), async () => {
    await crash();
    await letGo(id);
  });
  assert.equal(text(events), "one two three four five six");
  await assertComplete(events, id, content, idempotencyKey);
});

test("a server that dies after every piece of a text is not noticed", async () => {
  const [id, content, idempotencyKey] = ["pieces", "slow 300: one two three four five six seven eight", "pieces-key"];
  await client.createSession("default", { sessionId: id });
  const events: AshStreamEvent[] = [];
  for await (const event of client.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey })) {
    events.push(event);
    if (event.type === "text_delta" && events.filter(isType("text_delta")).length <= 3) await crash();
  }
  assert.equal(text(events), "one two three four five six seven eight");
  await assertComplete(events, id, content, idempotencyKey);
});

test("a server that dies while a tool runs is not noticed", async () => {
  const [id, content, idempotencyKey] = ["call", "run: until [ -e go ]; do sleep 0.02; done; echo went on", "call-key"];
  await client.createSession("default", { sessionId: id });
  const stream = client.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey });
  const events = await collectAnd(stream, isType("tool_use"), async () => {
    await crash();
    await letGo(id);
  });
  const results = events.flatMap((event) => (event.type === "tool_result" ? [event.data.content] : []));
  assert.deepEqual(results, ["went on\n"]);
  await assertComplete(events, id, content, idempotencyKey);
});

test("a server that dies when the message was accepted is not noticed", async () => {
  const [id, content, idempotencyKey] = ["accepted", "run: echo once >> count; cat count", "accepted-key"];
  await client.createSession("default", { sessionId: id });
  const stream = client.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey });
  const events = await collectAnd(stream, isType("session_start"), crash);
  const results = events.flatMap((event) => (event.type === "tool_result" ? [event.data.content] : []));
  assert.deepEqual(results, ["once\n"]);
  await assertComplete(events, id, content, idempotencyKey);
});

test("a server that dies between the answer and its checkpoint is not noticed", async () => {
  const [id, content, idempotencyKey] = ["answered", "slow 1: all said", "answered-key"];
  await client.createSession("default", { sessionId: id });
  const stream = client.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey });
  const events = await collectAnd(stream, isType("turn_complete"), crash);
  assert.equal(text(events), "all said");
  await assertComplete(events, id, content, idempotencyKey);
});

test("a message that waits in the queue survives the death of the server, and runs once", async () => {
  const [id, content, idempotencyKey] = ["queued", "run: echo once >> count; cat count", "queued-key"];
  await client.createSession("default", { sessionId: id });
  const first = collect(client.sendMessageStream(id, "hold go: one two three", { includePartialMessages: true }));
  await eventually(async () => (await client.getSession(id)).openTurns === 1);
  const stream = client.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey });
  const events = await collectAnd(stream, isType("session_start"), async () => {
    await crash();
    await letGo(id);
  });
  const results = events.flatMap((event) => (event.type === "tool_result" ? [event.data.content] : []));
  assert.deepEqual(results, ["once\n"]);
  assert.equal(text(await first), "one two three");
  await assertComplete(events, id, content, idempotencyKey);
});

test("a message that is sent while there is no server arrives when there is one", async () => {
  const id = "early";
  await client.createSession("default", { sessionId: id });
  await server.kill();
  const events = collect(client.sendMessageStream(id, "run: echo once >> count; cat count"));
  await server.restart();
  const results = (await events).flatMap((event) => (event.type === "tool_result" ? [event.data.content] : []));
  assert.deepEqual(results, ["once\n"]);
});

test("a server that is stopped and started again in the middle of a turn is not noticed", async () => {
  const [id, content, idempotencyKey] = ["stopped", "hold go: one two three four five six", "stopped-key"];
  await client.createSession("default", { sessionId: id });
  const stream = client.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey });
  const events = await collectAnd(stream, isType("text_delta"), async () => {
    const stopped = server.terminate();
    await letGo(id).catch(() => {});
    await stopped;
    await server.restart();
    await letGo(id);
  });
  await assertComplete(events, id, content, idempotencyKey);
});

test("a follower of the session reads on through the death of the server", async () => {
  const id = "followed";
  await client.createSession("default", { sessionId: id });
  const following = collect(client.streamSession(id));
  const stream = client.sendMessageStream(id, "hold go: one two three", { includePartialMessages: true });
  await collectAnd(stream, isType("text_delta"), async () => {
    await crash();
    await letGo(id);
  });
  await client.endSession(id);
  const events = await following;
  assertEachOnce(events);
  assert.equal(text(events), "one two three");
  assert.equal(types(events).at(-1), "ended");
  const again = await collect(client.streamSession(id));
  assert.deepEqual(wholeIds(events), wholeIds(again));
});

test("an answer that is awaited as a whole survives the death of the server", async () => {
  const id = "awaited";
  await client.createSession("default", { sessionId: id });
  const answer = client.sendMessageAndWait(id, "hold go: one two three");
  await eventually(async () => (await client.getSession(id)).openTurns === 1);
  await crash();
  await letGo(id);
  const { status, text } = await answer;
  assert.deepEqual({ status, text }, { status: "done", text: "one two three" });
});

test("an outage that lasts longer than the policy allows ends the stream with an error", async () => {
  const id = "outage";
  await client.createSession("default", { sessionId: id });
  const stream = client.sendMessageStream(id, "hold go: one two", {
    includePartialMessages: true,
    retry: { maxElapsedMs: 200 },
  });
  try {
    await assert.rejects(
      collectAnd(stream, isType("text_delta"), () => server.kill()),
      { code: "connection_failed", statusCode: 0 },
    );
  } finally {
    await server.restart();
  }
});

test("a server that dies after any event of a turn is not noticed", async () => {
  const content = "run: echo once >> count; cat count";
  await client.createSession("default", { sessionId: "undisturbed" });
  const undisturbed = await collect(client.sendMessageStream("undisturbed", content, { includePartialMessages: true }));
  for (const place of undisturbed.slice(0, -1).keys()) {
    const [id, idempotencyKey] = [`disturbed-${place}`, `disturbed-${place}`];
    await client.createSession("default", { sessionId: id });
    const events: AshStreamEvent[] = [];
    for await (const event of client.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey })) {
      if (events.push(event) === place + 1) await crash();
    }
    const where = `the server died after ${undisturbed[place]?.type}, event ${place}`;
    assert.deepEqual(types(events), types(undisturbed), where);
    assert.equal(text(events), text(undisturbed), where);
    await assertComplete(events, id, content, idempotencyKey);
  }
});

test("a network that cuts every connection, each a little later, is not noticed", async () => {
  const [id, content, idempotencyKey] = ["cut", `slow 1: ${"ü🌍 ".repeat(20)}`, "cut-key"];
  await client.createSession("default", { sessionId: id });
  for (const step of [97, 1009]) {
    const network = await UnreliableNetwork.start(server.url, step);
    const far = server.client({ serverUrl: network.url, retry: { initialDelayMs: 1, maxDelayMs: 2 } });
    const events = await collect(far.sendMessageStream(id, content, { includePartialMessages: true, idempotencyKey }));
    assert.deepEqual(events, await retold(id, content, idempotencyKey));
    const last = events.at(-1)?.id ?? "";
    const followed: AshStreamEvent[] = [];
    for await (const event of far.streamSession(id)) {
      followed.push(event);
      if (event.id === last) break;
    }
    assertEachOnce(followed);
    assert.deepEqual(
      followed.filter(({ type }) => type === "text_delta"),
      events.filter(({ type }) => type === "text_delta"),
    );
    assert.ok(network.cuts > 5, `${network.cuts} cuts`);
    await network.stop();
  }
});
