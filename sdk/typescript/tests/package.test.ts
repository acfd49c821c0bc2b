// The package as a stranger gets it: a tarball, installed in an empty folder, used by five lines of JavaScript, and of strict
// TypeScript.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { TestServer } from "./support/server.js";

const root = fileURLToPath(new URL("../..", import.meta.url));
const { name } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { name: string };

let server: TestServer;
let folder: string;

before(async () => {
  server = await TestServer.start();
  folder = await mkdtemp(join(tmpdir(), "ash-sdk-package-"));
});

after(async () => {
  await server.remove();
  await rm(folder, { recursive: true, force: true });
});

function run(program: string, args: string[], cwd: string, env: NodeJS.ProcessEnv = process.env): string {
  return execFileSync(program, args, { cwd, env, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}

test("the tarball installs without dependencies, and works from JavaScript and strict TypeScript", async () => {
  const [packed] = JSON.parse(
    run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", folder], root),
  ) as [{ filename: string }];
  await writeFile(join(folder, "package.json"), JSON.stringify({ private: true, type: "module" }));
  run("npm", ["install", "--offline", "--no-audit", "--no-fund", `./${packed.filename}`], folder);
  const installed = run("npm", ["ls", "--all", "--parseable"], folder).trim().split("\n");
  assert.deepEqual(installed, [folder, join(folder, "node_modules", name)]);

  const program = `
    import { AshClient } from "${name}";
    const client = new AshClient({ serverUrl: process.env.URL, apiKey: process.env.KEY });
    const { id } = await client.createSession("default");
    for await (const event of client.sendMessageStream(id, "slow 1: it works", { includePartialMessages: true }))
      if (event.type === "text_delta") process.stdout.write(event.data.delta);`;
  await writeFile(join(folder, "program.js"), program);
  assert.equal(run(process.execPath, ["program.js"], folder, { URL: server.url, KEY: server.apiKey }), "it works");

  const typed = `
    import { AshClient, type Session, AshError, tool } from "${name}";
    import { followSession } from "${name}/browser";
    const client = new AshClient({ serverUrl: "http://localhost:4100" });
    const session: Session = await client.createSession("default", { model: undefined, tools: { now: tool({ description: "", inputSchema: {}, run: () => Date.now() }) } });
    for await (const event of client.sendMessageStream(session.id, "hello")) if (event.type === "done") console.log(event.data.status.length);
    for await (const event of followSession({ serverUrl: "", sessionId: "", token: "" })) console.log(event.id, event instanceof AshError);`;
  await writeFile(join(folder, "typed.ts"), typed);
  const strict = [
    "--strict",
    "--noUncheckedIndexedAccess",
    "--exactOptionalPropertyTypes",
    "--target",
    "es2022",
    "--lib",
    "es2022,dom,dom.iterable",
  ];
  const options = [...strict, "--module", "nodenext", "--noEmit", "typed.ts"];
  run(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), ...options], folder);
});
