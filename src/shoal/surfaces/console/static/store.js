// The page's state of one thread: a pure fold over journal events and live events.
//
// `state.items` is the log in order. Items are replaced, never changed, because views compare them by identity.
// Kinds of items: user, begin (the answering agent), assistant, tool, retry, note, end. States of a tool: pending, waiting,
// running, done, failed, stopped, interrupted, denied, expired, cancelled.

import { pathOf, siblingsOf } from "./branches.js";

export function emptyThread(thread) {
  return {
    thread,
    events: [],
    firstSeq: 0,
    lastSeq: 0,
    items: [],
    calls: new Map(), // "turn/call id" -> position in items
    turns: new Map(), // turn id -> {id, agent, model, startedAt, finishedAt, outcome, usage, steps, mark}
    said: new Map(), // turn id -> texts of its finished messages
    siblings: new Map(), // turn id -> {at, tips}: alternatives to the turn
    openTurn: "",
    live: null, // {turn, step, text, thinking, partial}: `partial` if the start of the text is missing
    status: null, // {state, text, sinceMs, untilMs}
  };
}

/** Apply events to a copy of the state. Known events are skipped. */
export function fold(state, events) {
  const fresh = events.filter((event) => event.seq > state.lastSeq);
  if (!fresh.length) return state;
  const known = state.events.concat(fresh);
  if (fresh.some((event) => event.type === "branched")) {
    const shown = foldOn(emptyThread(state.thread), pathOf(known));
    return { ...shown, events: known, firstSeq: known[0].seq, siblings: siblingsOf(known) };
  }
  const draft = foldOn(state, fresh);
  draft.events = known;
  draft.firstSeq = known[0].seq;
  if (known.some((event) => event.type === "branched")) draft.siblings = siblingsOf(known);
  return draft;
}

function foldOn(state, fresh) {
  const draft = {
    ...state,
    items: state.items.slice(),
    calls: new Map(state.calls),
    turns: new Map(state.turns),
    said: new Map(state.said),
  };
  for (const event of fresh) {
    steps[event.type]?.(draft, event, event.data);
    draft.lastSeq = event.seq;
  }
  return draft;
}

/** Return the state with older events prepended. */
export function foldEarlier(state, earlier) {
  const older = earlier.filter((event) => event.seq < state.firstSeq);
  if (!older.length) return state;
  const whole = fold(emptyThread(state.thread), older.concat(state.events));
  return { ...whole, live: state.live, status: state.status };
}

/** Apply a live event (text_delta, thinking_delta, status, tool_output) to a copy of the state. A new step restarts the text. */
export function foldLive(state, event, nowMs = Date.now()) {
  if (event.type === "status") {
    const { state: name, text, seconds } = event.data;
    const status = name === "idle" ? null : { state: name, text: text || "", sinceMs: nowMs, untilMs: nowMs + (seconds || 0) * 1000 };
    return { ...state, status };
  }
  if (event.type === "tool_output") {
    const at = state.calls.get(`${event.turn}/${event.data.call_id}`);
    if (state.items[at]?.state !== "running") return state;
    const sinceMs = nowMs - event.data.seconds * 1000;
    return { ...state, items: state.items.with(at, { ...state.items[at], written: event.data.text, sinceMs }) };
  }
  const field = { text_delta: "text", thinking_delta: "thinking" }[event.type];
  if (!field) return state;
  const { text, step, offset } = event.data;
  const goesOn = state.live && state.live.turn === event.turn && state.live.step === (step || 0);
  const live = goesOn ? state.live : { turn: event.turn, step: step || 0, text: "", thinking: "", partial: offset > 0 };
  return { ...state, live: { ...live, [field]: live[field] + text } };
}

/** Drop the live text after a stream reconnects, because the text may have a gap. */
export function reconnected(state) {
  return { ...state, live: null, status: null };
}

/** Whether `event` directly follows the last known event. */
export function follows(state, event) {
  return state.lastSeq === 0 || event.seq <= state.lastSeq + 1;
}

/** Return the ids of outgoing messages that have reached the journal. */
export function arrivedIds(events) {
  const ids = new Set();
  for (const event of events) {
    if (event.type === "user_message" || event.type === "steered") ids.add(event.data.message_id || "");
  }
  ids.delete("");
  return ids;
}

export function waitingItems(state) {
  return state.items.filter((item) => item.kind === "tool" && item.state === "waiting");
}

// ---- one function per event type ----

function add(draft, event, item) {
  draft.items.push({ key: `e${event.seq}`, seq: event.seq, turn: event.turn, at: event.at, ...item });
}

function said(draft, event, data, steered) {
  add(draft, event, {
    kind: "user",
    text: data.text || "",
    author: data.author || {},
    origin: data.origin || "person",
    attachments: data.attachments || [],
    messageId: data.message_id || "",
    steered,
  });
}

/** Add the row with the agent's name, once per turn and before its content. */
function begin(draft, event) {
  const turn = draft.turns.get(event.turn);
  if (!turn?.model || turn.begun) return; // missing if only the end of the turn is loaded
  draft.turns.set(event.turn, { ...turn, begun: true });
  add(draft, event, { kind: "begin", agent: turn.agent, model: turn.model, key: `begin${event.turn}` });
}

function changeCall(draft, event, callId, change) {
  const id = `${event.turn}/${callId}`;
  if (!draft.calls.has(id)) {
    begin(draft, event);
    draft.calls.set(id, draft.items.length);
    add(draft, event, { kind: "tool", callId, name: change.name || "", arguments: "", state: "pending", approval: null });
    draft.items[draft.items.length - 1].key = id;
  }
  const at = draft.calls.get(id);
  draft.items[at] = { ...draft.items[at], ...change };
  return draft.items[at];
}

function changeTurn(draft, event, change) {
  const turn = draft.turns.get(event.turn) || newTurn(event);
  draft.turns.set(event.turn, { ...turn, ...change(turn) });
}

function newTurn(event) {
  return { id: event.turn, agent: "", model: "", startedAt: event.at, finishedAt: "", outcome: "", usage: {}, steps: [], mark: event.at };
}

function addStep(draft, event, step) {
  changeTurn(draft, event, (turn) => ({ steps: [...turn.steps, { from: turn.mark, to: event.at, ...step }], mark: event.at }));
}

const unsettled = new Set(["pending", "waiting", "running", "allowed"]);

const steps = {
  user_message(draft, event, data) {
    said(draft, event, data, false);
    if (event.turn) changeTurn(draft, event, () => ({ asked: true }));
  },

  steered(draft, event, data) {
    said(draft, event, data, true);
    draft.live = null;
  },

  turn_started(draft, event, data) {
    draft.openTurn = event.turn;
    draft.live = null;
    changeTurn(draft, event, () => ({ agent: data.agent || "", model: data.model || "", speaks: Boolean(data.speaks), startedAt: event.at, mark: event.at }));
  },

  retry_scheduled(draft, event, data) {
    const at = waitingFor(draft, event);
    const item = { kind: "retry", state: "waiting", text: data.message || "", detail: data.detail || "", nextAt: data.next_at, choices: data.choices || [] };
    if (at < 0) add(draft, event, item);
    else draft.items[at] = { ...draft.items[at], ...item };
    draft.live = null;
    addStep(draft, event, { kind: "model", name: "", failed: true });
    addStep(draft, event, { kind: "retry", name: "", from: event.at, to: data.next_at });
    changeTurn(draft, event, () => ({ mark: data.next_at }));
  },

  retry_requested(draft, event, data) {
    settleRetry(draft, event, "asked", data.model || "");
    changeTurn(draft, event, ({ steps: before }) => {
      const waited = before.at(-1);
      return waited?.kind === "retry" ? { steps: before.with(-1, { ...waited, to: event.at }), mark: event.at } : {};
    });
  },

  assistant_message(draft, event, data) {
    settleRetry(draft, event, "over");
    const usage = data.usage || {};
    addStep(draft, event, { kind: "model", name: data.model || "", usage });
    if (data.text || data.thinking) {
      begin(draft, event);
      add(draft, event, { kind: "assistant", text: data.text || "", thinking: data.thinking || "", stop: data.stop || "end" });
    }
    draft.said.set(event.turn, [...(draft.said.get(event.turn) || []), data.text || ""]);
    for (const call of data.tool_calls || []) {
      changeCall(draft, event, call.id, { name: call.name, arguments: call.arguments, at: event.at });
    }
    if (draft.live?.turn === event.turn) draft.live = null;
  },

  tool_started(draft, event, data) {
    changeCall(draft, event, data.call_id, { name: data.name, actions: data.actions || [], state: "running", startedAt: event.at });
  },

  tool_result(draft, event, data) {
    const id = `${event.turn}/${data.call_id}`;
    const before = draft.items[draft.calls.get(id)];
    const refused = before?.approval && before.approval.decision && before.approval.decision !== "allow";
    changeCall(draft, event, data.call_id, {
      name: data.name,
      output: data.shown || data.text || "",
      exitCode: Number(/\[exit code (-?\d{1,10})\]$/.exec((data.text || "").slice(-40))?.[1] || 0),
      state: refused ? before.state : data.staged ? "staged" : ended(data),
      written: "",
      artifact: data.artifact || "",
      artifactBytes: data.artifact_bytes || 0,
      images: data.images || [],
      durationMs: data.duration_ms || (data.stopped && before?.startedAt ? Date.parse(event.at) - Date.parse(before.startedAt) : 0),
      taintedBy: data.tainted_by || "",
    });
    addStep(draft, event, { kind: "tool", name: data.name, from: before?.startedAt || event.at, failed: Boolean(data.is_error || draft.items[draft.calls.get(id)].exitCode) });
  },

  approval_requested(draft, event, data) {
    if (data.item?.staged) {
      changeCall(draft, event, data.call_id, { name: data.tool, state: "staged" });
      if (data.item.number === 1) add(draft, event, { kind: "staged", card: data.item.card, total: data.item.total, files: Boolean(data.item.files), refused: 0 });
      return;
    }
    changeCall(draft, event, data.call_id, {
      name: data.tool,
      state: "waiting",
      approval: {
        id: data.approval_id,
        actions: data.actions || [],
        shown: data.shown || "",
        reason: data.reason || "",
        covers: data.covers || {},
        item: data.item || {},
        expiresAt: data.expires_at,
        decision: "",
      },
    });
    changeTurn(draft, event, () => ({ mark: event.at }));
  },

  approval_decided(draft, event, data) {
    const before = draft.items[draft.calls.get(`${event.turn}/${data.call_id}`)];
    if (before?.state === "staged") {
      const at = draft.items.findLastIndex((item) => item.kind === "staged" && item.turn === event.turn);
      if (at >= 0 && data.decision !== "allow") draft.items[at] = { ...draft.items[at], refused: draft.items[at].refused + 1 };
      changeCall(draft, event, data.call_id, { state: { allow: "accepted", deny: "discarded" }[data.decision] || data.decision });
      return;
    }
    const settled = { allow: "allowed", deny: "denied" }[data.decision] || data.decision;
    const approval = {
      ...(before?.approval || { actions: [], shown: "", reason: "" }),
      id: data.approval_id,
      decision: data.decision,
      scope: data.scope || "once",
      by: data.by || "",
    };
    const state = before && !unsettled.has(before.state) ? before.state : settled;
    changeCall(draft, event, data.call_id, { state, approval });
    addStep(draft, event, { kind: "wait", name: data.decision });
  },

  compacted: (draft, event, data) => add(draft, event, { kind: "note", note: "compacted", text: data.summary || "" }),

  forked(draft, event, data) {
    for (const [id, turn] of draft.turns) draft.turns.set(id, { copied: data.thread, ...turn }); // the thread where the turn ran, even after several forks
    draft.items = draft.items.map((item) => (item.undo ? { copied: data.thread, ...item } : item));
    add(draft, event, { kind: "note", note: "forked", text: "", source: data.thread });
  },

  files_changed: (draft, event, data) => changeTurn(draft, event, () => ({ changed: data.changed || 0 })),

  files_restored(draft, event, data) {
    const at = draft.items.findIndex((item) => item.undo === data.turn);
    const before = draft.items[at]; // the undo that this one undoes
    const root = before ? before.root : data.turn;
    const undoes = before ? !before.undoes : !data.again;
    if (before) draft.items[at] = { ...before, undone: data.id };
    const turn = draft.turns.get(root);
    if (turn) draft.turns.set(root, { ...turn, undone: undoes ? data.id : "" });
    const of = before ? before.restored : turn?.changed;
    const fields = { undo: data.id, root, undoes, undone: "", restored: data.restored, of: of || data.restored, by: data.by };
    add(draft, event, { kind: "note", note: "restored", text: "", ...fields });
  },

  cleared: (draft, event, data) => add(draft, event, { kind: "note", note: "cleared", text: data.reason || "" }),

  limit_reached: (draft, event, data) => add(draft, event, { kind: "note", note: "limit", limit: data.limit, text: data.detail || "" }),

  error: (draft, event, data) => {
    add(draft, event, { kind: "note", note: "error", error: data.kind, text: data.message, detail: data.detail || "" });
  },

  turn_finished(draft, event, data) {
    const reply = data.reply || "";
    const texts = draft.said.get(event.turn) || [];
    const shown = !reply || data.outcome === "failed" || texts.join("").endsWith(reply) || texts.includes(reply);
    if (!shown) begin(draft, event);
    if (!shown) add(draft, event, { kind: "assistant", text: reply, thinking: "", stop: "end" });
    draft.said.delete(event.turn);
    settleRetry(draft, event, data.outcome);
    cancelOpenCalls(draft, event);
    changeTurn(draft, event, () => ({ finishedAt: event.at, outcome: data.outcome, usage: data.usage || {} }));
    if (reply && draft.turns.get(event.turn)?.speaks) add(draft, event, { kind: "spoken", key: `spoken${event.seq}` });
    add(draft, event, { kind: "end", outcome: data.outcome, reply: shown ? texts.at(-1) || "" : reply, key: `end${event.seq}` });
    draft.openTurn = "";
    draft.live = draft.status = null;
  },
};

function ended(data) {
  if (data.stopped) return "stopped";
  if (!data.is_error) return "done";
  return data.interrupted ? "interrupted" : "failed";
}

/** Return the index of the turn's open retry row, or -1. */
function waitingFor(draft, event) {
  return draft.items.findLastIndex((item) => item.kind === "retry" && item.turn === event.turn && ["waiting", "asked"].includes(item.state));
}

function settleRetry(draft, event, state, model = "") {
  const at = waitingFor(draft, event);
  if (at >= 0) draft.items[at] = { ...draft.items[at], state, model };
}

function cancelOpenCalls(draft, event) {
  for (const at of draft.calls.values()) {
    const item = draft.items[at];
    if (item.turn !== event.turn || !unsettled.has(item.state)) continue;
    const approval = item.approval && !item.approval.decision ? { ...item.approval, decision: "cancelled" } : item.approval;
    draft.items[at] = { ...item, state: "cancelled", approval };
  }
}
