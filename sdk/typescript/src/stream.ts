// An event stream that survives broken connections and restarts of the server: every event comes once, in order.

import { AshError, CONNECTION_FAILED } from "./errors.js";
import { compareEventIds } from "./event-id.js";
import type { AshStreamEvent } from "./events.js";
import { Backoff, type RetryPolicy } from "./retry.js";
import { type Frame, readFrames, toEvent } from "./sse.js";

/** The server sends a heartbeat every 15 s: a connection that is silent for longer than this is dead. */
const SILENCE_MS = 45_000;

/** `more`: further events; `end`: none; `reopen`: further ones, when the stream is opened again. */
export type Next = "more" | "end" | "reopen";

export interface StreamSource {
  /** Opens the stream, after the event with this id if the server can do that; it may also send earlier ones again. */
  open(lastId: string | undefined): Promise<Response>;
  /** What follows after this event. */
  next(event: AshStreamEvent): Next;
  lastId?: string | undefined;
  retry?: RetryPolicy | false | undefined;
  signal?: AbortSignal | undefined;
}

/** The events of a source. It ends with the last event, or when the server has no more (204). */
export async function* readEvents(source: StreamSource): AsyncGenerator<AshStreamEvent> {
  const position = new Position(source.lastId);
  const backoff = new Backoff(source.retry);
  for (;;) {
    try {
      const response = await source.open(position.lastId);
      if (response.status === 204 || response.body === null) return;
      const next = yield* readOne(response.body, position, source, backoff);
      if (next === "end") return;
      if (next === "more") throw cutOff();
    } catch (error) {
      source.signal?.throwIfAborted();
      await backoff.wait(error, source.signal);
    }
  }
}

/** The events of one connection; returns what the last of them means. */
async function* readOne(
  body: ReadableStream<Uint8Array>,
  position: Position,
  source: StreamSource,
  backoff: Backoff,
): AsyncGenerator<AshStreamEvent, Next> {
  for await (const frame of readFrames(body, SILENCE_MS)) {
    if (!position.advance(frame)) continue;
    backoff.reset();
    const event = toEvent(frame);
    if (event === undefined) continue;
    if (isFarewell(event)) return "more";
    yield event;
    const next = source.next(event);
    if (next !== "more") return next;
  }
  return "more";
}

/** A server that stops says so in a stream, and the turn continues with the next server. */
function isFarewell(event: AshStreamEvent): boolean {
  return event.type === "error" && event.data.code === "server_stopped" && "queued" in event.data;
}

function cutOff(): AshError {
  const message = "The stream broke off, and could not be continued";
  return new AshError({ message, code: CONNECTION_FAILED, statusCode: 0 });
}

class Position {
  lastId: string | undefined;

  constructor(lastId: string | undefined) {
    this.lastId = lastId;
  }

  /** False: the reader has this frame. Frames without an id (heartbeats, progress) are always new. */
  advance({ id }: Frame): boolean {
    if (id === undefined) return true;
    if (this.lastId !== undefined && compareEventIds(id, this.lastId) <= 0) return false;
    this.lastId = id;
    return true;
  }
}
