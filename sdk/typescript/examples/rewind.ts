// Every turn leaves a checkpoint of conversation, agent and files: go back to one, or try another way from there.

import { client } from "./connect.js";

const { id } = await client.createSession("default");
await client.sendMessageAndWait(id, "write plan.txt: by train");
await client.sendMessageAndWait(id, "write plan.txt: by plane");

const { files } = await client.diffCheckpoint(id, 1, { to: 2 });
console.log(files.map(({ change, path }) => `${change} ${path}`).join("\n"));

const fork = await client.forkSession(id, { checkpoint: 1 });
await client.resumeSession(fork.id);
console.log(`fork: ${(await client.getSessionFile(fork.id, "plan.txt")).content}`);

const { rewound } = await client.rewindSession(id, 1);
console.log(`rewound: ${(await client.getSessionFile(id, "plan.txt")).content}`);

await client.rewindSession(id, rewound.from ?? 2);
console.log(`and back: ${(await client.getSessionFile(id, "plan.txt")).content}`);
