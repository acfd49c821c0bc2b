// A model that answers by a script, for turns that the built-in commands cannot make.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { ASH_BIN } from "./server.js";

export class ModelServer {
  readonly url: string;
  readonly #process: ChildProcess;

  private constructor(url: string, process: ChildProcess) {
    this.url = url;
    this.#process = process;
  }

  static async start(script: object[]): Promise<ModelServer> {
    const child = spawn(ASH_BIN, ["dev", "model-server"], {
      env: { PATH: process.env["PATH"] },
      stdio: ["ignore", "pipe", "inherit"],
    });
    const [line] = (await once(createInterface(child.stdout), "line")) as [string];
    const model = new ModelServer(line.replace("listening on ", ""), child);
    const loaded = await fetch(`${model.url}/_script`, { method: "POST", body: JSON.stringify(script) });
    if (!loaded.ok) throw new Error(await loaded.text());
    return model;
  }

  /** The environment of a server that uses this model. */
  get env(): Record<string, string> {
    return { ANTHROPIC_BASE_URL: this.url, ANTHROPIC_API_KEY: "placeholder" };
  }

  async stop(): Promise<void> {
    this.#process.kill();
    await once(this.#process, "exit");
  }
}
