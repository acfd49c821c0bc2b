// A network that breaks: it passes bytes to a real server and back, and cuts each connection after some bytes of its answer,
// later every time.

import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server } from "node:net";

export class UnreliableNetwork {
  readonly #server: Server;
  /** How many connections were cut. */
  cuts = 0;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(target: string, step: number): Promise<UnreliableNetwork> {
    const { hostname, port } = new URL(target);
    const server = createServer((near) => {
      const far = connect(Number(port), hostname);
      let left = (network.cuts + 1) * step;
      far.on("data", (bytes) => {
        near.write(bytes.subarray(0, left));
        left -= bytes.length;
        if (left > 0) return;
        network.cuts += 1;
        far.destroy();
        near.destroySoon();
      });
      near.on("data", (bytes) => far.write(bytes));
      for (const [one, other] of [
        [near, far],
        [far, near],
      ] as const) {
        one.on("error", () => other.destroy());
        one.on("close", () => other.destroySoon());
      }
    });
    const network = new UnreliableNetwork(server.listen(0, "127.0.0.1"));
    await once(server, "listening");
    return network;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    this.#server.close();
    await once(this.#server, "close");
  }
}
