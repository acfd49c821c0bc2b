// A page without a key follows a session with a token.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { followSession } from "../src/browser.js";
import type { AshClient } from "../src/index.js";
import { assertEachOnce, collect, collectAnd, text, types } from "./support/events.js";
import { TestServer } from "./support/server.js";

let server: TestServer;
let client: AshClient;
let serverUrl: string;

before(async () => {
  server = await TestServer.start();
  client = server.client();
  serverUrl = server.url;
});

after(() => server.remove());

test("a token opens the stream of its session, through the death of the server", async () => {
  const { id: sessionId } = await client.createSession("default");
  const token = async () => (await client.createStreamToken(sessionId)).token;
  const following = collect(followSession({ serverUrl, sessionId, token }));
  await collectAnd(
    client.sendMessageStream(sessionId, "hold go: one two three", { includePartialMessages: true }),
    ({ type }) => type === "text_delta",
    async () => {
      await server.kill();
      await server.restart();
      await client.writeSessionFiles(sessionId, [{ path: "go", content: "" }]);
    },
  );
  await client.endSession(sessionId);
  const events = await following;
  assertEachOnce(events);
  assert.deepEqual([text(events), types(events)[0], types(events).at(-1)], ["one two three", "created", "ended"]);
});

test("a token opens no other session, and a wrong one opens none", async () => {
  const [one, other] = [await client.createSession("default"), await client.createSession("default")];
  const { token } = await client.createStreamToken(one.id);
  await assert.rejects(collect(followSession({ serverUrl, sessionId: other.id, token })));
  await assert.rejects(collect(followSession({ serverUrl, sessionId: one.id, token: "ast_wrong" })), {
    statusCode: 401,
  });
});

test("an expired token is replaced", async () => {
  const { id: sessionId } = await client.createSession("default");
  const tokens = ["ast_expired", (await client.createStreamToken(sessionId)).token];
  await client.endSession(sessionId);
  const events = await collect(followSession({ serverUrl, sessionId, token: () => tokens.shift() ?? "" }));
  assert.equal(types(events).at(-1), "ended");
});
