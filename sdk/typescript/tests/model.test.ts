// A turn with a model that thinks, calls a tool and answers in pieces, while the server dies three times.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { AshClient, AshStreamEvent } from "../src/index.js";
import { assertEachOnce, collect, text, types, wholeIds } from "./support/events.js";
import { ModelServer } from "./support/model-server.js";
import { TestServer } from "./support/server.js";

const SCRIPT = [
  {
    when: { turn: 1 },
    reply: [
      { type: "thinking", thinking: "first the tool" },
      { type: "text", text: "One moment.", pieces: 2 },
      { type: "tool_use", name: "run", input: { command: "until [ -e go ]; do sleep 0.02; done; echo went on" } },
    ],
  },
  { when: { turn: 2 }, reply: [{ type: "text", text: "That is all there is to say.", pieces: 6 }] },
];

let model: ModelServer;
let server: TestServer;
let client: AshClient;

before(async () => {
  model = await ModelServer.start(SCRIPT);
  server = await TestServer.start(model.env);
  client = server.client();
});

after(async () => {
  await server.remove();
  await model.stop();
});

async function crash(): Promise<void> {
  await server.kill();
  await server.restart();
}

test("thoughts, calls and answers come once, and the model is asked once for each", async () => {
  const { id } = await client.createSession("default", { sessionId: "model" });
  const options = { includePartialMessages: true, idempotencyKey: "model-key" };
  const events: AshStreamEvent[] = [];
  const crashes: Record<string, () => Promise<unknown>> = {
    thinking_delta: crash,
    tool_use: () => crash().then(() => client.writeSessionFiles(id, [{ path: "go", content: "" }])),
    tool_result: crash,
  };
  for await (const event of client.sendMessageStream(id, "go on", options)) {
    const isFirst = !types(events).includes(event.type);
    events.push(event);
    if (isFirst) await crashes[event.type]?.();
  }
  assertEachOnce(events);
  assert.equal(text(events), "One moment.That is all there is to say.");
  assert.deepEqual(wholeIds(events), wholeIds(await collect(client.sendMessageStream(id, "go on", options))));
  const results = events.flatMap((event) => (event.type === "tool_result" ? [event.data.content] : []));
  assert.deepEqual(results, ["went on\n"]);
  const report = await client.getUsageReport("session", { session: id });
  assert.equal(report.total.rounds, 2);
});

test("a budget interrupts the turn, and the stream says so", async () => {
  const { id } = await client.createSession("default", { sessionId: "budget" });
  await client.writeSessionFiles(id, [{ path: "go", content: "" }]);
  const events = await collect(client.sendMessageStream(id, "go on", { maxTurns: 1 }));
  const reached = events.flatMap((event) => (event.type === "budget_reached" ? [event.data] : []));
  assert.deepEqual(
    reached.map(({ of, which, limit }) => ({ of, which, limit })),
    [{ of: "turn", which: "maxTurns", limit: 1 }],
  );
  const last = events.at(-1);
  assert.ok(last?.type === "done" && last.data.status === "interrupted", JSON.stringify(last));
});
