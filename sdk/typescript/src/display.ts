// Reads texts and tool calls out of the agent's own messages, the data of `message` events, for programs that show them.

import type { ConversationBlock, KnownBlock } from "./generated.js";

export interface DisplayItem {
  type: "text" | "tool_use" | "tool_result";
  /** The text, the name of the tool, or its output. */
  content: string;
  toolName?: string;
  /** The beginning of the tool's input. */
  toolInput?: string;
}

const LONGEST_INPUT = 200;

type Fields = Record<string, unknown>;

/** The text of an assistant's message; null if the message is of another kind or has no text. */
export function extractTextFromEvent(data: Fields): string | null {
  if (data["type"] !== "assistant") return null;
  const texts = blocks(data)
    .filter((block) => block["type"] === "text")
    .map((block) => text(block["text"]));
  return texts.length > 0 ? texts.join("") : null;
}

/** A piece of text from a message that is not complete yet; null if the event is something else. */
export function extractStreamDelta(data: Fields): string | null {
  const event = fields(data["event"]);
  if (data["type"] !== "stream_event" || event["type"] !== "content_block_delta") return null;
  const delta = fields(event["delta"]);
  return delta["type"] === "text_delta" ? text(delta["text"]) : null;
}

/** What to show of a message: texts, calls and their results; null if there is nothing to show. */
export function extractDisplayItems(data: Fields): DisplayItem[] | null {
  const shown = blocks(data).flatMap((block) => displayItem(data, block));
  return shown.length > 0 ? shown : null;
}

/** True for a text, a thought or a call in a conversation; other blocks are as their sender wrote them. */
export function isKnownBlock(block: ConversationBlock): block is KnownBlock {
  return ["text", "thinking", "tool_call"].includes(text(fields(block)["type"]));
}

function displayItem(message: Fields, block: Fields): DisplayItem[] {
  const kind = `${text(message["type"])} ${text(block["type"])}`;
  switch (kind) {
    case "assistant text":
      return [{ type: "text", content: text(block["text"]) }];
    case "assistant tool_use": {
      const name = text(block["name"]);
      return [{ type: "tool_use", content: name, toolName: name, toolInput: summary(fields(block["input"])) }];
    }
    case "user tool_result": {
      const output = fields(message["tool_use_result"])["stdout"] ?? block["content"];
      return [{ type: "tool_result", content: text(output) }];
    }
    default:
      return [];
  }
}

function blocks(message: Fields): Fields[] {
  const content = fields(message["message"])["content"];
  return Array.isArray(content) ? content.map(fields) : [];
}

function summary(input: Fields): string {
  const whole = Object.entries(input)
    .map(([name, value]) => `${name}: ${text(value)}`)
    .join(", ");
  return whole.length > LONGEST_INPUT ? `${whole.slice(0, LONGEST_INPUT)}...` : whole;
}

function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null ? (value as Fields) : {};
}

function text(value: unknown): string {
  if (typeof value === "string") return value;
  return value === undefined ? "" : JSON.stringify(value);
}
