// Ctrl+K: search threads, messages, commands, agents and views, or one thread's messages.

import { api } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../dom.js";
import { meaningful, meant, means } from "../findable.js";
import { ago, plain, threadName, visible } from "../format.js";
import { canTalk, isOffered, me } from "../me.js";
import { Dialog } from "./dialog.js";
import { PLACES } from "./shell.js";
import { Words } from "./words.js";

const EACH_MAX = 6; // per group, until more are requested
const MESSAGES_AT_ONCE = 30;
const MESSAGES_MAX = 1000; // the server's limit
const PAUSE_MS = 150; // pause in typing before a search

/** Whether a text contains all words. */
export const hasAll = (text, words) => words.every((word) => text.toLowerCase().includes(word));

/** Split a text into `[piece, found]` at matched words. */
export function marked(text, words) {
  const wanted = words.filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!wanted.length) return [[text, false]];
  return text.split(new RegExp(`(${wanted.join("|")})`, "gi")).map((piece, at) => [piece, at % 2 === 1]);
}

const Marked = ({ text, words }) => marked(visible(text), words).map(([piece, found]) => (found ? html`<mark>${piece}</mark>` : piece));

const to = (thread, seq) => `#/t/${encodeURIComponent(thread)}${seq ? `/e/${seq}` : ""}`;

export function Palette({ within, typed, state, session, route, info, openDialog, hideRail, close }) {
  const [text, setText] = useState(() => typed?.() || "");
  const [only, setOnly] = useState(Boolean(within));
  const [messages, setMessages] = useState([]);
  const [wanted, setWanted] = useState(MESSAGES_AT_ONCE); // number of messages requested
  const [unfolded, setUnfolded] = useState([]); // groups shown in full
  const [others, setOthers] = useState({ commands: [], agents: [], archived: [] });
  const [at, setAt] = useState(0);
  const [problem, setProblem] = useState("");
  const list = useRef(null);
  const thread = within || route.thread;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);

  useEffect(() => {
    const settled = (answer, name) => answer.then((found) => setOthers((before) => ({ ...before, [name]: found })), () => {});
    if (canTalk()) settled(api.commands(), "commands");
    if (me.scope !== "chat") settled(api.agents(), "agents");
    settled(api.archived(), "archived");
  }, []);
  useEffect(() => {
    if (!text.trim()) {
      setMessages([]);
      return undefined;
    }
    let isLate = false;
    const timer = setTimeout(async () => {
      try {
        const found = await api.search(text, only ? thread : "", wanted);
        if (!isLate) setMessages(found);
        setProblem("");
      } catch (error) {
        if (!isLate) setProblem(error.message);
      }
    }, PAUSE_MS);
    return () => {
      isLate = true;
      clearTimeout(timer);
    };
  }, [text, only, wanted]);

  const go = (address) => {
    close();
    location.hash = address;
  };
  const found = useMemo(() => {
    const said = messages.map((one) => ({
      key: `${one.thread}/${one.seq}`,
      group: "Messages",
      title: plain(one.excerpt),
      detail: `${only ? "" : `${threadName({ title: one.title }, one.thread)} · `}${one.by === "agent" ? one.agent || "agent" : "person"} · ${ago(one.at)}`,
      act: () => go(to(one.thread, one.seq)),
    }));
    const threads = [...(state.threads || []), ...others.archived]
      .filter((info) => hasAll(threadName(info), words))
      .map((info) => ({ key: info.thread, group: "Conversations", title: threadName(info), detail: `${info.archived ? "archived · " : ""}${ago(info.updated_at)}`, act: () => go(to(info.thread)) }));
    const sought = meant(text);
    const may = ([place]) => isOffered(place);
    const settings = sought.settings.filter(may).map(([place, name]) => ({ key: `s${name}`, group: "Settings", title: name, detail: PLACES.find(([one]) => one === place)[1], act: () => go(`#/${place}`) }));
    const actions = canTalk()
      ? sought.actions.filter((one) => !one.thread || info).map((one) => ({ key: `d${one.key}`, group: "Actions", title: one.name, detail: "", act: () => perform(one) }))
      : [];
    const fresh = canTalk() && (!words.length || means("New conversation begin start thread chat ask", meaningful(text))) ? [["new", "New conversation"]] : [];
    const views = [...fresh, ...(words.length ? sought.places : PLACES).filter(may)]
      .map(([place, name]) => ({ key: `v${place}`, group: "Views", title: name, detail: "", act: () => go(`#/${place}`) }));
    const agents = others.agents
      .filter((one) => hasAll(one.name, words))
      .map((one) => ({ key: `a${one.name}`, group: "Agents", title: one.name, detail: one.model, act: () => go("#/agents") }));
    const commands = others.commands
      .filter((one) => hasAll(`/${one.name} ${one.description}`, words) || means(`/${one.name} ${one.description}`, meaningful(text)))
      .map((one) => ({ key: `c${one.name}`, group: "Commands", title: `/${one.name} ${one.usage}`.trim(), detail: one.description, act: () => command(one) }));
    const few = (group, items, more) => {
      const isWhole = unfolded.includes(group) || items.length <= EACH_MAX;
      const unfold = () => setUnfolded((before) => [...before, group]);
      if (!isWhole) return [...items.slice(0, EACH_MAX), { key: `m${group}`, group, title: `Show ${items.length - EACH_MAX} more`, detail: "", act: unfold }];
      return more && items.length ? [...items, more] : items;
    };
    const older = state.hasOlder && { key: "older", group: "Conversations", title: "Search older conversations too", detail: "", act: () => session.loadOlder() };
    const every = messages.length >= wanted && wanted < MESSAGES_MAX;
    const further = every && { key: "further", group: "Messages", title: "Show older messages", detail: "", act: () => setWanted(Math.min(MESSAGES_MAX, wanted * 3)) };
    if (only) return further ? [...said, further] : said;
    if (!words.length) return [...few("Conversations", threads), ...views, ...few("Agents", agents)];
    return [
      ...few("Conversations", threads), ...(older ? [older] : []), ...few("Views", views), ...few("Settings", settings), ...few("Actions", actions),
      ...few("Agents", agents), ...few("Commands", commands), ...few("Messages", said, further),
    ];
  }, [text, messages, others, only, state.threads, state.hasOlder, unfolded, wanted]);

  const command = (one) => {
    close();
    session.suggest(`/${one.name}${one.usage ? " " : ""}`);
  };
  const perform = (one) => {
    close();
    one.act({ openDialog, hideRail, session, thread: route.thread, manage: () => openDialog({ name: "manage", thread: route.thread, info }) });
  };
  const begin = (set, value) => {
    set(value);
    setUnfolded([]);
    setWanted(MESSAGES_AT_ONCE);
    setAt(0); // not in an effect, which would run after the next key and undo its choice
  };
  const move = (by) => {
    const next = (at + by + found.length) % Math.max(1, found.length);
    setAt(next);
    list.current.querySelectorAll("[role=option]")[next]?.scrollIntoView({ block: "nearest" });
  };
  const keyed = (event) => {
    if (event.isComposing) return;
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter") found[at]?.act();
    else if (event.key === "Escape") close(); // closes even if the box contains text
    else return;
    event.preventDefault();
  };
  return html`
    <${Dialog} label=${only ? "Find in this conversation" : "Search"} close=${close} kind="is-wide is-palette" isBare>
      <input type="search" role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant=${found.length ? `found-${at}` : null} aria-label="Search"
        placeholder=${only ? "Find in this conversation" : "Search, or go to a view"} autocomplete="off" spellcheck="false" value=${text}
        onInput=${(event) => begin(setText, event.target.value)} onKeyDown=${keyed} />
      ${state.threads?.some((info) => info.thread === thread) &&
      html`<label class="only"><input type="checkbox" checked=${only} onChange=${(event) => begin(setOnly, event.target.checked)} /> Only in this conversation</label>`}
      <div class="found" id="found" role="listbox" aria-label="Results" ref=${list}>
        ${found.map((one, place) => html`
          ${one.group !== found[place - 1]?.group && html`<p class="found-group" aria-hidden="true" key=${`g${one.group}`}>${one.group}</p>`}
          <div key=${one.key} id=${`found-${place}`} role="option" aria-selected=${place === at} onClick=${one.act} onMouseMove=${() => setAt(place)}>
            <span class="found-title"><${Marked} text=${one.title} words=${words} /></span><span class="faint">${visible(one.detail || "")}</span>
          </div>`)}
        ${messages.length >= MESSAGES_MAX && html`<p class="faint empty">These are the newest ${MESSAGES_MAX} messages. Add a word to find older ones.</p>`}
        ${!found.length && text.trim() && !problem && html`<p class="faint empty">Nothing found. Try fewer words.</p>`}
      </div>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    <//>
  `;
}
