// The journal's events on the shown branch, and the alternatives to it.
//
// A `branched` event follows the event that it names. Every other event follows the previous one.

/** Return pairs of a `branched` event's number and the number of the event it follows, oldest first. */
const branchings = (events) => events.filter((event) => event.type === "branched").map((event) => [event.seq, event.data.after]);

/** Return the ranges [first, last] of the branch that ends with event `seq`, newest first. */
function ranges(seq, begun) {
  const found = [];
  for (const [at, after] of begun.toReversed()) {
    if (at > seq) continue;
    found.push([at, seq]);
    seq = after;
  }
  found.push([1, seq]);
  return found;
}

const within = (spans, seq) => spans.some(([first, last]) => first <= seq && seq <= last);

/** Return the events on the branch of the last event. */
export function pathOf(events) {
  const begun = branchings(events);
  if (!begun.length) return events;
  const spans = ranges(events.at(-1).seq, begun);
  return events.filter((event) => within(spans, event.seq));
}

/** Map each turn with alternatives to {at, tips}, where `tips` are the ends of the branches. */
export function siblingsOf(events) {
  const begun = branchings(events);
  const found = new Map();
  if (!begun.length) return found;
  const ends = [...begun.map(([at]) => at - 1), events.at(-1).seq];
  const ways = ends.map((end) => ranges(end, begun));
  const places = new Map(); // the event that a turn follows -> the turns that follow it
  let before = 0;
  for (const [index, event] of events.entries()) {
    if (event.type === "branched") before = event.data.after;
    const isFirst = event.turn && event.turn !== events[index - 1]?.turn && event.type !== "turn_finished";
    if (isFirst) {
      const previous = events[index - 1];
      const after = previous?.type === "branched" ? before : (previous?.seq ?? event.seq - 1);
      places.set(after, [...(places.get(after) || []), { turn: event.turn, seq: event.seq }]);
    }
  }
  for (const turns of places.values()) {
    if (turns.length < 2) continue;
    const tips = turns.map(({ seq }) => ends.findLast((_, number) => within(ways[number], seq)));
    turns.forEach(({ turn }, at) => found.set(turn, { at, tips }));
  }
  return found;
}
