// The page's frame: the sidebar with threads and views, and the main area.

import { api } from "../api.js";
import { html, memo, useEffect, useMemo, useRef, useState } from "../dom.js";
import { age, fullTime, threadName, visible } from "../format.js";
import { canTalk, isOffered, me } from "../me.js";
import { THEMES, prefer, preferences } from "../preferences.js";
import { GROUPINGS, asTree, grouped } from "./groups.js";
import { readJson, writeJson } from "../storage.js";
import { icon, mark } from "./icons.js";
import { Notifications } from "./notifications.js";

/** The views: name in the URL, title and keywords. */
export const PLACES = [
  ["today", "Today", "overview dashboard home status failed errors done what happened brief"],
  ["approvals", "Approvals", "allow deny permit ask confirm waiting decide"],
  ["schedules", "Schedules", "cron reminder timer recurring trigger calendar brief morning remind every day"],
  ["agents", "Agents", "bot assistant model persona prompt budget limit bind channel tools files"],
  ["processes", "Processes", "running background server job kill stop log output"],
  ["compare", "Compare", "models versus evaluate benchmark test side by side"],
  ["memory", "Memory", "remember forget notes facts knowledge delete personal data"],
  ["skills", "Skills", "instructions abilities install how-to procedures"],
  ["permissions", "Permissions", "rules allow deny security sandbox profile ask safe"],
  ["access", "Access", "token people pair pairing code user share invite sign in revoke phone login password api key"],
  ["mcp", "MCP", "server tools connect integration plugin npm extension"],
  ["backups", "Backups", "restore save copy archive export s3 snapshot"],
  ["usage", "Usage", "cost price money spend budget tokens dollars bill limit"],
  ["audit", "Audit", "log history record security who did chain verify"],
  ["setup", "Setup", "key api token provider model telegram discord slack teams matrix google whatsapp platform connect settings configure openai anthropic"],
];
const FIRST = 4; // number of views that are always shown

const SCOPES = { read: "read everything", approve: "decide approvals", admin: "do everything" };
const LINKS = { live: "Connected", connecting: "Connecting…", offline: "Offline" };

const ThreadLine = memo(function ThreadLine({ info, depth, current, unread, waiting, minute, detail, manage }) {
  const state = waiting ? "waiting" : info.open_turn ? "running" : unread ? "unread" : "";
  const said = { waiting: "waiting for you", running: "working", unread: "new" }[state];
  return html`
    <li class="thread-row" style=${depth ? `margin-left: ${Math.min(depth, 3) * 0.9}rem` : null}>
      <a class=${`thread ${state}${unread ? " is-unread" : ""}`} href=${`#/t/${encodeURIComponent(info.thread)}`} aria-current=${current ? "page" : null}>
        <span class="dot" aria-hidden="true" title=${said && said[0].toUpperCase() + said.slice(1)}></span>
        <span class="thread-name">${threadName(info)}</span>
        <time datetime=${info.updated_at} title=${fullTime(info.updated_at)}>${age(info.updated_at, minute)}</time>
        ${(detail || waiting) && html`<span class="thread-preview">${waiting && html`<span class="is-ask">Waiting for you</span>`}${waiting && detail && " · "}${detail}</span>`}
        ${said && !waiting && html`<span class="offscreen">, ${said}</span>`}
      </a>
      ${manage && html`<button type="button" class="quiet thread-more" aria-label=${`Options for ${threadName(info)}`} title="Rename, pin, archive, export, delete" onClick=${() => manage(info)}>${icon("more")}</button>`}
    </li>
  `;
});

/** Return a thread's agent unless it is the default one, and its platform unless it is this page. */
function detailOf({ thread, agent }, severalAgents) {
  const [platform, channel] = thread.split(":");
  return [severalAgents && agent !== me.answers_as && agent, platform !== "web" && `${platform} ${channel}`].filter(Boolean).join(" · ");
}

/** The sidebar. On a narrow screen it is a drawer that `close` hides. `manage` opens a thread's options, `find` the search. */
export function Rail({ state, route, open, close, hide, minute, manage, find, older }) {
  const rail = useRef(null);
  useEffect(() => {
    if (!open) return undefined;
    rail.current.querySelector("a, button").focus();
    const keyed = (event) => event.key === "Escape" && close();
    document.addEventListener("keydown", keyed);
    return () => document.removeEventListener("keydown", keyed);
  }, [open]);
  const waiting = new Set(state.approvals.map((approval) => approval.thread));
  const [by, setBy] = useState(preferences.grouping);
  const [archived, setArchived] = useState([]);
  const [more, setMore] = useState(null); // whether the person expanded or collapsed the other views
  const threads = withCurrent(state, route);
  const groups = useMemo(() => grouped(threads, by, new Date(minute)), [threads, by, minute]);
  const regroup = (event) => {
    setBy(event.target.value);
    prefer({ grouping: event.target.value });
  };
  const [theme, setTheme] = useState(preferences.theme);
  useEffect(() => {
    const changed = () => setTheme(preferences.theme);
    addEventListener("preferred", changed);
    return () => removeEventListener("preferred", changed);
  }, []);
  const nextTheme = () => {
    const at = THEMES.findIndex(([value]) => value === theme);
    prefer({ theme: THEMES[(at + 1) % THEMES.length][0] });
  };
  useEffect(() => {
    if (state.threads) api.archived().then(setArchived, () => {});
  }, [state.threads?.length]);
  const line = ({ info, depth }) => html`<${ThreadLine} key=${info.thread} info=${info} depth=${depth} minute=${minute}
    detail=${detailOf(info, severalAgents)} current=${route.thread === info.thread} manage=${canTalk() && info.created_at ? manage : null}
    unread=${info.last_seq > (state.seen?.[info.thread] ?? 0)} waiting=${waiting.has(info.thread)} />`;
  const offered = (from, to) => PLACES.slice(from, to).filter(([place]) => isOffered(place));
  const unfolded = more ?? offered(FIRST).some(([place]) => place === route.place);
  const link = ([place, name]) => html`
    <li>
      <a href=${`#/${place}`} aria-current=${route.place === place ? "page" : null}>
        ${icon(place)} ${name}
        ${place === "approvals" && state.approvals.length > 0 && html`<span class="count">${state.approvals.length}<span class="offscreen"> waiting</span></span>`}
      </a>
    </li>
  `;
  const severalAgents = new Set((state.threads || []).map((info) => info.agent)).size > 1;
  return html`
    <nav class=${`rail${open ? " open" : ""}`} ref=${rail} aria-label="Conversations and views" id="rail">
      <${Edge} />
      <div class="rail-head">
        <a class="brand" href="#/">${mark()} Shoal</a>
        <button type="button" class="quiet search-open" aria-label="Search" title="Search (Ctrl+K)" onClick=${find}>${icon("search")}<span aria-hidden="true">Search</span></button>
        <button type="button" class="quiet rail-hides" aria-label="Hide sidebar" title="Hide sidebar" onClick=${hide}>${icon("rail")}</button>
        <button type="button" class="quiet drawer-only" aria-label="Close sidebar" onClick=${close}>${icon("close")}</button>
      </div>
      ${canTalk() && html`<a class="new" href="#/new">${icon("plus")} New conversation</a>`}
      <h2 class="offscreen">Conversations</h2>
      <div class="threads">
        ${groups.length > 0 && html`<select class="grouping" aria-label="Group conversations" value=${by} onChange=${regroup}>
          ${GROUPINGS.map(([value, label]) => html`<option value=${value}>${label}</option>`)}
        </select>`}
        ${groups.map(
          ({ name, threads: inside, folded }) => html`
            <details class="group" key=${name} open=${!folded || inside.some((info) => info.thread === route.thread)}>
              <summary>
                <span>${visible(name)}</span>
              </summary>
              <ul>${asTree(inside).map(line)}</ul>
            </details>
          `,
        )}
        ${state.threads && !threads.length && html`<p class="faint empty">No conversations yet</p>`}
        ${state.hasOlder && html`<button type="button" class="quiet older" onClick=${older}>Show older conversations</button>`}
        ${archived.length > 0 && html`
          <details class="group">
            <summary><span>Archived</span></summary>
            <ul>${archived.map((info) => line({ info, depth: 0 }))}</ul>
          </details>
        `}
      </div>
      <div class="places">
        <ul>${offered(0, FIRST).map(link)}</ul>
        ${offered(FIRST).length > 0 && html`
          <details open=${unfolded}>
            <summary onClick=${(event) => (event.preventDefault(), setMore(!unfolded))}>${icon("settings")} Manage</summary>
            <ul>${offered(FIRST).map(link)}</ul>
          </details>
        `}
      </div>
      ${me.token && html`<p class="faint who">${visible(me.name)}${me.agent && `, only for ${me.agent}`}${me.scope !== "chat" && `, can ${SCOPES[me.scope]}`}</p>`}
      <${Notifications} />
      <div class="rail-foot">
        <p class=${`link is-${state.link}`}><span class="dot" aria-hidden="true"></span>${LINKS[state.link]}</p>
        <button type="button" class="quiet" title="Change the theme" onClick=${nextTheme}>${THEMES.find(([value]) => value === theme)[1]}</button>
      </div>
    </nav>
    ${open && html`<button type="button" class="scrim" aria-label="Close sidebar" onClick=${close}></button>`}
  `;
}

const WIDTHS = { least: 200, most: 520, usual: 272, step: 16 };
const WIDTH = "shoal.railWidth";

/** Set the sidebar's width, or restore the stored one. */
function setWidth(px = Number(readJson(localStorage, WIDTH)) || WIDTHS.usual) {
  const width = Math.round(Math.min(WIDTHS.most, Math.max(WIDTHS.least, px)));
  document.documentElement.style.setProperty("--rail-width", `${width}px`);
  return width;
}

/** The sidebar's right edge. Dragging and the arrow keys resize the sidebar. A double-click resets it. */
function Edge() {
  const [width, change] = useState(setWidth);
  const take = (px) => {
    const taken = setWidth(px);
    change(taken);
    writeJson(localStorage, WIDTH, taken);
  };
  const dragged = (event) => event.buttons === 1 && take(event.clientX);
  const keyed = (event) => {
    const by = { ArrowLeft: -WIDTHS.step, ArrowRight: WIDTHS.step }[event.key];
    if (!by) return;
    event.preventDefault();
    take(width + by);
  };
  return html`<div class="edge" role="separator" tabindex="0" aria-orientation="vertical" aria-label="Sidebar width" aria-controls="rail"
    aria-valuenow=${width} aria-valuemin=${WIDTHS.least} aria-valuemax=${WIDTHS.most} title="Drag to resize, double-click to reset"
    onPointerDown=${(event) => event.currentTarget.setPointerCapture(event.pointerId)} onPointerMove=${dragged} onKeyDown=${keyed} onDblClick=${() => take(WIDTHS.usual)}></div>`;
}

/** Return the threads, with the open one even before its first message. */
function withCurrent(state, route) {
  const threads = state.threads || [];
  if (!route.thread || threads.some((info) => info.thread === route.thread)) return threads;
  const fresh = { thread: route.thread, agent: state.choices[route.thread]?.agent || me.answers_as, title: "New conversation", last_seq: 0, updated_at: new Date().toISOString() };
  return [state.views[route.thread]?.info || fresh, ...threads];
}

export function Bar({ title, detail, openRail, railOpen, children }) {
  return html`
    <header class="topbar">
      <button type="button" class="quiet drawer-only rail-opens" aria-label="Conversations and views" title="Show sidebar" aria-expanded=${railOpen} aria-controls="rail" onClick=${openRail}>
        ${icon("menu")}
      </button>
      <h1>${title}</h1>
      ${detail && html`<span class="faint detail">${detail}</span>`} ${children}
    </header>
  `;
}

export function OfflineBanner({ state, session, second }) {
  if (state.link !== "offline") return null;
  const seconds = Math.max(0, Math.ceil((state.retryAtMs - second) / 1000));
  return html`
    <div class="offline" role="status">
      <span>Cannot reach Shoal. Your messages are saved and will be sent when it is back.</span>
      <button type="button" class="quiet" onClick=${() => session.retryNow()}>Try now${seconds > 0 ? ` (${seconds} s)` : ""}</button>
    </div>
  `;
}
