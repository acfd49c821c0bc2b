// The events of a stream as the iterators deliver them: `type` is the name of the frame, as in the Ash API's client.

import type { StreamEvent } from "./generated.js";

type Delivered<E> = E extends { event: infer Type; data: infer Data }
  ? {
      type: Type;
      data: Data;
      /** The place in the session's log, after which a stream can be continued. `restore_progress` has none. */
      id?: string;
    }
  : never;

/**
 * An event of a stream. Agents have kinds of blocks and pieces that are not listed here; they come under names of their own:
 * ignore an event whose type you do not know.
 */
export type AshStreamEvent = Delivered<StreamEvent>;
