// Functions of the client that the agent calls.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { type AshClient, AshError, type AshStreamEvent, serveTools, tool } from "../src/index.js";
import { collect, collectAnd, toolResults, types } from "./support/events.js";
import { eventually } from "./support/eventually.js";
import { TestServer } from "./support/server.js";

const CALL = 'call weather: {"city": "Oslo"}';

const weather = tool<{ city: string }>({
  description: "The weather of a city",
  inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  run: ({ city }) => `rain in ${city}`,
});

let server: TestServer;
let client: AshClient;

before(async () => {
  server = await TestServer.start();
  client = server.client();
});

after(() => server.remove());

async function session(sessionId: string): Promise<string> {
  return (await client.createSession("default", { sessionId, tools: { weather } })).id;
}

const isRequest = (event: AshStreamEvent) => event.type === "tool_requested";

function results(events: AshStreamEvent[]): unknown[] {
  return toolResults(events).map(({ content }) => content);
}

function hasCode(code: string) {
  return (error: unknown) => error instanceof AshError && error.code === code;
}

test("a stream answers the calls of its tools", async () => {
  const id = await session("answered");
  const { tools } = await client.listToolCalls(id);
  const { run: _, ...declared } = weather;
  assert.deepEqual(tools, [{ name: "weather", ...declared }]);
  const events = await collect(client.sendMessageStream(id, CALL, { tools: { weather } }));
  assert.deepEqual(results(events), ["rain in Oslo"]);
  assert.deepEqual(
    types(events).filter((type) => type.startsWith("tool_")),
    ["tool_use", "tool_requested", "tool_answered", "tool_result"],
  );
  assert.deepEqual((await client.listToolCalls(id)).calls, []);
});

test("two calls of one answer run at the same time", async () => {
  const id = await session("both");
  const cities: string[] = [];
  const meeting = tool<{ city: string }>({
    ...weather,
    run: async ({ city }) => {
      cities.push(city);
      await eventually(() => cities.length === 2);
      return { city, rain: true };
    },
  });
  const message = 'call weather: {"city": "Oslo"} and call weather: {"city": "Rome"}';
  const events = await collect(client.sendMessageStream(id, message, { tools: { weather: meeting } }));
  assert.deepEqual(cities.sort(), ["Oslo", "Rome"]);
  assert.deepEqual(
    results(events).map((text) => JSON.parse(String(text)) as unknown),
    [
      { city: "Oslo", rain: true },
      { city: "Rome", rain: true },
    ],
  );
});

test("an exception of a tool is an error for the agent", async () => {
  const id = await session("thrown");
  const broken = tool({ ...weather, run: () => Promise.reject(new Error("no forecast")) });
  const events = await collect(client.sendMessageStream(id, CALL, { tools: { weather: broken } }));
  assert.deepEqual(toolResults(events), [{ content: "no forecast", isError: true }]);
});

test("a call waits for a client that comes later", async () => {
  const id = await session("later");
  const stream = client.sendMessageStream(id, CALL);
  const serving = new AbortController();
  let served: Promise<void> | undefined;
  const events = await collectAnd(stream, isRequest, async () => {
    served = serveTools(client, id, { weather }, { signal: serving.signal });
  });
  assert.deepEqual(results(events), ["rain in Oslo"]);
  serving.abort();
  await served;
});

test("tools are served until the session ends", async () => {
  const id = await session("served");
  const served = serveTools(client, id, { weather });
  assert.match((await client.sendMessageAndWait(id, CALL)).text ?? "", /rain in Oslo/);
  await client.endSession(id);
  await served;
});

test("the same answer again is the same, another one is refused", async () => {
  const id = await session("twice");
  const turn = collect(client.sendMessageStream(id, CALL));
  const call = await eventually(async () => (await client.listToolCalls(id)).calls[0]);
  assert.deepEqual([call.tool, call.input], ["weather", { city: "Oslo" }]);
  assert.deepEqual(await client.answerToolCall(id, call.id, { result: "rain" }), { id: call.id, answered: true });
  assert.deepEqual(await client.answerToolCall(id, call.id, { result: "rain" }), { id: call.id, answered: true });
  await assert.rejects(client.answerToolCall(id, call.id, { error: "snow" }), hasCode("tool_answered"));
  assert.deepEqual(results(await turn), ["rain"]);
});

test("a call that the agent does not wait for any more cannot be answered", async () => {
  const id = await session("withdrawn");
  let withdrawn = false;
  const endless = tool({
    ...weather,
    run: (_, { signal }) => new Promise(() => signal.addEventListener("abort", () => (withdrawn = true))),
  });
  const turn = collect(client.sendMessageStream(id, CALL, { tools: { weather: endless } }));
  const call = await eventually(async () => (await client.listToolCalls(id)).calls[0]);
  await client.interruptSession(id);
  await turn;
  assert.ok(withdrawn, "the function was told to stop");
  await assert.rejects(client.answerToolCall(id, call.id, { result: "rain" }), hasCode("tool_withdrawn"));
});
