// Reads server-sent events from a byte stream. A frame counts when it is complete: a connection that breaks in the middle
// of a frame delivers nothing of it.

import { connectionFailed } from "./errors.js";
import type { AshStreamEvent } from "./events.js";

/** A frame as it came: `data` is still text. A comment (the server's heartbeat) has none. */
export interface Frame {
  id?: string;
  event: string;
  data: string | undefined;
}

/** The events of a response's body. Frames whose data is not JSON are left out. */
export async function* parseSSEStream(stream: ReadableStream<Uint8Array>): AsyncGenerator<AshStreamEvent> {
  for await (const frame of readFrames(stream)) {
    const event = toEvent(frame);
    if (event) yield event;
  }
}

export function toEvent(frame: Frame): AshStreamEvent | undefined {
  if (frame.data === undefined) return undefined;
  try {
    const event = { type: frame.event, data: JSON.parse(frame.data) as unknown };
    // A server may be newer than these types: events that they do not name pass as they are.
    return (frame.id === undefined ? event : { ...event, id: frame.id }) as AshStreamEvent;
  } catch {
    return undefined;
  }
}

/** The frames of a byte stream; throws a connection failure if it breaks, or is silent for longer than `silenceMs`. */
export async function* readFrames(stream: ReadableStream<Uint8Array>, silenceMs?: number): AsyncGenerator<Frame> {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  const parser = new FrameParser();
  try {
    for (;;) {
      const { done, value } = await readWithin(reader, silenceMs);
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    // Closes the connection if the reader leaves early; a stream that broke rejects, which changes nothing.
    reader.cancel().catch(() => {});
  }
}

type Reader = ReadableStreamDefaultReader<Uint8Array>;

async function readWithin(reader: Reader, silenceMs: number | undefined): ReturnType<Reader["read"]> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, reject) => {
    if (silenceMs === undefined) return;
    timer = setTimeout(() => reject(new Error(`nothing came for ${silenceMs} ms`)), silenceMs);
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } catch (error) {
    throw connectionFailed(error);
  } finally {
    clearTimeout(timer);
  }
}

class FrameParser {
  #rest = "";
  #fields: { id?: string; event?: string; data?: string[] } = {};

  push(text: string): Frame[] {
    // A long line comes in many pieces: it is looked at again only when one of them can end it.
    if (!/[\r\n]/.test(text) && !this.#rest.endsWith("\r")) {
      this.#rest += text;
      return [];
    }
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.#line(line));
  }

  #line(line: string): Frame[] {
    if (line === "") return this.#dispatch();
    if (line.startsWith(":")) return [{ event: "", data: undefined }];
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") (this.#fields.data ??= []).push(value);
    else if (name === "id" || name === "event") this.#fields[name] = value;
    return [];
  }

  #dispatch(): Frame[] {
    const { id, event = "message", data } = this.#fields;
    this.#fields = {};
    if (data === undefined) return [];
    return [{ event, data: data.join("\n"), ...(id === undefined ? {} : { id }) }];
  }
}
