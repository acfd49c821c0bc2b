// Notes which methods of the client were called and answered, so that a test can name those that no test uses.

import { AshClient } from "../../src/index.js";

const called = new Set<string>();

export function methods(): string[] {
  return Object.getOwnPropertyNames(AshClient.prototype).filter((name) => name !== "constructor");
}

export function uncalled(): string[] {
  return methods().filter((name) => !called.has(name));
}

/** From now on. A client's own calls of its other methods do not count. */
export function noteCalls(client: AshClient): AshClient {
  return new Proxy(client, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name, target);
      if (typeof value !== "function") return value;
      called.add(String(name));
      return value.bind(target) as unknown;
    },
  });
}
