// Overview: finished work, pending approvals, failures, upcoming schedules and cost.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { ago, clockTime, count, dollars, duration, fullTime, here, plain, scheduleName, threadName, visible } from "../format.js";
import { calledBy } from "../me.js";
import { Columns, Figures, Legend } from "./charts.js";
import { Face } from "./face.js";
import { Place, useAnswer } from "./lists.js";
import { Words } from "./words.js";

const POLL_MS = 30_000;
const DONE_SHOWN = 12;
const WAITING_SHOWN = 10;
const COMING_SHOWN = 8;
const FAULTS = { failed: "Failed", limit: "Limit reached" };
const SERIES = [
  { name: "done", shown: "Done", kind: "is-c0" },
  { name: "aborted", shown: "Stopped", kind: "is-c6" },
  { name: "wrong", shown: "Problems", kind: "is-wrong" },
];

/** Return columns with the number of turns that ended in each hour, oldest first. */
export function byHour(counts, untilMs, hours = 24) {
  const end = Math.ceil(untilMs / 3_600_000) * 3_600_000;
  const columns = Array.from({ length: hours }, (_, at) => {
    const from = end - (hours - at) * 3_600_000;
    return { key: from, label: new Date(from).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }), parts: {} };
  });
  for (const { at, outcome, turns } of counts) { // some time zones are offset by half an hour
    const column = columns[Math.max(0, hours - Math.ceil((end - Date.parse(at)) / 3_600_000))];
    const kind = FAULTS[outcome] ? "wrong" : outcome;
    if (column) column.parts[kind] = (column.parts[kind] || 0) + turns;
  }
  for (const column of columns) {
    const said = SERIES.filter(({ name }) => column.parts[name]).map(({ name, shown }) => `${column.parts[name]} ${shown.toLowerCase()}`);
    column.said = `From ${column.label}: ${said.join(", ") || "nothing"}`;
  }
  return columns;
}

/** Count the turns with these outcomes. */
export const ended = (counts, isCounted = () => true) => counts.filter(({ outcome }) => isCounted(outcome)).reduce((sum, { turns }) => sum + turns, 0);

const at = (thread, seq) => `#/t/${encodeURIComponent(thread)}${seq ? `/e/${seq}` : ""}`;

export function Today() {
  const [overview, problem, reload] = useAnswer(api.overview, POLL_MS);
  const [info] = useAnswer(api.info, POLL_MS);
  const notes = info?.notes || [];
  const turns = overview ? ended(overview.hours) : 0;
  const wrong = overview ? ended(overview.hours, (outcome) => FAULTS[outcome]) : 0;
  const faults = overview ? wrong + overview.failing.length : 0;
  return html`
    <${Place} intro="The last 24 hours and the next 24 hours." problem=${problem} reload=${reload} loading=${!overview}>
      ${overview && html`
        <${Figures} figures=${[
          { name: "Done", value: count(ended(overview.hours, (outcome) => outcome === "done")), note: turns ? `of ${count(turns)} turns` : "no turns yet" },
          { name: "Waiting for you", value: count(overview.waiting.length), kind: overview.waiting.length ? "is-ask" : "", href: "#/approvals" },
          { name: "Problems", value: count(faults), kind: faults ? "is-bad" : "" },
          { name: "Spent today", value: dollars(overview.calls ? overview.usd : 0), note: `${count(overview.calls)} model calls`, href: "#/usage" },
          { name: "Coming up", value: count(overview.coming_soon), note: overview.coming.length ? `next ${ago(overview.coming[0].at)}` : "nothing scheduled", href: "#/schedules" },
        ]} />
        ${overview.waiting.length > 0 && html`<${Waits} waiting=${overview.waiting} />`}
        ${faults > 0 && html`<${Wrong} turns=${overview.faults} total=${wrong} failing=${overview.failing} />`}
        <section class="panel" aria-label="Recent activity">
          <h2>Recent activity</h2>
          ${turns > 0 && html`
            <${Columns} label=${`Turns by hour: ${turns} in 24 hours`} columns=${byHour(overview.hours, Date.parse(overview.until))} series=${SERIES} format=${wholeNumber} height=${130} />
            <${Legend} series=${SERIES.filter(({ name }) => name === "done" || overview.hours.some(({ outcome }) => (FAULTS[outcome] ? "wrong" : outcome) === name))} />
            <${Done} turns=${overview.turns} total=${turns} />
          `}
          ${!turns && html`<p class="faint">No turns in the last 24 hours. <a href="#/new">Start a conversation</a> to see results here.</p>`}
        </section>
        <section class="panel" aria-label="Coming up">
          <h2>Coming up</h2>
          ${overview.coming.length
            ? html`<ul class="lines">${overview.coming.slice(0, COMING_SHOWN).map((one) => html`<li key=${one.id}><time datetime=${one.at} title=${fullTime(one.at)}>${clockTime(one.at)}</time><span class="clamped">${visible(scheduleName(one.text))}</span><span class="faint">${ago(one.at)}</span></li>`)}</ul>
                ${overview.coming_total > COMING_SHOWN && html`<p class="faint">${COMING_SHOWN} of ${overview.coming_total}. <a href="#/schedules">Show all schedules</a></p>`}`
            : html`<p class="faint">Nothing is scheduled. <a href="#/schedules">Add a schedule</a>, or ask an agent: “Send me a brief every morning at 8.”</p>`}
        </section>
        ${notes.length > 0 && html`<section class="panel" aria-label="Notes"><h2>Notes</h2>${notes.map((note) => html`<p key=${note} class="breakable"><${Words} text=${note} /></p>`)}</section>`}
      `}
    <//>
  `;
}

const wholeNumber = (value) => (Number.isInteger(value) ? String(value) : "");

const Waits = ({ waiting }) => html`
  <section class="panel is-ask" aria-label="Waiting for you">
    <h2>Waiting for you</h2>
    <ul class="done">
      ${waiting.slice(0, WAITING_SHOWN).map((one) => html`
        <li key=${one.id}>
          <${Face} name=${one.agent || "agent"} />
          <a href=${at(one.asked_in)}>
            <span class="clamped">${threadName({ title: one.title }, one.asked_in)}</span>
            <code class="clamped">${visible(one.shown || one.action)}</code>
            ${one.reason && html`<span class="clamped faint">${visible(one.reason)}</span>`}
          </a>
          <span class="faint facts">${[visible(one.agent || "agent"), ` with ${one.tool}`, one.asked_by && ` for ${visible(calledBy(one.asked_by))}`, ` · expires at ${clockTime(one.expires_at)}`]}</span>
        </li>`)}
    </ul>
    ${waiting.length > WAITING_SHOWN && html`<p class="faint">${WAITING_SHOWN} of ${waiting.length}. <a href="#/approvals">Show all approvals</a></p>`}
  </section>
`;

const Wrong = ({ turns, total, failing }) => html`
  <section class="panel is-bad" aria-label="Problems">
    <h2>Problems</h2>
    <ul class="lines">
      ${turns.map((turn) => html`<li key=${`${turn.thread}/${turn.seq}`}><span class="tag is-failed">${FAULTS[turn.outcome]}</span><span class="clamped"><a href=${at(turn.thread, turn.seq)}><b>${threadName({ title: turn.title }, turn.thread)}</b></a> <${Words} text=${here(turn.reply) || turn.asked} /></span><time class="faint" datetime=${turn.at} title=${fullTime(turn.at)}>${clockTime(turn.at)}</time></li>`)}
      ${failing.map((one) => html`<li key=${one.id}><span class="tag is-failed">Schedule</span><span class="clamped"><a href="#/schedules"><b>${visible(scheduleName(one.text))}</b></a>: <${Words} text=${one.error || "missed because Shoal was not running."} /></span></li>`)}
    </ul>
    ${total > turns.length && html`<p class="faint">The newest ${turns.length} of ${total} turns with problems.</p>`}
  </section>
`;

function Done({ turns, total }) {
  const [isWhole, setIsWhole] = useState(false);
  const shown = isWhole ? turns : turns.slice(0, DONE_SHOWN);
  return html`
    <ul class="done">
      ${shown.map((turn) => html`
        <li key=${`${turn.thread}/${turn.seq}`}>
          <${Face} name=${turn.agent || "agent"} />
          <a href=${at(turn.thread, turn.seq)}>
            <span class="clamped">${FAULTS[turn.outcome] && html`<span class="tag is-failed">${FAULTS[turn.outcome]}</span> `}${visible(turn.asked) || threadName({ title: turn.title }, turn.thread)}</span>
            <span class="clamped faint">${visible(plain(here(turn.reply))) || "Nothing was posted."}</span>
          </a>
          <span class="faint facts"><time datetime=${turn.at} title=${fullTime(turn.at)}>${clockTime(turn.at)}</time>${` · ${duration(turn.seconds * 1000)}`}</span>
        </li>
      `)}
    </ul>
    ${total > shown.length && html`
      <p class="faint">The newest ${shown.length} of ${count(total)} turns.
        ${shown.length < turns.length && html` <button type="button" class="quiet" onClick=${() => setIsWhole(true)}>Show ${turns.length - shown.length} more</button>`}
      </p>`}
  `;
}
