// The agent calls a function of this program. The server keeps the call until it is answered. Kill the server and start it
// again, or kill this program and start it again with the id that it printed: the turn goes on.

import { tool } from "../src/index.js";
import { client } from "./connect.js";

const tools = {
  opening_hours: tool<{ day: string }>({
    description: "When our shop is open on a day of the week",
    inputSchema: {
      type: "object",
      properties: { day: { type: "string" } },
      required: ["day"],
    },
    run: ({ day }) => (day === "Sunday" ? "closed" : "9:00 to 17:00"),
  }),
};

const [question = "When is the shop open on Sunday?", given] = process.argv.slice(2);
const id = given ?? (await client.createSession("default", { tools })).id;
console.error(`session ${id}`);

for await (const event of client.sendMessageStream(id, question, { tools, idempotencyKey: `${id}-first` })) {
  if (event.type === "tool_requested") console.log(`the agent asks for ${event.data.tool}`);
  if (event.type === "turn_complete") console.log(event.data.result);
}
