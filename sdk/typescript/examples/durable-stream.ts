// Prints an answer word by word. Kill the server in the middle (kill -9) and start it again: not a word is lost or repeated.
// Kill this program and start it again with the id that it printed: it shows the same turn, and sends nothing twice.

import { client } from "./connect.js";

const [given] = process.argv.slice(2);
const id = given ?? (await client.createSession("default")).id;
console.error(`session ${id}`);

const message = "slow 300: The server may die between any two of these words and no reader can tell.";
const events = client.sendMessageStream(id, message, {
  includePartialMessages: true,
  idempotencyKey: `${id}-first`,
  // How long the server may be away.
  retry: { maxElapsedMs: 600_000 },
});

for await (const event of events) {
  if (event.type === "text_delta") process.stdout.write(event.data.delta);
  if (event.type === "error") console.error(`\n${event.data.error}`);
  if (event.type === "done") console.log(`\n${event.data.status}, checkpoint ${event.data.checkpoint}`);
}
