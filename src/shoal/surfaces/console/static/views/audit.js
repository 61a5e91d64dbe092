// The audit log, with a search and an integrity check.

import { api } from "../api.js";
import { html, useMemo, useState } from "../dom.js";
import { byName, clockTime, count, fullTime, visible } from "../format.js";
import { canChange } from "../me.js";
import { Place, useAnswer, useAttempt } from "./lists.js";
import { Rule, allRules, wordsByRule } from "./rules.js";
import { Words } from "./words.js";

const COLUMNS = ["Time", "Event", "Action", "Decision", "By"];
const KINDS = {
  check: "Checked", approval: "Answered", call: "API call", access: "Access", agent: "Agent", backup: "Backup", budget: "Limit", config: "Configuration",
  import: "Import", mcp: "MCP tool", memory: "Memory", self_edit: "Self-change", settings: "Settings", setup: "Set up", skill: "Skill", thread: "Thread", token: "Token", undo: "Undo",
};
const CHECKED = { allow: "ran", ask: "asked for approval", deny: "denied" };
const DECIDED = { allow: "allowed", ask: "asked", deny: "denied", cancelled: "cancelled", expired: "expired", none: "–" };

/** Return the display name of a kind or decision. Unknown ones keep their own names. */
export const kindWords = (kind) => KINDS[kind] || kind.replaceAll("_", " ");
export const decisionWords = (decision, kind) => (kind === "check" && CHECKED[decision]) || DECIDED[decision] || decision.replaceAll("_", " ");
const DIGEST = / ([0-9a-f]{12})[0-9a-f]{52}$/; // digests are shortened for display
const READ = [1_000, 10_000];
const SHOWN = 100;

/** Whether an entry matches the search. */
export function fits({ entry }, { text, kind, decision }) {
  if (kind && entry.kind !== kind) return false;
  if (decision && (entry.decision || "none") !== decision) return false;
  return !text || [entry.action, entry.rule, entry.user, entry.agent, entry.token, entry.detail].some((one) => (one || "").toLowerCase().includes(text.toLowerCase()));
}

const kindsOf = (rows, name) => [...new Set(rows.map(({ entry }) => entry[name] || "none"))].sort(byName);

export function Audit() {
  const [limit, setLimit] = useState(READ[0]);
  const [rows, problem, reload] = useAnswer(() => api.audit(READ[0]));
  const [more, setMore] = useState(null);
  const [wanted, setWanted] = useState({ text: "", kind: "", decision: "" });
  const [shown, setShown] = useState(SHOWN);
  const [rules] = useAnswer(allRules); // without descriptions, rules are shown as patterns
  const words = useMemo(() => (rules ? wordsByRule(rules) : new Map()), [rules]);
  const all = more || rows || [];
  const found = useMemo(() => all.filter((row) => fits(row, wanted)), [all, wanted]);
  const want = (fields) => (setShown(SHOWN), setWanted({ ...wanted, ...fields }));
  const older = async () => {
    setMore(await api.audit(READ[1]).catch(() => rows));
    setLimit(READ[1]);
  };
  const restart = () => (setMore(null), setLimit(READ[0]), reload());
  return html`
    <${Place} isWide intro="Permission checks, decisions and changes, newest first. Each entry contains the hash of the previous one, which reveals tampering." problem=${problem} reload=${reload} loading=${!rows}>
      ${canChange() && html`<${State} />`}
      <div class="filter" role="search" aria-label="Find in the audit log">
        <label>Find <input type="search" value=${wanted.text} onInput=${(event) => want({ text: event.target.value })} /></label>
        <label>Event <select value=${wanted.kind} onChange=${(event) => want({ kind: event.target.value })}><option value="">all</option>${kindsOf(all, "kind").map((kind) => html`<option value=${kind}>${kindWords(kind)}</option>`)}</select></label>
        <label>Decision <select value=${wanted.decision} onChange=${(event) => want({ decision: event.target.value })}><option value="">all</option>${kindsOf(all, "decision").map((decision) => html`<option value=${decision}>${decisionWords(decision, wanted.kind)}</option>`)}</select></label>
        <button type="button" class="quiet" onClick=${restart}>Reload</button>
      </div>
      ${rows && html`<p class="faint" role="status">${found.length === all.length ? `${count(all.length)} ${all.length === 1 ? "entry" : "entries"}` : `${count(found.length)} of ${count(all.length)} entries`}</p>`}
      ${rows && !found.length && html`<p class="faint empty">${all.length ? "Nothing found." : "No entries yet."}</p>`}
      ${found.length > 0 && html`
        <table class="audit">
          <thead><tr>${COLUMNS.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
          <tbody>${found.slice(0, shown).map((row) => html`<${Line} key=${`${row.chain}/${row.number}`} row=${row} words=${words} />`)}</tbody>
        </table>
      `}
      ${found.length > shown && html`<p class="sheet-line"><button type="button" class="plain" onClick=${() => setShown(shown + 4 * SHOWN)}>Show more</button></p>`}
      ${found.length <= shown && all.length >= limit && limit < READ[1] && html`<p class="sheet-line"><button type="button" class="plain" onClick=${older}>Load older entries</button></p>`}
    <//>
  `;
}

function State() {
  const [state, setState] = useState(null);
  const [busy, setBusy] = useState(false);
  const [attempt, problem] = useAttempt(async () => {});
  const check = async () => {
    setBusy(true);
    await attempt(async () => setState(await api.verifyAudit()));
    setBusy(false);
  };
  return html`
    <div class=${`card state ${state ? (state.broken.length ? "is-bad" : "is-good") : ""}`} role="status">
      <p class="card-head">
        <b>${!state ? "Is the log intact?" : state.broken.length ? "Someone changed the log" : "The log is intact"}</b>
        <button type="button" class="plain" aria-disabled=${busy} onClick=${() => !busy && check()}>${busy ? "Checking…" : state ? "Check again" : "Check now"}</button>
      </p>
      ${state && !state.broken.length && html`<p class="faint">All ${count(state.entries)} entries are present and unchanged.</p>`}
      ${state?.broken.map((one) => html`<p class="problem breakable">${visible(one)}</p>`)}
      ${!state && html`<p class="faint">The check reads every entry, which can take a while.</p>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </div>
  `;
}

function Line({ row, words }) {
  const { entry } = row;
  const [, tool, what] = /^tool:([^:]+):([^]*)$/.exec(entry.action || "") || ["", "", entry.action || ""];
  return html`
    <tr class=${`is-${entry.decision || "none"}`}>
      <td data-label="Time"><time datetime=${row.at} title=${fullTime(row.at)}>${clockTime(row.at)}</time></td>
      <td data-label="Event">${kindWords(entry.kind)}</td>
      <td data-label="Action">${tool && html`<b>${tool}</b> `}<code class="clamped" title=${visible(what)}>${visible(what.replace(DIGEST, " $1…"))}</code>${entry.rule && html`<${Rule} rule=${entry.rule} words=${words.get(entry.rule) && `Rule: ${words.get(entry.rule)}`} />`}</td>
      <td data-label="Decision"><span class=${`tag is-${entry.decision}`}>${decisionWords(entry.decision || "none", entry.kind)}</span></td>
      <td data-label="By">${entry.user || entry.agent || "–"}${entry.token && html` <span class="faint">token ${entry.token}</span>`}</td>
    </tr>
  `;
}
