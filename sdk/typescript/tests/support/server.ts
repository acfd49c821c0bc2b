// A real server for one test file: empty data directory, its own port, nothing of this process's environment.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, existsSync, openSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { AshClient, type AshClientOptions } from "../../src/index.js";
import { eventually } from "./eventually.js";

const given = process.env["ASH_BIN"] ?? "ash";
/** The program under test. */
export const ASH_BIN = given.includes("/") ? resolve(given) : given;

export class TestServer {
  readonly url: string;
  readonly home: string;
  readonly #env: Record<string, string>;
  #process: ChildProcess | undefined;

  private constructor(home: string, port: number, env: Record<string, string>) {
    this.home = home;
    this.url = `http://127.0.0.1:${port}`;
    this.#env = {
      PATH: process.env["PATH"] ?? "",
      HOME: home,
      ASH_DATA_DIR: join(home, "data"),
      ASH_PORT: String(port),
      ASH_ORPHAN_TTL: "60",
      ASH_STOP_GRACE: "1",
      ...env,
    };
  }

  static async start(env: Record<string, string> = {}): Promise<TestServer> {
    const home = await mkdtemp(join(tmpdir(), "ash-sdk-"));
    await mkdir(join(home, "data"), { mode: 0o700 });
    const server = new TestServer(home, await freePort(), env);
    await server.restart();
    return server;
  }

  get apiKey(): string {
    return readFileSync(this.#keyFile, "utf8").trim();
  }

  client(options: Partial<AshClientOptions> = {}): AshClient {
    return new AshClient({ serverUrl: this.url, apiKey: this.apiKey, ...options });
  }

  /** Starts the program, on the same port with the same data as before. */
  async restart(): Promise<void> {
    const log = openSync(this.#log, "a");
    this.#process = spawn(ASH_BIN, ["serve"], { env: this.#env, cwd: this.home, stdio: ["ignore", log, log] });
    closeSync(log);
    const running = this.#process;
    await once(running, "spawn");
    const isReady = async () => (await fetch(`${this.url}/health`)).ok && existsSync(this.#keyFile);
    await eventually(() => running.exitCode !== null || isReady());
    if (running.exitCode !== null) throw new Error(`the server ended: ${this.log()}`);
  }

  /** As a crash: nothing of the process runs on. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** As an operator stops it. */
  async terminate(): Promise<void> {
    await this.#end("SIGTERM");
  }

  /** Ends the server with its sandboxes, and removes its data. */
  async remove(): Promise<void> {
    if (this.#process === undefined) await this.restart();
    await this.terminate();
    await rm(this.home, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
  }

  log(): string {
    return readFileSync(this.#log, "utf8").slice(-2000);
  }

  get #keyFile(): string {
    return join(this.home, "data", "initial-api-key");
  }

  get #log(): string {
    return join(this.home, "server.log");
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const ended = this.#process;
    this.#process = undefined;
    if (ended === undefined || ended.exitCode !== null || ended.signalCode !== null) return;
    ended.kill(signal);
    await once(ended, "exit");
  }
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const address = probe.address();
  probe.close();
  await once(probe, "close");
  if (address === null || typeof address === "string") throw new Error("no port");
  return address.port;
}
