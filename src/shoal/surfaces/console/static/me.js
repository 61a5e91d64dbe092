// Who is signed in and what their token lets them do, so that the page offers nothing that the server would refuse.

import { api } from "./api.js";
import { dropKey, keepKey } from "./key.js";
import { apply } from "./preferences.js";

const WHO = "shoal.who";
const RETRY_MS = 2_000;
const TICKET_MS = 3_600_000; // a ticket is good for a day

/** As `GET /api/me` answers; set once, before anything is shown. */
export const me = { token: "", scope: "", person: "", author: "", name: "", agent: "", thread_prefix: "", answers_as: "", answers_with: "", ticket: "" };

/** Write messages, steer and stop. */
export const canTalk = () => ["chat", "admin"].includes(me.scope);
/** See what waits for a decision. */
export const canSeeApprovals = () => me.scope !== "chat";
export const canDecide = () => ["approve", "admin"].includes(me.scope);
/** Change agents, schedules, access and the like. */
export const canChange = () => me.scope === "admin";

/** Set Shoal itself up. */
export const isOwner = () => canChange() && me.person === "web:owner";

const OWNER = /^(web|openai|terminal):owner$/; // by whichever way they come

/** What a person, or whoever else did something, is called; PLATFORM:USER without what says nothing. */
export const calledBy = (person) => {
  const known = OWNER.test(person) ? "web:owner" : person;
  return known && known === me.person ? "you" : known === "web:owner" ? "the owner" : known;
};

/** Which of the places beside the threads there are; a token of one agent sees nothing of the others. Pure but for me. */
export function isOffered(place) {
  if (me.scope === "chat" || (place === "compare" && !canChange()) || (place === "setup" && !isOwner())) return false;
  return !me.agent || ["approvals", "agents"].includes(place);
}

/** Ask who is signed in, again and again while the server is away. Throws ApiError 401 or 403 for nobody. */
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

/** Whether somebody else has signed in meanwhile, in another tab of this browser. */
export async function isSomebodyElse() {
  const now = await api.me();
  return Object.keys(me).some((key) => ["token", "scope", "person", "agent"].includes(key) && now[key] !== me[key]);
}

/** What another person of this browser has left is neither shown nor sent. */
function forgetOthers(open) {
  try {
    const storage = open();
    if ((storage.getItem(WHO) || "web:owner") !== me.person) {
      for (const key of Object.keys(storage)) if (key.startsWith("shoal.")) storage.removeItem(key);
    }
    storage.setItem(WHO, me.person);
  } catch {
    // nothing is kept where storage is forbidden
  }
}
