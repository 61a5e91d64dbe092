// The page: which place is shown, and the session behind it.

import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./dom.js";
import { threadName } from "./format.js";
import { canTalk, isOffered, me, signIn } from "./me.js";
import { newId } from "./outgoing.js";
import { Session } from "./session.js";
import { Access } from "./views/access.js";
import { Agents } from "./views/agents.js";
import { Approvals } from "./views/approvals.js";
import { Backups } from "./views/backups.js";
import { Composer } from "./views/composer.js";
import { Kept } from "./views/kept.js";
import { Log } from "./views/log.js";
import { Mcp } from "./views/mcp.js";
import { Processes } from "./views/processes.js";
import { Audit, Usage } from "./views/records.js";
import { Schedules } from "./views/schedules.js";
import { Bar, OfflineBanner, PLACES, Rail } from "./views/shell.js";

const LAST = "shoal.last";
const SUGGESTIONS = ["What can you do?", "List the files", "Remind me in 10 minutes to stretch"];

/** Where an address leads: `{place, thread, part}`; an unknown or empty one to the last thread. Pure but for `last`. */
export function routeOf(hash, last) {
  const [place, thread, part] = hash.replace(/^#\/?/, "").split("/");
  if (place === "t" && thread) return { place: "thread", thread: decodeURIComponent(thread), part: part === "files" ? part : "" };
  if (isOffered(place) && PLACES.some(([name]) => name === place)) return { place, thread: "" };
  if (place !== "new" && last) return { place: "thread", thread: last };
  if (!canTalk()) return { place: "approvals", thread: "" };
  return { place: "thread", thread: `${me.thread_prefix}${newId()}`, isNew: true };
}

function readLast() {
  try {
    return localStorage.getItem(LAST) || "";
  } catch {
    return "";
  }
}

function useRoute() {
  const [route, setRoute] = useState(() => routeOf(location.hash, readLast()));
  useLayoutEffect(() => {
    const changed = () => setRoute(routeOf(location.hash, readLast()));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  useLayoutEffect(() => {
    if (!route.thread) return;
    const hash = `${threadAddress(route.thread)}${route.part ? `/${route.part}` : ""}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
    try {
      localStorage.setItem(LAST, route.thread);
    } catch {
      // the page opens with a new thread then
    }
  }, [route]);
  return route;
}

/** The time, anew every `ms` while `on`, for words like "5m ago". */
function useTime(ms, on) {
  const [time, setTime] = useState(() => Date.now());
  useEffect(() => {
    if (!on) return undefined;
    setTime(Date.now());
    const timer = setInterval(() => setTime(Date.now()), ms);
    return () => clearInterval(timer);
  }, [ms, on]);
  return time;
}

function App({ session }) {
  const [state, setState] = useState(session.state);
  const [drawer, setDrawer] = useState(false);
  const route = useRoute();
  const minute = useTime(30_000, true);
  const second = useTime(1_000, state.link === "offline");
  useEffect(() => session.subscribe(setState), []);
  useEffect(() => {
    session.open(route.thread, route.isNew);
    setDrawer(false);
  }, [route.thread, route.place, route.part]);
  useEffect(() => {
    const place = route.thread ? titleOf(state, route.thread) : PLACES.find(([name]) => name === route.place)[1];
    document.title = `${state.approvals.length ? `(${state.approvals.length}) ` : ""}${place} · Shoal`;
  }, [route, state.threads, state.approvals]);

  const returning = useRef(false);
  const closeDrawer = () => {
    returning.current = true;
    setDrawer(false);
  };
  useEffect(() => {
    if (drawer || !returning.current) return;
    returning.current = false;
    document.querySelector(".topbar .drawer-only")?.focus(); // only now can it be: the drawer made it inert
  }, [drawer]);
  if (state.signedOut) return html`<${SignedOut} />`;
  return html`
    <a class="skip" href="#message" onClick=${skip}>${canTalk() ? "Skip to the message box" : "Skip the list"}</a>
    <div class="page">
      <${Rail} state=${state} route=${route} open=${drawer} close=${closeDrawer} minute=${minute} />
      <main id="main" inert=${drawer}>
        ${route.thread
          ? html`<${Thread} state=${state} thread=${route.thread} part=${route.part} session=${session} second=${second} drawer=${drawer} openRail=${() => setDrawer(true)} />`
          : html`<${OtherPlace} state=${state} route=${route} session=${session} second=${second} drawer=${drawer} openRail=${() => setDrawer(true)} />`}
      </main>
    </div>
    <p class="offscreen" aria-live="polite" id="said">${state.said}</p>
  `;
}

function skip(event) {
  event.preventDefault(); // the address names the thread; only the focus moves
  (document.getElementById("message") || document.getElementById("main")).focus();
}

const threadAddress = (thread) => `#/t/${encodeURIComponent(thread)}`;

const titleOf = (state, thread) => {
  const info = state.threads?.find((one) => one.thread === thread);
  return info ? threadName(info) : "New thread";
};

function Thread({ state, thread, part, session, second, drawer, openRail }) {
  const [suggestion, setSuggestion] = useState(null);
  const view = state.views[thread];
  const info = state.threads?.find((one) => one.thread === thread);
  const outgoing = useMemo(() => state.outgoing.filter((message) => message.thread === thread), [state.outgoing, thread]);
  const known = view && (view.loaded || view.missing || outgoing.length > 0);
  const empty = known && !view.state.items.length && !outgoing.length && !view.state.openTurn;
  const top = html`
    <${Bar} title=${titleOf(state, thread)} detail=${info?.agent} openRail=${openRail} railOpen=${drawer}>
      ${info?.parent && html`<a class="quiet" href=${threadAddress(info.parent)}>Caller</a>`}
      ${info && html`<a class="quiet" href=${`${threadAddress(thread)}${part ? "" : "/files"}`}>${part ? "Conversation" : "Files"}</a>`}
    <//>
    <${OfflineBanner} state=${state} session=${session} second=${second} />
  `;
  if (part) return html`${top}<div class="log"><${Kept} key=${thread} thread=${thread} /></div>`;
  return html`
    ${top}
    ${known && !empty && html`<${Log} view=${view.state} complete=${!view.loaded || view.complete} outgoing=${outgoing} session=${session} />`}
    ${!known && html`<div class="log"><p class="faint loading">${state.link === "offline" ? "" : "Loading…"}</p></div>`}
    ${empty && html`<${Welcome} choose=${(text) => setSuggestion({ text })} />`}
    ${canTalk() && html`<${Composer} thread=${thread} running=${Boolean(view?.state.openTurn)} session=${session} suggestion=${suggestion} />`}
  `;
}

function Welcome({ choose }) {
  return html`
    <div class="log welcome">
      <div class="column">
        <h2>What shall we do?</h2>
        <p>The agent can look around its workspace, read and write files and run commands. It asks before anything that your permissions do not allow outright.</p>
        <ul>${(canTalk() ? SUGGESTIONS : []).map((text) => html`<li><button type="button" class="plain" onClick=${() => choose(text)}>${text}</button></li>`)}</ul>
      </div>
    </div>
  `;
}

const places = {
  approvals: Approvals,
  schedules: Schedules,
  processes: Processes,
  agents: Agents,
  access: Access,
  mcp: Mcp,
  backups: Backups,
  usage: Usage,
  audit: Audit,
};

function OtherPlace({ state, route, session, second, drawer, openRail }) {
  const view = places[route.place];
  return html`
    <${Bar} title=${PLACES.find(([name]) => name === route.place)[1]} openRail=${openRail} railOpen=${drawer} />
    <${OfflineBanner} state=${state} session=${session} second=${second} />
    <div class="log"><${view} key=${route.place} state=${state} session=${session} lastThread=${readLast()} /></div>
  `;
}

function SignedOut({ reason }) {
  return html`
    <main class="alone" id="main">
      <h1>This page needs a token</h1>
      ${reason && html`<p class="problem" role="alert">${reason}</p>`}
      <p>Paste yours here. The owner's is in the file <code>token</code> of Shoal's home directory; <code>shoal token create</code> makes others.</p>
      <form action="/" method="get">
        <label>Token <input name="token" type="password" required autocomplete="off" spellcheck="false" /></label>
        <button type="submit" class="primary">Open</button>
      </form>
    </main>
  `;
}

function Away() {
  return html`<main class="alone" id="main"><h1>Shoal cannot be reached</h1><p>The page is tried again by itself.</p></main>`;
}

const show = (view) => render(view, document.getElementById("app"));

try {
  await signIn(() => show(html`<${Away} />`));
  const session = new Session();
  session.start();
  show(html`<${App} session=${session} />`);
} catch (error) {
  if (!error.status) throw error;
  show(html`<${SignedOut} reason=${error.status === 403 ? error.message : ""} />`);
}
