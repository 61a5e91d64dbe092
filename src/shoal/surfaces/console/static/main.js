// The page: the current view, and its session.

import { api } from "./api.js";
import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./dom.js";
import { threadName, visible } from "./format.js";
import { takeKey } from "./key.js";
import { canTalk, isOffered, isOwner, me, signIn } from "./me.js";
import { newId } from "./outgoing.js";
import { startWorker } from "./push.js";
import { Session } from "./session.js";
import { readJson, writeJson } from "./storage.js";
import { typeahead } from "./typeahead.js";
import { Composer } from "./views/composer.js";
import { icon, mark } from "./views/icons.js";
import { Later } from "./views/later.js";
import { Log } from "./views/log.js";
import { Bar, OfflineBanner, PLACES, Rail } from "./views/shell.js";
import { Words } from "./views/words.js";

const LAST = "shoal.last";
const RAIL = "shoal.rail";
const PARTS = ["files", "context"];
const WIDE = "(min-width: 48rem)";
const SUGGESTIONS = ["What can you do?", "List the files", "Remind me in 10 minutes to stretch"];

/** Parse a URL hash into `{place, thread, part, seq}`. An empty hash opens Today. An unknown one opens the last thread. */
export function routeOf(hash, last) {
  const [place, thread, part, seq] = hash.replace(/^#\/?/, "").split("/");
  if (place === "t" && thread) {
    return { place: "thread", thread: decodeURIComponent(thread), part: PARTS.includes(part) ? part : "", seq: part === "e" ? Number(seq) || 0 : 0 };
  }
  if (isOffered(place) && PLACES.some(([name]) => name === place)) return { place, thread: "" };
  if (!place && last && isOffered("today")) return { place: "today", thread: "" };
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
    const hash = `${threadAddress(route.thread)}${route.part ? `/${route.part}` : route.seq ? `/e/${route.seq}` : ""}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
    try {
      localStorage.setItem(LAST, route.thread);
    } catch {
      // the next visit then opens a new thread
    }
  }, [route]);
  return route;
}

/** Return the current time, updated every `ms` while `on`. */
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
  const [hidden, setHidden] = useState(() => readJson(localStorage, RAIL) === "hidden"); // the sidebar, on a wide screen
  const [dialog, setDialog] = useState(null); // {name, ...} of the open dialog
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

  useEffect(() => {
    const keyed = (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.altKey || event.key.toLowerCase() !== (event.shiftKey ? "f" : "k")) return;
      event.preventDefault();
      const typed = document.querySelector(".is-palette") ? null : typeahead();
      setDialog({ name: "palette", within: event.shiftKey ? route.thread : "", typed });
    };
    addEventListener("keydown", keyed);
    return () => removeEventListener("keydown", keyed);
  }, [route.thread]);

  const returning = useRef(false);
  const closeDrawer = () => {
    returning.current = true;
    setDrawer(false);
  };
  const hideRail = (isHidden) => {
    returning.current = true;
    writeJson(localStorage, RAIL, isHidden ? "hidden" : "");
    setHidden(isHidden);
  };
  const openRail = () => (matchMedia(WIDE).matches ? hideRail(false) : setDrawer(true));
  useEffect(() => {
    if (drawer || !returning.current) return;
    returning.current = false;
    document.querySelector(hidden || !matchMedia(WIDE).matches ? ".topbar .rail-opens" : ".rail .rail-hides")?.focus(); // only a visible button can take the focus
  }, [drawer, hidden]);
  const rail = useMemo( // streamed text does not change it
    () => html`<${Rail} older=${() => session.loadOlder()} hide=${() => hideRail(true)} state=${state} route=${route} open=${drawer} close=${closeDrawer} minute=${minute}
      manage=${(info) => setDialog({ name: "manage", thread: info.thread, info })} find=${() => setDialog({ name: "palette", within: "" })} />`,
    [state.threads, state.hasOlder, state.approvals, state.seen, state.link, state.choices, infoOf(state, route.thread), route, drawer, minute],
  );
  const hasBox = canTalk() && Boolean(route.thread) && !route.part;
  if (state.signedOut) return html`<${SignedOut} />`;
  return html`
    <a class="skip" href=${hasBox ? "#message" : "#main"} onClick=${skip}>${hasBox ? "Skip to the message box" : "Skip the sidebar"}</a>
    <div class=${`page${hidden ? " is-alone" : ""}`}>
      ${rail}
      <main id="main" tabindex="-1" inert=${drawer}>
        ${route.thread
          ? html`<${Thread} state=${state} thread=${route.thread} part=${route.part} session=${session} second=${second} drawer=${drawer} openRail=${openRail} openDialog=${setDialog} route=${route} />`
          : html`<${OtherPlace} state=${state} route=${route} session=${session} second=${second} drawer=${drawer} openRail=${openRail} />`}
      </main>
    </div>
    ${dialog && html`<${Later} key=${dialog.name} load=${dialogs[dialog.name]} ...${dialog} openDialog=${setDialog} hideRail=${hideRail} info=${dialog.info || infoOf(state, route.thread)} state=${state} session=${session} route=${route} close=${() => setDialog((now) => (now === dialog ? null : now))} />`}
    <p class="offscreen" aria-live="polite" id="said">${state.said}</p>
  `;
}

const dialogs = {
  palette: () => import("./views/palette.js").then((found) => found.Palette),
  manage: () => import("./views/manage.js").then((found) => found.Manage),
  answerers: () => import("./views/answerers.js").then((found) => found.Answerers),
};

function skip(event) {
  event.preventDefault(); // the hash is the route, so move only the focus
  (document.getElementById("message") || document.getElementById("main")).focus();
}

const threadAddress = (thread) => `#/t/${encodeURIComponent(thread)}`;

const infoOf = (state, thread) => state.threads?.find((one) => one.thread === thread) || state.views[thread]?.info;

const titleOf = (state, thread) => {
  const info = infoOf(state, thread);
  return info ? threadName(info) : "New conversation";
};

/** Return a thread's agent, and its model if known. */
function answererOf(info, choice, view) {
  const last = view && [...view.state.turns.values()].at(-1);
  const agent = choice?.agent || info?.agent || last?.agent || me.answers_as;
  const model = choice?.model || info?.model || last?.model || (agent === me.answers_as && me.answers_with);
  return [agent, model].filter(Boolean).map(visible).join(" · ") || "Choose an agent";
}

function Thread({ state, thread, part, session, second, drawer, openRail, openDialog, route }) {
  const setSuggestion = ({ text }) => session.suggest(text);
  const view = state.views[thread];
  const info = infoOf(state, thread);
  const outgoing = useMemo(() => state.outgoing.filter((message) => message.thread === thread), [state.outgoing, thread]);
  const known = view && (view.loaded || view.missing || outgoing.length > 0);
  const empty = known && !view.state.items.length && !outgoing.length && !view.state.openTurn;
  const isChild = thread.startsWith("agent:");
  const answerer = answererOf(info, state.choices[thread], view);
  const choose = () => openDialog({ name: "answerers", thread });
  const top = html`
    <${Bar} title=${titleOf(state, thread)} openRail=${openRail} railOpen=${drawer}>
      ${canTalk() && !isChild
        ? html`<button type="button" class="quiet answerer" title="Agent and model" onClick=${choose}><span>${answerer}</span>${icon("chevron")}</button>`
        : html`<span class="faint detail">${answerer}</span>`}
      ${info?.parent && html`<a class="quiet" href=${threadAddress(info.parent)}>Parent conversation</a>`}
      ${info && part && html`<a class="quiet" href=${threadAddress(thread)}>Conversation</a>`}
      ${info && PARTS.filter((one) => one !== part && (one === "files" || isOffered("today"))).map((one) => html`<a class="quiet" href=${`${threadAddress(thread)}/${one}`}>${one === "files" ? "Files" : "Context"}</a>`)}
      ${info && html`<button type="button" class="quiet" aria-label="Find in this conversation" title="Find in this conversation (Ctrl+Shift+F)" onClick=${() => openDialog({ name: "palette", within: thread })}>${icon("search")}<span class="if-wide" aria-hidden="true">Find</span></button>`}
      ${info && canTalk() && html`<button type="button" class="quiet" aria-label="Conversation options" title="Rename, pin, archive, export, delete" onClick=${() => openDialog({ name: "manage", thread, info })}>${icon("more")}<span class="if-wide" aria-hidden="true">Options</span></button>`}
    <//>
    <${OfflineBanner} state=${state} session=${session} second=${second} />
  `;
  if (part) return html`${top}<div class="log" role="region" tabindex="0" aria-label=${part === "files" ? "Files of this conversation" : "Context"}><${Later} key=${`${part} ${thread}`} load=${parts[part]} thread=${thread} /></div>`;
  return html`
    ${top}
    ${known && !empty && html`<${Log} key=${`log ${thread}`} view=${view.state} complete=${!view.loaded || view.complete} outgoing=${outgoing} session=${session} sends=${state.sends} at=${route.seq ? route : null} />`}
    ${!known && html`<div class="log"><p class="faint loading">${state.link === "offline" ? "" : "Loading…"}</p></div>`}
    ${empty && html`<${Welcome} choose=${(text) => setSuggestion({ text })} answerer=${answerer} chooseAnswerer=${choose} />`}
    ${canTalk() && html`<${Composer} key=${`box ${thread}`} thread=${thread} running=${Boolean(view?.state.openTurn)} items=${view?.state.items || []} session=${session} suggestion=${state.suggestion} />`}
  `;
}

const parts = {
  files: () => import("./views/kept.js").then((found) => found.Kept),
  context: () => import("./views/context.js").then((found) => found.Context),
};

function Welcome({ choose, answerer, chooseAnswerer }) {
  const [isDemo, setIsDemo] = useState(false);
  const [asks, setAsks] = useState("It asks before anything that leaves this machine or this conversation, or that cannot be undone.");
  useEffect(() => {
    if (!isOwner()) return;
    api.info().then((info) => setAsks(info.asks), () => {});
    api.setup().then((setup) => setIsDemo(setup.is_demo), () => {}); // the page works without it
  }, []);
  return html`
    <div class="log welcome">
      <div class="column">
        <h2>What can I help you with?</h2>
        <p>The agent can look around its workspace, read and write files and run commands. ${asks}</p>
        ${isDemo && html`<p class="panel is-ask">No model is set up yet. The built-in demo answers with a few fixed sentences. <a href="#/setup">Set up a model</a></p>`}
        ${canTalk() && html`<p class="answers">Answered by <button type="button" class="plain" onClick=${chooseAnswerer}>${answerer} ${icon("chevron")}</button></p>`}
        <ul>${(canTalk() ? SUGGESTIONS : []).map((text) => html`<li><button type="button" class="plain" onClick=${() => choose(text)}>${text}</button></li>`)}</ul>
      </div>
    </div>
  `;
}

const places = {
  today: () => import("./views/today.js").then((found) => found.Today),
  approvals: () => import("./views/approvals.js").then((found) => found.Approvals),
  schedules: () => import("./views/schedules.js").then((found) => found.Schedules),
  processes: () => import("./views/processes.js").then((found) => found.Processes),
  agents: () => import("./views/agents.js").then((found) => found.Agents),
  compare: () => import("./views/compare.js").then((found) => found.Compare),
  memory: () => import("./views/memory.js").then((found) => found.Memory),
  skills: () => import("./views/skills.js").then((found) => found.Skills),
  permissions: () => import("./views/permissions.js").then((found) => found.Permissions),
  access: () => import("./views/access.js").then((found) => found.Access),
  mcp: () => import("./views/mcp.js").then((found) => found.Mcp),
  backups: () => import("./views/backups.js").then((found) => found.Backups),
  usage: () => import("./views/usage.js").then((found) => found.Usage),
  audit: () => import("./views/audit.js").then((found) => found.Audit),
  setup: () => import("./views/setup.js").then((found) => found.Setup),
};

function OtherPlace({ state, route, session, second, drawer, openRail }) {
  return html`
    <${Bar} title=${PLACES.find(([name]) => name === route.place)[1]} openRail=${openRail} railOpen=${drawer} />
    <${OfflineBanner} state=${state} session=${session} second=${second} />
    <div class="log"><${Later} load=${places[route.place]} key=${route.place} state=${state} session=${session} lastThread=${readLast()} /></div>
  `;
}

function SignedOut({ reason }) {
  return html`
    <main class="alone is-signin" id="main">
      <p class="brand">${mark()} Shoal</p>
      <h1>You are signed out</h1>
      <p><${Words} text=${reason || "This browser's access token is no longer valid."} /></p>
      <p><a class="primary" href="/">Sign in</a></p>
    </main>
  `;
}

function Away() {
  return html`<main class="alone" id="main"><h1>Cannot reach Shoal</h1><p>The page retries automatically.</p></main>`;
}

const app = document.getElementById("app");
app.replaceChildren();
const show = (view) => render(view, app);

takeKey();
try {
  await signIn(() => show(html`<${Away} />`));
  const session = new Session();
  session.start();
  startWorker();
  show(html`<${App} session=${session} />`);
} catch (error) {
  if (!error.status) throw error;
  await api.signOut().catch(() => {}); // a cookie without its key would lead to this page again
  show(html`<${SignedOut} reason=${error.status === 403 ? error.message : ""} />`);
}
