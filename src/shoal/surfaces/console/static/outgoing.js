// Messages on their way: what was written here and is not in the journal yet. Pure; the session does the sending.
//
// state      meaning                                              what moves it on
// sending    the request is under way                             its answer
// offline    the server was not reached                           the next time it is: sent again under the same id
// accepted   the server has it; it waits for its turn             the event with its id
// busy       the server's mailbox is full                         the person tries again
// refused    the server did not take it, or took it back          the person tries again or drops it

const STORED = "shoal.outgoing";

/** `choice` is who is to answer in a new thread: `{agent, model}`, or nothing. */
export function newMessage(thread, text, kind, attachments, choice = null, nowMs = Date.now()) {
  return { id: newId(nowMs), thread, text, kind, attachments, choice, state: "offline", error: "", acceptedMs: 0 };
}

/** An id that sorts by time and that nobody else makes; works without TLS, where randomUUID does not. */
export function newId(nowMs = Date.now()) {
  const random = crypto.getRandomValues(new Uint32Array(2));
  return `${nowMs.toString(36)}-${[...random].map((part) => part.toString(36)).join("")}`;
}

export function change(messages, id, fields) {
  return messages.map((message) => (message.id === id ? { ...message, ...fields } : message));
}

export function without(messages, ids) {
  return messages.some((message) => ids.has(message.id)) ? messages.filter((message) => !ids.has(message.id)) : messages;
}

/** The next message of a thread to send: the oldest, unless one before it is under way. */
export function nextToSend(messages, thread) {
  const open = messages.find((message) => message.thread === thread && ["sending", "offline"].includes(message.state));
  return open?.state === "offline" ? open : null;
}

/** What a failed request makes of a message. */
export function afterFailure(error) {
  if (error.status === 0 || error.status >= 500 || error.status === 401) return { state: "offline", error: "" };
  if (error.status === 429) return { state: "busy", error: "The agent has enough waiting already." };
  return { state: "refused", error: error.message };
}

/**
 * Messages that the server took and no longer has: nothing of their thread runs or waits, everything it journaled is
 * known here, and they were accepted before `askedMs`, when the thread's state was asked for.
 */
export function takenBack(messages, info, view, askedMs) {
  const idle = !info.open_turn && !info.queued && view && !view.openTurn && view.lastSeq >= info.last_seq;
  const lost = (message) => message.thread === info.thread && message.state === "accepted" && message.acceptedMs < askedMs;
  if (!idle || !messages.some(lost)) return messages;
  return messages.map((message) =>
    lost(message) ? { ...message, state: "refused", error: "This was taken out of the queue before the agent read it." } : message,
  );
}

/** What was kept over a reload. A request that was under way is sent again; its id keeps it from counting twice. */
export function restore(storage) {
  try {
    const kept = JSON.parse(storage.getItem(STORED) || "[]");
    return kept.map((message) => ({ ...message, state: message.state === "sending" ? "offline" : message.state }));
  } catch {
    return [];
  }
}

/** Keep them over a reload; those with files that are not on the server yet are too large for that. */
export function keep(storage, messages) {
  try {
    storage.setItem(STORED, JSON.stringify(messages.filter((message) => message.attachments.every((file) => file.file))));
  } catch {
    // storage is full or forbidden: the page works without
  }
}
