// Memory: agents' notes everywhere, per channel and per day.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { ago, fullTime, visible } from "../format.js";
import { calledBy, canChange } from "../me.js";
import { useChats } from "./chats.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { Words } from "./words.js";

const CHANGES = 30;
const BULLET = /^\s*[-*]\s+/;
const TITLES = { global: "Everywhere", platform: "On this platform", channel: "In this channel" };

/** Return a memory file's entries: its non-empty lines, without list markers. */
export const entriesOf = (text) => text.split("\n").filter((line) => line.trim() && !line.startsWith("#")).map((line) => ({ line, said: line.replace(BULLET, "").replace(/<!-- only .*?-->/, "").trim() }));

export function Memory() {
  const [thread, setThread] = useState("");
  const [chats] = useChats();
  return html`
    <${Place} intro="Agents write these notes. You can edit or delete them, and changes take effect on the next turn." loading=${false}>
      <div class="filter"><label>Show <select value=${thread} onChange=${(event) => setThread(event.target.value)}>
        <option value="">Everywhere</option>
        ${(chats || []).map((chat) => html`<option key=${chat.thread} value=${chat.thread}>${chat.name}</option>`)}
      </select></label></div>
      <${Files} key=${thread} thread=${thread} />
    <//>
  `;
}

function Files({ thread }) {
  const [files, problem, reload] = useAnswer(() => api.memory(thread));
  const [changes, , again] = useAnswer(() => api.memoryChanges(CHANGES));
  const reloadAll = () => Promise.all([reload(), again()]);
  return html`
    ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    ${!files && !problem && html`<p class="faint">Loading…</p>`}
    <ul class="cards">${(files || []).map((file) => html`<${File} key=${file.path} file=${file} thread=${thread} reload=${reloadAll} />`)}</ul>
    ${changes && html`<${Changes} changes=${changes} reload=${reloadAll} />`}
  `;
}

function File({ file, thread, reload }) {
  const [draft, setDraft] = useState(null); // {text, digest} while editing
  const [attempt, problem] = useAttempt(reload);
  const title = file.scope === "note" ? new Date(file.day).toLocaleDateString("en-GB", { dateStyle: "full", timeZone: "UTC" }) : TITLES[file.scope];
  const entries = entriesOf(file.text);
  const place = { scope: file.scope, ...(file.day ? { day: file.day } : {}), ...(["platform", "channel"].includes(file.scope) ? { thread } : {}) };
  const save = async (event) => {
    event.preventDefault();
    if (await attempt(() => api.writeMemory({ ...place, ...draft }))) setDraft(null);
  };
  return html`
    <li class="card">
      <p class="card-head"><b>${title}</b><span class="tag">${file.scope === "note" ? "note" : "memory"}</span></p>
      ${draft
        ? html`<form class="form" onSubmit=${save}>
            <label><span class="offscreen">Text of ${title}</span><textarea rows=${Math.min(20, Math.max(5, draft.text.split("\n").length + 1))} spellcheck="false" value=${draft.text} onInput=${(event) => setDraft({ ...draft, text: event.target.value })}></textarea></label>
            <p class="card-foot"><button type="submit" class="primary">Save</button><button type="button" class="quiet" onClick=${() => setDraft(null)}>Cancel</button></p>
          </form>`
        : html`
          ${entries.length
            ? html`<ul class="entries">${entries.map(({ line, said }, at) => html`<li key=${`${at}${line}`}><span class="breakable">${visible(said)}</span>${canChange() && html`<${Sure} label="Forget" what=${said} yes="Forget this" act=${() => attempt(() => api.forget({ ...place, entry: line.replace(/<!-- only .*?-->/, "").trim() }))} />`}</li>`)}</ul>`
            : html`<p class="faint">No notes yet.</p>`}
          ${canChange() && html`<p class="card-foot"><button type="button" class="plain" aria-label=${`Edit ${title}`} onClick=${() => setDraft({ text: file.text, digest: file.digest })}>Edit</button>
            ${entries.length > 1 && html`<${Sure} label="Forget all" what=${`notes: ${title}`} yes="Forget all notes" act=${() => attempt(() => api.forget(place))} />`}</p>`}
        `}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}

const Changes = ({ changes, reload }) => html`
  <section aria-label="Changes">
    <h2>Changes</h2>
    ${!changes.length && html`<p class="faint">No recent changes.</p>`}
    <ul class="cards">${changes.map((change) => html`<${Change} key=${change.id} change=${change} reload=${reload} />`)}</ul>
  </section>
`;

function Change({ change, reload }) {
  const [attempt, problem] = useAttempt(reload);
  return html`
    <li class="card change">
      ${change.removed.map((line) => html`<del class="breakable">${visible(line.replace(BULLET, ""))}</del>`)}
      ${change.added.map((line) => html`<ins class="breakable">${visible(line.replace(BULLET, ""))}</ins>`)}
      <p class="card-foot">
        <span class="faint">By ${visible(calledBy(change.agent || change.changed_by) || "unknown")} <time datetime=${change.at} title=${fullTime(change.at)}>${ago(change.at)}</time></span>
        ${change.undone ? html`<span class="faint">undone</span>` : canChange() && html`<button type="button" class="quiet" onClick=${() => attempt(() => api.undoMemory(change.id))}>Undo</button>`}
      </p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}
