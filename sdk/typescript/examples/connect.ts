// The server of the examples: ASH_SERVER_URL and ASH_API_KEY, or the one on this machine.

import { AshClient } from "../src/index.js";

export const client = new AshClient({
  serverUrl: process.env.ASH_SERVER_URL ?? "http://localhost:4100",
  apiKey: process.env.ASH_API_KEY,
});
