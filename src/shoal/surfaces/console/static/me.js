// The signed-in person and their token's permissions. The page hides everything that the server would reject.

import { api } from "./api.js";
import { dropKey, keepKey } from "./key.js";
import { apply } from "./preferences.js";

const WHO = "shoal.who";
const RETRY_MS = 2_000;
const TICKET_MS = 3_600_000; // a ticket is valid for a day

/** The response of `GET /api/me`, set once before the page is drawn. */
export const me = { token: "", scope: "", person: "", author: "", name: "", agent: "", thread_prefix: "", answers_as: "", answers_with: "", home_timezone: "UTC", ticket: "" };

/** Whether the person can write messages, steer turns and stop them. */
export const canTalk = () => ["chat", "admin"].includes(me.scope);
export const canSeeApprovals = () => me.scope !== "chat";
export const canDecide = () => ["approve", "admin"].includes(me.scope);
/** Whether the person can change agents, schedules and access. */
export const canChange = () => me.scope === "admin";

/** Whether the person can change Shoal's setup. */
export const isOwner = () => canChange() && me.person === "web:owner";

const OWNER = /^(web|openai|terminal):owner$/; // on any of the owner's channels

/** Return "you", "the owner" or PLATFORM:USER. */
export const calledBy = (person) => {
  const known = OWNER.test(person) ? "web:owner" : person;
  return known && known === me.person ? "you" : known === "web:owner" ? "the owner" : known;
};

/** Whether a view is available. A token for one agent sees no other agents. */
export function isOffered(place) {
  if (me.scope === "chat" || (place === "compare" && !canChange()) || (place === "setup" && !isOwner())) return false;
  return !me.agent || ["approvals", "agents"].includes(place);
}

/** Load `me`, retrying while the server is unreachable. Throws ApiError 401 or 403 if no one is signed in. */
export async function signIn(waiting) {
  let preferred;
  for (;;) {
    try {
      const { preferences, ...who } = await api.me();
      Object.assign(me, who);
      preferred = preferences;
      break;
    } catch (error) {
      if (error.status === 401 && dropKey()) continue;
      if (error.status === 401 || error.status === 403) throw error;
      waiting();
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }
  for (const storage of [() => localStorage, () => sessionStorage]) forgetOthers(storage);
  keepKey();
  setInterval(() => api.me().then(({ ticket }) => Object.assign(me, { ticket })).catch(() => {}), TICKET_MS);
  if (preferred) apply(preferred);
}

/** Whether someone else has signed in, in another tab of this browser. */
export async function isSomebodyElse() {
  const now = await api.me();
  return Object.keys(me).some((key) => ["token", "scope", "person", "agent"].includes(key) && now[key] !== me[key]);
}

/** Delete drafts and messages that another person left in this browser. */
function forgetOthers(open) {
  try {
    const storage = open();
    if ((storage.getItem(WHO) || "web:owner") !== me.person) {
      for (const key of Object.keys(storage)) if (key.startsWith("shoal.")) storage.removeItem(key);
    }
    storage.setItem(WHO, me.person);
  } catch {
    // without storage, nothing was stored
  }
}
