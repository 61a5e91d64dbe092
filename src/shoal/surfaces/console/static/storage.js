// What the browser keeps for the page, as JSON; a page without storage works too.

export function readJson(storage, key) {
  try {
    return JSON.parse(storage.getItem(key));
  } catch {
    return null;
  }
}

const DRAFTS = "shoal.drafts";
const DRAFTS_MAX = 50; // threads whose drafts are kept, those that were last written in

/** What was begun in a thread and not sent, in whichever tab. */
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
    // the page works without
  }
}
