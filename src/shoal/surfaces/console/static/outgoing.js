// Outgoing messages, which are not in the journal yet. The session sends them.
//
// state      meaning                                              ends when
// sending    the request is in flight                             the server answers
// offline    the server was unreachable                           the server is reachable again (same id)
// accepted   the server queued it                                 the event with its id arrives
// busy       the server's mailbox is full                         the person retries
// refused    the server rejected or withdrew it                   the person retries or discards it

const STORED = "shoal.outgoing";

/** `choice` is the `{agent, model}` of a new thread, or nothing. */
export function newMessage(thread, text, kind, attachments, choice = null, nowMs = Date.now()) {
  return { id: newId(nowMs), thread, text, kind, attachments, choice, state: "offline", error: "", acceptedMs: 0 };
}

/** Create a unique id that sorts by time. Works without TLS, unlike randomUUID. */
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

/** Return the next message of a thread to send: the oldest, unless another one is in flight. */
export function nextToSend(messages, thread) {
  const open = messages.find((message) => message.thread === thread && ["sending", "offline"].includes(message.state));
  return open?.state === "offline" ? open : null;
}

export function afterFailure(error) {
  if (error.status === 0 || error.status >= 500 || error.status === 401) return { state: "offline", error: "" };
  if (error.status === 429) return { state: "busy", error: "The agent's queue is full. Try again later." };
  return { state: "refused", error: error.message };
}

/**
 * Mark messages that the server accepted and no longer has. No turn of their thread runs or waits, the page has the
 * complete journal, and the server accepted them before `askedMs`, when the thread's state was requested.
 */
export function takenBack(messages, info, view, askedMs) {
  const idle = !info.open_turn && !info.queued && view && !view.openTurn && view.lastSeq >= info.last_seq;
  const lost = (message) => message.thread === info.thread && message.state === "accepted" && message.acceptedMs < askedMs;
  if (!idle || !messages.some(lost)) return messages;
  return messages.map((message) =>
    lost(message) ? { ...message, state: "refused", error: "This message was removed from the queue before the agent read it." } : message,
  );
}

/** Return the messages stored before a reload. A request that was in flight is sent again. Its id prevents duplicates. */
export function restore(storage) {
  try {
    const kept = JSON.parse(storage.getItem(STORED) || "[]");
    return kept.map((message) => ({ ...message, state: message.state === "sending" ? "offline" : message.state }));
  } catch {
    return [];
  }
}

/** Store messages for a reload, except those with files that are not uploaded yet. */
export function keep(storage, messages) {
  try {
    storage.setItem(STORED, JSON.stringify(messages.filter((message) => message.attachments.every((file) => file.file))));
  } catch {
    // storage is full or forbidden: the page works without it
  }
}
