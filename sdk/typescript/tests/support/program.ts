// A program that uses the client, in a process of its own, so that it can be killed.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

export class Program {
  readonly #process: ChildProcess;
  readonly #ended: Promise<unknown[]>;
  output = "";

  /** `name` is a module of the build, without its ending. */
  constructor(name: string, { url, apiKey }: { url: string; apiKey: string }, ...args: string[]) {
    const file = fileURLToPath(new URL(`../../${name}.js`, import.meta.url));
    const env = { ASH_SERVER_URL: url, ASH_API_KEY: apiKey };
    this.#process = spawn(process.execPath, [file, ...args], { env, stdio: ["ignore", "pipe", "inherit"] });
    this.#process.stdout?.on("data", (bytes) => (this.output += String(bytes)));
    this.#ended = once(this.#process, "close");
  }

  async end(): Promise<string> {
    assert.deepEqual(await this.#ended, [0, null], this.output);
    return this.output;
  }

  async kill(): Promise<void> {
    this.#process.kill("SIGKILL");
    assert.deepEqual(await this.#ended, [null, "SIGKILL"], this.output);
  }
}
