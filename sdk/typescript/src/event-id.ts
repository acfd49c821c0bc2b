// The order of event ids. A stream that is sent again from its beginning shows the same ids, so a reader can leave out
// what it has.
//
// `42` is event 42, `41.7` the seventh piece after event 41, and `42-1` the first of several frames of event 42, whose
// last frame is `42`.

/** Negative: `a` comes before `b` in the log; 0: the same frame. */
export function compareEventIds(a: string, b: string): number {
  const [left, right] = [parts(a), parts(b)];
  return left.event - right.event || left.piece - right.piece || order(left.frame, right.frame);
}

function parts(id: string): { event: number; piece: number; frame: number } {
  const [place = "", frame] = id.split("-");
  const [event, piece] = place.split(".");
  return { event: Number(event), piece: Number(piece ?? 0), frame: frame === undefined ? Infinity : Number(frame) };
}

// Not a difference: two complete frames are equal, and Infinity - Infinity is not 0.
function order(a: number, b: number): number {
  return a === b ? 0 : a < b ? -1 : 1;
}
