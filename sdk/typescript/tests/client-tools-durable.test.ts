// The server is killed, and the client too, around a call of a client's function: it runs once for each call.

import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { type AshClient, type AshStreamEvent, tool } from "../src/index.js";
import { assertEachOnce, collect, collectAnd, toolResults, types } from "./support/events.js";
import { eventually } from "./support/eventually.js";
import { Program } from "./support/program.js";
import { TestServer } from "./support/server.js";

const CALL = 'call weather: {"city": "Oslo"}';
/** After the call, the turn goes on until a file is there. */
const CALL_AND_HOLD = `${CALL}\nrun: until [ -e go ]; do sleep 0.02; done; echo went on`;

const inputSchema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const declared = [{ name: "weather", description: "The weather of a city", inputSchema }];

let server: TestServer;
let client: AshClient;

before(async () => {
  server = await TestServer.start();
  client = server.client();
});

after(() => server.remove());

async function crash(): Promise<void> {
  await server.kill();
  await server.restart();
}

async function session(sessionId: string): Promise<string> {
  return (await client.createSession("default", { sessionId, tools: declared })).id;
}

/** The tools of a client, which note the calls that ran. */
function noting(during: () => Promise<void> = async () => {}) {
  const ran: string[] = [];
  const weather = tool<{ city: string }>({
    description: "The weather of a city",
    inputSchema,
    run: async ({ city }, { callId }) => {
      ran.push(callId);
      await during();
      return `rain in ${city}`;
    },
  });
  return { tools: { weather }, ran };
}

const isAnswered = ({ type }: AshStreamEvent) => type === "tool_answered";

async function firstCall(stream: AsyncIterable<AshStreamEvent>): Promise<string> {
  for await (const event of stream) if (event.type === "tool_requested") return event.data.id;
  throw new Error("there was no call");
}

/** The turn is complete, every call ran once, and its result is the one of that run. */
function assertOnce(events: AshStreamEvent[], ran: string[], expected: string[]): void {
  assertEachOnce(events);
  const requested = events.flatMap((event) => (event.type === "tool_requested" ? [event.data.id] : []));
  const answered = events.flatMap((event) => (event.type === "tool_answered" ? [event.data] : []));
  const results = toolResults(events).map(({ content }) => content);
  assert.deepEqual([...ran].sort(), [...requested].sort());
  assert.deepEqual(answered.map(({ id }) => id).sort(), [...requested].sort());
  assert.ok(
    answered.every(({ by }) => by === "client"),
    JSON.stringify(answered),
  );
  assert.deepEqual(results, expected);
  const last = events.at(-1);
  assert.ok(last?.type === "done" && last.data.status === "done", JSON.stringify(types(events)));
}

test("the server dies when the client has seen the call, before the function runs", async () => {
  const id = await session("seen");
  const { tools, ran } = noting();
  // The first client only sees the call; the function is that of the second.
  const seen = await firstCall(client.sendMessageStream(id, CALL, { idempotencyKey: "seen" }));
  await crash();
  const events = await collect(client.sendMessageStream(id, CALL, { tools, idempotencyKey: "seen" }));
  assertOnce(events, ran, ["rain in Oslo"]);
  assert.deepEqual(ran, [seen], "the call keeps its id");
});

test("the server dies while the function runs", async () => {
  const id = await session("running");
  const { tools, ran } = noting(crash);
  const events = await collect(client.sendMessageStream(id, CALL, { tools }));
  assertOnce(events, ran, ["rain in Oslo"]);
});

test("the server dies while two functions run", async () => {
  const id = await session("both");
  let crashed: Promise<void> | undefined;
  let waiting = 0;
  const { tools, ran } = noting(async () => {
    waiting += 1;
    await eventually(() => waiting === 2);
    await (crashed ??= crash());
  });
  const message = `${CALL} and call weather: {"city": "Rome"}`;
  const events = await collect(client.sendMessageStream(id, message, { tools }));
  assertOnce(events, ran, ["rain in Oslo", "rain in Rome"]);
});

/** A client whose first answer of a call meets a disaster. */
function disturbed(disaster: (deliver: () => Promise<Response>) => Promise<Response>) {
  const attempts: string[] = [];
  const disturbing: typeof fetch = async (input, init) => {
    const isAnswer = init?.method === "POST" && /\/tools\/[^/]+$/.test(String(input));
    if (!isAnswer) return fetch(input, init);
    attempts.push(String(init.body));
    return attempts.length === 1 ? disaster(() => fetch(input, init)) : fetch(input, init);
  };
  return { far: server.client({ fetch: disturbing }), attempts };
}

test("the server dies when the function has returned, before its answer arrives", async () => {
  const id = await session("returned");
  const { tools, ran } = noting();
  const { far, attempts } = disturbed(async (deliver) => {
    await server.kill();
    const refused = await deliver().catch((error: unknown) => error);
    await server.restart();
    throw refused;
  });
  const events = await collect(far.sendMessageStream(id, CALL, { tools }));
  assertOnce(events, ran, ["rain in Oslo"]);
  assert.equal(attempts.length, 2);
});

/** The answer arrives, and the connection breaks before the client learns that. */
async function acceptAndDie(deliver: () => Promise<Response>): Promise<never> {
  const accepted = await deliver();
  assert.equal(accepted.status, 200);
  await crash();
  throw new TypeError("the connection broke");
}

test("the server dies when it has accepted the answer, before the client learns that", async () => {
  const id = await session("accepted");
  const { tools, ran } = noting();
  let died: Promise<Response> | undefined;
  const { far } = disturbed((deliver) => (died = acceptAndDie(deliver)));
  const stream = far.sendMessageStream(id, CALL_AND_HOLD, { tools });
  const events = await collectAnd(stream, isAnswered, async () => {
    await died?.catch(() => {});
    await letGo(id);
  });
  assertOnce(events, ran, ["rain in Oslo", "went on"]);
});

test("an answer whose receipt is lost is given again, and counts once", async () => {
  const id = await session("again");
  const turn = collect(client.sendMessageStream(id, CALL_AND_HOLD));
  const call = await eventually(async () => (await client.listToolCalls(id)).calls[0]);
  const { far, attempts } = disturbed(acceptAndDie);
  assert.deepEqual(await far.answerToolCall(id, call.id, { result: "rain" }), { id: call.id, answered: true });
  assert.equal(attempts.length, 2);
  await letGo(id);
  assertOnce(await turn, [call.id], ["rain", "went on"]);
});

test("the server dies after the answer, before the turn is done", async () => {
  const id = await session("after");
  const { tools, ran } = noting();
  const stream = client.sendMessageStream(id, CALL_AND_HOLD, { tools });
  const events = await collectAnd(stream, isAnswered, async () => {
    await crash();
    await letGo(id);
  });
  assertOnce(events, ran, ["rain in Oslo", "went on"]);
});

test("the server dies in the next step of the turn", async () => {
  const id = await session("next");
  const { tools, ran } = noting();
  const stream = client.sendMessageStream(id, CALL_AND_HOLD, { tools });
  const isNextStep = (event: AshStreamEvent) => event.type === "tool_use" && event.data.name === "run";
  const events = await collectAnd(stream, isNextStep, async () => {
    await crash();
    await letGo(id);
  });
  assertOnce(events, ran, ["rain in Oslo", "went on"]);
});

async function letGo(id: string): Promise<void> {
  await client.writeSessionFiles(id, [{ path: "go", content: "" }]);
}

function program(id: string, mode: "watch" | "hang" | "answer"): Program {
  return new Program("tests/support/tool-program", server, id, CALL_AND_HOLD, notesOf(id), mode);
}

const notesOf = (id: string) => join(server.home, `${id}.notes`);

function notes(id: string): string[] {
  const text = existsSync(notesOf(id)) ? readFileSync(notesOf(id), "utf8") : "";
  return text.split("\n").filter((line) => line !== "");
}

for (const isServerKilled of [false, true]) {
  const too = isServerKilled ? "-too" : "";
  const who = isServerKilled ? "the client and the server die" : "the client dies";

  const disaster = async (dying: Program) => {
    await dying.kill();
    if (isServerKilled) await crash();
  };

  /** Another process sends the same message, and sees the turn to its end. */
  const finish = async (id: string) => {
    const second = program(id, "answer");
    await letGo(id);
    assert.match(await second.end(), /tool_answered\n.*rain in Oslo.*done\n$/s);
  };

  test(`${who} with a call that has not run: another process runs it, once`, async () => {
    const id = await session(`watched${too}`);
    const first = program(id, "watch");
    await eventually(() => first.output.includes("tool_requested"));
    await disaster(first);
    await finish(id);
    assert.equal(notes(id).length, 1);
  });

  test(`${who} after the answer: another process does not run the call again`, async () => {
    const id = await session(`settled${too}`);
    const first = program(id, "answer");
    await eventually(() => first.output.includes("tool_answered"));
    await disaster(first);
    await finish(id);
    assert.equal(notes(id).length, 1);
  });

  test(`${who} while the function runs: another process gets the same call`, async () => {
    const id = await session(`hanging${too}`);
    const first = program(id, "hang");
    await eventually(() => notes(id).length === 1);
    await disaster(first);
    await finish(id);
    const [callId] = notes(id);
    assert.deepEqual(notes(id), [callId, callId]);
  });
}
