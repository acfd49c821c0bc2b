// A session, a message, an answer; then the session rests, and comes back with everything.

import { client } from "./connect.js";

const session = await client.createSession("default");
console.log(`session ${session.id}`);

const first = await client.sendMessageAndWait(session.id, "write notes.txt: remember the milk");
console.log(first.text);

await client.pauseSession(session.id);
const resumed = await client.resumeSession(session.id);
console.log(`back, and lost: ${resumed.receipt?.lost.join(", ") || "nothing"}`);

const second = await client.sendMessageAndWait(session.id, "read notes.txt");
console.log(second.text);

await client.endSession(session.id);
