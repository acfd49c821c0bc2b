// A program that sends a message and answers the agent's calls of `weather`. It prints the type of every event, and notes
// every run of the function in a file. With `watch` it has no function; with `hang` the function never returns.

import { appendFileSync } from "node:fs";
import { AshClient, tool } from "../../src/index.js";

const [sessionId = "", message = "", notes = "", mode = "answer"] = process.argv.slice(2);

const weather = tool<{ city: string }>({
  description: "The weather of a city",
  inputSchema: { type: "object" },
  run: ({ city }, { callId }) => {
    appendFileSync(notes, `${callId}\n`);
    return mode === "hang" ? new Promise(() => {}) : `rain in ${city}`;
  },
});

const client = new AshClient({
  serverUrl: process.env["ASH_SERVER_URL"] ?? "",
  apiKey: process.env["ASH_API_KEY"],
});
const tools = mode === "watch" ? {} : { weather };
const idempotencyKey = `${sessionId}-turn`;
for await (const event of client.sendMessageStream(sessionId, message, { tools, idempotencyKey })) {
  console.log(event.type === "turn_complete" ? event.data.result : event.type);
}
