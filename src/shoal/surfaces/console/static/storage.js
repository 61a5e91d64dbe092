// The browser's storage as JSON. The page works without it.

export function readJson(storage, key) {
  try {
    return JSON.parse(storage.getItem(key));
  } catch {
    return null;
  }
}

const DRAFTS = "shoal.drafts";
const DRAFTS_MAX = 50; // threads with stored drafts, most recently edited first

/** Return a thread's unsent draft, from any tab. */
export const readDraft = (thread) => readJson(localStorage, DRAFTS)?.[thread] || "";

export function keepDraft(thread, text) {
  const { [thread]: before, ...drafts } = readJson(localStorage, DRAFTS) || {};
  if (text) drafts[thread] = text;
  writeJson(localStorage, DRAFTS, Object.fromEntries(Object.entries(drafts).slice(-DRAFTS_MAX)));
}

export function writeJson(storage, key, value) {
  try {
    storage.setItem(key, JSON.stringify(value));
  } catch {
    // the page works without it
  }
}
