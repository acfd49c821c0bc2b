// The examples do what they say, against the real server.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { eventually } from "./support/eventually.js";
import { Program } from "./support/program.js";
import { TestServer } from "./support/server.js";

let server: TestServer;

before(async () => {
  server = await TestServer.start();
});

after(() => server.remove());

function example(name: string, ...args: string[]): Program {
  return new Program(`examples/${name}`, server, ...args);
}

test("hello: a session rests and comes back with everything", async () => {
  const output = await example("hello").end();
  assert.match(output, /back, and lost: nothing\n.*remember the milk/s);
});

test("durable-stream: not a word is lost or repeated when the server is killed, nor when the program is started again", async () => {
  const sentence = "The server may die between any two of these words and no reader can tell.";
  const { id } = await server.client().createSession("default");
  const first = example("durable-stream", id);
  await eventually(() => first.output.includes("die"));
  await server.kill();
  await server.restart();
  await eventually(() => first.output.includes("words"));
  await first.kill();
  const second = await example("durable-stream", id).end();
  assert.equal(second, `${sentence}\ndone, checkpoint 1\n`);
  assert.ok(sentence.startsWith(first.output), first.output);
});

test("rewind: the session goes back and forth, and a fork another way", async () => {
  const output = await example("rewind").end();
  assert.match(output, /plan.txt\nfork: by train\nrewound: by train\nand back: by plane\n$/);
});

const QUESTION = 'call opening_hours: {"day": "Sunday"}\nrun: until [ -e go ]; do sleep 0.02; done; echo went on';
const ANSWER = /^the agent asks for opening_hours\n.*closed/s;

async function letGo(id: string): Promise<void> {
  await server.client().writeSessionFiles(id, [{ path: "go", content: "" }]);
}

test("client-tool: the agent calls a function of the program, and the server is killed in between", async () => {
  const program = example("client-tool", QUESTION);
  await eventually(() => program.output.includes("asks for"));
  await server.kill();
  await server.restart();
  const [session] = await server.client().listSessions({ status: "active", limit: 1 });
  await letGo(session?.id ?? "");
  assert.match(await program.end(), ANSWER);
});

test("client-tool: the program is killed with the server, and started again", async () => {
  const first = example("client-tool", QUESTION);
  await eventually(() => first.output.includes("asks for"));
  await Promise.all([server.kill(), first.kill()]);
  await server.restart();
  const [session] = await server.client().listSessions({ limit: 1 });
  const second = example("client-tool", QUESTION, session?.id ?? "");
  await letGo(session?.id ?? "");
  assert.match(await second.end(), ANSWER);
});
