// Reads streams in tests, and checks what a stream must never do: lose an event, or show it twice.

import assert from "node:assert/strict";
import { type AshStreamEvent, compareEventIds } from "../../src/index.js";

export async function collect(stream: AsyncIterable<AshStreamEvent>): Promise<AshStreamEvent[]> {
  const events: AshStreamEvent[] = [];
  for await (const event of stream) events.push(event);
  return events;
}

/** Reads a stream to its end, and does something once, right after the first event that fits. */
export async function collectAnd(
  stream: AsyncIterable<AshStreamEvent>,
  fits: (event: AshStreamEvent) => boolean,
  action: () => Promise<void>,
): Promise<AshStreamEvent[]> {
  const events: AshStreamEvent[] = [];
  let done = false;
  for await (const event of stream) {
    events.push(event);
    if (done || !fits(event)) continue;
    done = true;
    await action();
  }
  assert.ok(done, `no event fits: ${events.map(({ type }) => type)}`);
  return events;
}

export function text(events: AshStreamEvent[]): string {
  return events.map((event) => (event.type === "text_delta" ? event.data.delta : "")).join("");
}

/** What the agent got back from its calls, as its messages say. */
export function toolResults(events: AshStreamEvent[]): Array<{ content: unknown; isError: boolean }> {
  const messages = events.flatMap((event) => (event.type === "message" ? [event.data] : []));
  const blocks = messages.flatMap(({ message }) => {
    const { content } = (message ?? {}) as { content?: Array<Record<string, unknown>> };
    return Array.isArray(content) ? content.filter(({ type }) => type === "tool_result") : [];
  });
  return blocks.map(({ content, is_error }) => ({ content, isError: is_error === true }));
}

export function types(events: AshStreamEvent[]): string[] {
  return events.map(({ type }) => type);
}

/** The numbers of an event's id without those of pieces, which the server forgets when the message is complete. */
export function wholeIds(events: AshStreamEvent[]): string[] {
  return events.flatMap(({ id }) => (id === undefined || id.includes(".") ? [] : [id]));
}

export function assertEachOnce(events: AshStreamEvent[]): void {
  const ids = events.flatMap(({ id }) => (id === undefined ? [] : [id]));
  for (const [place, id] of ids.slice(1).entries()) {
    const before = ids[place] ?? "";
    assert.ok(compareEventIds(before, id) < 0, `${before} comes before ${id} in ${ids}`);
  }
}
