// The frame of the page: the rail with threads and places, and what stands beside it.

import { html, memo, useEffect, useRef } from "../dom.js";
import { age, fullTime, threadName, visible } from "../format.js";
import { canTalk, isOffered, me } from "../me.js";
import { icon, mark } from "./icons.js";

export const PLACES = [
  ["approvals", "Approvals"],
  ["schedules", "Schedules"],
  ["processes", "Processes"],
  ["agents", "Agents"],
  ["access", "Access"],
  ["mcp", "MCP"],
  ["backups", "Backups"],
  ["usage", "Usage"],
  ["audit", "Audit"],
];

const SCOPES = { read: "read", approve: "approve", admin: "do everything" };
const LINKS = { live: "Connected", connecting: "Connecting…", offline: "Offline" };

const ThreadLine = memo(function ThreadLine({ info, depth, current, unread, waiting, minute, detail }) {
  const state = waiting ? "waiting" : info.open_turn ? "running" : unread ? "unread" : "";
  const said = { waiting: "needs approval", running: "working", unread: "new" }[state];
  return html`
    <li style=${depth ? `margin-left: ${Math.min(depth, 3) * 0.9}rem` : null}>
      <a class=${`thread ${state}${unread ? " is-unread" : ""}`} href=${`#/t/${encodeURIComponent(info.thread)}`} aria-current=${current ? "page" : null}>
        <span class="dot" aria-hidden="true"></span>
        <span class="thread-name">${threadName(info)}</span>
        <time datetime=${info.updated_at} title=${fullTime(info.updated_at)}>${age(info.updated_at, minute)}</time>
        ${detail && html`<span class="thread-preview">${detail}</span>`}
        ${said && html`<span class="offscreen">, ${said}</span>`}
      </a>
    </li>
  `;
});

/** What tells a thread from others: its agent where there are several, its platform where it is not this page. */
function detailOf({ thread, agent }, severalAgents) {
  const [platform, channel] = thread.split(":");
  return [severalAgents && agent, platform !== "web" && `${platform} ${channel}`].filter(Boolean).join(" · ");
}

/** The rail; on a narrow screen a drawer that `close` puts away. */
export function Rail({ state, route, open, close, minute }) {
  const rail = useRef(null);
  useEffect(() => {
    if (!open) return undefined;
    rail.current.querySelector("a, button").focus();
    const keyed = (event) => event.key === "Escape" && close();
    document.addEventListener("keydown", keyed);
    return () => document.removeEventListener("keydown", keyed);
  }, [open]);
  const waiting = new Set(state.approvals.map((approval) => approval.thread));
  const lines = asTree(withCurrent(state.threads || [], route));
  const severalAgents = new Set((state.threads || []).map((info) => info.agent)).size > 1;
  return html`
    <nav class=${`rail${open ? " open" : ""}`} ref=${rail} aria-label="Threads and places" id="rail">
      <div class="rail-head">
        <a class="brand" href="#/">${mark()} Shoal</a>
        <button type="button" class="quiet drawer-only" aria-label="Close the list" onClick=${close}>${icon("close")}</button>
      </div>
      ${canTalk() && html`<a class="new" href="#/new">${icon("plus")} New thread</a>`}
      <h2 class="offscreen">Threads</h2>
      <ul class="threads">
        ${lines.map(
          ({ info, depth }) => html`<${ThreadLine} key=${info.thread} info=${info} depth=${depth} minute=${minute} detail=${detailOf(info, severalAgents)} current=${route.thread === info.thread}
            unread=${info.last_seq > (state.seen?.[info.thread] ?? 0)} waiting=${waiting.has(info.thread)} />`,
        )}
        ${state.threads && !lines.length && html`<li class="faint empty">No threads yet</li>`}
      </ul>
      <ul class="places">
        ${PLACES.filter(([place]) => isOffered(place)).map(
          ([place, name]) => html`
            <li>
              <a href=${`#/${place}`} aria-current=${route.place === place ? "page" : null}>
                ${name}
                ${place === "approvals" && state.approvals.length > 0 &&
                html`<span class="count">${state.approvals.length}<span class="offscreen"> waiting</span></span>`}
              </a>
            </li>
          `,
        )}
      </ul>
      ${me.token && html`<p class="faint who">${visible(me.name)}${me.agent && `, with ${me.agent}`}${me.scope !== "chat" && `, may ${SCOPES[me.scope]}`}</p>`}
      <p class=${`link is-${state.link}`}><span class="dot" aria-hidden="true"></span>${LINKS[state.link]}</p>
    </nav>
    ${open && html`<button type="button" class="scrim" aria-label="Close the list" onClick=${close}></button>`}
  `;
}

/** The list with the open thread in it, even before it has a message. */
function withCurrent(threads, route) {
  if (!route.thread || threads.some((info) => info.thread === route.thread)) return threads;
  return [{ thread: route.thread, agent: "", title: "New thread", last_seq: 0, updated_at: new Date().toISOString() }, ...threads];
}

/** Subagents' threads below the one that called them; one whose caller is not in the list stands by itself. */
function asTree(threads) {
  const known = new Set(threads.map((info) => info.thread));
  const below = new Map();
  for (const info of threads) {
    const parent = known.has(info.parent) && info.parent !== info.thread ? info.parent : "";
    below.set(parent, [...(below.get(parent) || []), info]);
  }
  const walk = (parent, depth) => (below.get(parent) || []).flatMap((info) => [{ info, depth }, ...walk(info.thread, depth + 1)]);
  return walk("", 0);
}

export function Bar({ title, detail, openRail, railOpen, children }) {
  return html`
    <header class="topbar">
      <button type="button" class="quiet drawer-only" aria-label="Threads and places" aria-expanded=${railOpen} aria-controls="rail" onClick=${openRail}>
        ${icon("menu")}
      </button>
      <h1>${title}</h1>
      ${detail && html`<span class="faint detail">${detail}</span>`} ${children}
    </header>
  `;
}

/** Shown while the server is away; nothing written is lost meanwhile. */
export function OfflineBanner({ state, session, second }) {
  if (state.link !== "offline") return null;
  const seconds = Math.max(0, Math.ceil((state.retryAtMs - second) / 1000));
  return html`
    <div class="offline" role="status">
      <span>Shoal cannot be reached. What you write is kept and sent once it is back.</span>
      <button type="button" class="quiet" onClick=${() => session.retryNow()}>Try now${seconds > 0 ? ` (${seconds} s)` : ""}</button>
    </div>
  `;
}
