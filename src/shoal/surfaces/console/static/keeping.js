// Actions on threads. Each returns an error message or an empty string.

import { api } from "./api.js";
import { TAIL_EVENTS } from "./session.js";
import { keepDraft } from "./storage.js";
import { foldEarlier } from "./store.js";

const BATCH_EVENTS = 5_000; // the server's limit per call

/** Choose a thread's agent and model. The choice takes effect with a new thread's first message or with the next turn. */
export async function choose(session, thread, choice) {
  const { views, choices } = session.state;
  if (!views[thread]?.missing) return changeThread(session, thread, choice);
  session.set({ choices: { ...choices, [thread]: { ...choices[thread], ...choice } } });
  return "";
}

export async function changeThread(session, thread, fields) {
  let info;
  const problem = await session.attempt(async () => (info = await api.changeThread(thread, fields)));
  if (info && session.state.views[thread]) session.putView(thread, { info });
  await session.refresh();
  return problem;
}

export async function deleteThread(session, thread) {
  const problem = await session.attempt(() => api.deleteThread(thread));
  if (problem) return problem;
  const { [thread]: gone, ...views } = session.state.views;
  if (session.wanted === thread) session.open("");
  session.setSeen(thread, 0);
  keepDraft(thread, "");
  session.set({ views });
  await session.refresh();
  return "";
}

/** Load a thread's events back to event `seq`. */
export async function loadBackTo(session, thread, seq) {
  const { firstSeq } = session.state.views[thread].state;
  if (!firstSeq || seq >= firstSeq) return "";
  const after = Math.max(0, seq - 1 - TAIL_EVENTS / 4);
  return session.attempt(async () => {
    const events = [];
    for (let from = after; from < firstSeq - 1; from = events.at(-1)?.seq ?? firstSeq) {
      const batch = await api.events(thread, from, Math.min(BATCH_EVENTS, firstSeq - 1 - from));
      if (!batch.length) break;
      events.push(...batch);
    }
    session.fold(thread, (state) => foldEarlier(state, events));
    session.putView(thread, { complete: after === 0 });
  });
}
