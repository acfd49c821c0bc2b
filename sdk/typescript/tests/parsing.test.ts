// The parts that need no server: frames, ids, and what to show of a message.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import {
  compareEventIds,
  extractDisplayItems,
  extractStreamDelta,
  extractTextFromEvent,
  parseSSEStream,
} from "../src/index.js";
import { collect } from "./support/events.js";

function streamOf(chunks: Uint8Array[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    },
  });
}

const bytes = (text: string) => new TextEncoder().encode(text);

test("frames are read, wherever the network cuts them", async () => {
  const text =
    ': still here\n\nid: 3\nevent: session_start\ndata: {"turn":"t"}\n\nid: 5.1-1\r\nevent: text_delta\r\ndata: {"delta":"ü🌍"}\r\n\r\n' +
    "retry: 5\nevent: odd\ndata:[1,\ndata: 2]\n\nevent: broken\ndata: {\n\nid: 7\nevent: done\ndata: {}\n\nid: 8\nevent: half\ndata: {}";
  const expected = [
    { type: "session_start", data: { turn: "t" }, id: "3" },
    { type: "text_delta", data: { delta: "ü🌍" }, id: "5.1-1" },
    { type: "odd", data: [1, 2] },
    { type: "done", data: {}, id: "7" },
  ];
  const whole = bytes(text);
  for (let size = 1; size <= 7; size += 1) {
    const chunks = Array.from({ length: Math.ceil(whole.length / size) }, (_, at) =>
      whole.slice(at * size, (at + 1) * size),
    );
    assert.deepEqual(await collect(parseSSEStream(streamOf(chunks))), expected, `in pieces of ${size}`);
  }
});

test("ids are in the order of the log", () => {
  const ordered = ["1", "3", "5", "5.1-1", "5.1", "5.2-1", "5.2-2", "5.2", "5.10", "6-1", "6-2", "6-10", "6", "10"];
  const shuffled = [...ordered].sort();
  assert.deepEqual(shuffled.sort(compareEventIds), ordered);
  for (const id of ordered) assert.equal(compareEventIds(id, id), 0);
});

test("texts, pieces and calls are found in the agent's messages", () => {
  const call = { type: "tool_use", id: "1", name: "run", input: { command: "x".repeat(300), count: 2 } };
  const said = {
    type: "assistant",
    message: { content: [{ type: "text", text: "a" }, call, { type: "text", text: "b" }] },
  };
  assert.equal(extractTextFromEvent(said), "ab");
  const [first, second] = extractDisplayItems(said) ?? [];
  assert.deepEqual(first, { type: "text", content: "a" });
  assert.deepEqual([second?.type, second?.content, second?.toolInput?.length], ["tool_use", "run", 203]);

  const result = {
    type: "user",
    message: { content: [{ type: "tool_result", content: "all" }] },
    tool_use_result: { stdout: "out" },
  };
  assert.deepEqual(extractDisplayItems(result), [{ type: "tool_result", content: "out" }]);

  const piece = {
    type: "stream_event",
    event: { type: "content_block_delta", delta: { type: "text_delta", text: "p" } },
  };
  assert.equal(extractStreamDelta(piece), "p");
  for (const other of [{}, { type: "result", result: "x" }, { type: "assistant", message: { content: "text" } }]) {
    assert.deepEqual(
      [extractTextFromEvent(other), extractStreamDelta(other), extractDisplayItems(other)],
      [null, null, null],
    );
  }
});

test("the generated types are those of the server's document", () => {
  execFileSync(process.execPath, ["scripts/generate.mjs", "--check"], { stdio: "pipe" });
});
