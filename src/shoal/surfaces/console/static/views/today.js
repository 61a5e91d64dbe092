// How things stand: what agents did, what waits, what went wrong, what comes, what it cost.

import { api } from "../api.js";
import { html } from "../dom.js";
import { ago, clockTime, count, dollars, duration, fullTime, here, plain, threadName, visible } from "../format.js";
import { Columns, Figures, Legend } from "./charts.js";
import { Face } from "./face.js";
import { Place, useAnswer } from "./lists.js";
import { Words } from "./words.js";

const POLL_MS = 30_000;
const DONE_SHOWN = 12;
const FAULTS = { failed: "Failed", limit: "Ended at a limit" };
const SERIES = [
  { name: "done", shown: "Done", kind: "is-c0" },
  { name: "aborted", shown: "Stopped", kind: "is-c6" },
  { name: "wrong", shown: "Went wrong", kind: "is-wrong" },
];

/** Turns by the hour in which they ended, as columns, the last hour last. Pure. */
export function byHour(turns, untilMs, hours = 24) {
  const end = Math.ceil(untilMs / 3_600_000) * 3_600_000;
  const columns = Array.from({ length: hours }, (_, at) => {
    const from = end - (hours - at) * 3_600_000;
    return { key: from, label: new Date(from).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }), parts: {} };
  });
  for (const turn of turns) {
    const column = columns[hours - Math.ceil((end - Date.parse(turn.at)) / 3_600_000)];
    const kind = FAULTS[turn.outcome] ? "wrong" : turn.outcome;
    if (column) column.parts[kind] = (column.parts[kind] || 0) + 1;
  }
  for (const column of columns) {
    const said = SERIES.filter(({ name }) => column.parts[name]).map(({ name, shown }) => `${column.parts[name]} ${shown.toLowerCase()}`);
    column.said = `From ${column.label}: ${said.join(", ") || "nothing"}`;
  }
  return columns;
}

const at = (thread, seq) => `#/t/${encodeURIComponent(thread)}${seq ? `/e/${seq}` : ""}`;

export function Today({ state }) {
  const [found, problem, reload] = useAnswer(api.overview, POLL_MS);
  const [info] = useAnswer(api.info, POLL_MS);
  const wrong = (found?.turns || []).filter((turn) => FAULTS[turn.outcome]);
  const done = (found?.turns || []).filter((turn) => turn.outcome === "done");
  const notes = info?.notes || [];
  const faults = found ? wrong.length + found.failing.length : 0;
  return html`
    <${Place} intro="The last 24 hours, and the next." problem=${problem} reload=${reload} loading=${!found}>
      ${found && html`
        <${Figures} figures=${[
          { name: "Done", value: count(done.length), note: found.turns.length ? `of ${count(found.turns.length)} turns` : "no turns yet" },
          { name: "Waits for you", value: count(found.waiting.length), kind: found.waiting.length ? "is-ask" : "", href: "#/approvals" },
          { name: "Went wrong", value: count(faults), kind: faults ? "is-bad" : "" },
          { name: "Spent today", value: found.calls && found.usd === null ? "unknown" : dollars(found.usd || 0), note: `${count(found.calls)} model calls`, href: "#/usage" },
          { name: "Coming up", value: count(found.coming.length), note: found.coming.length ? `next ${ago(found.coming[0].at)}` : "nothing scheduled", href: "#/schedules" },
        ]} />
        ${found.waiting.length > 0 && html`<${Waits} waiting=${found.waiting} threads=${new Map((state.threads || []).map((info) => [info.thread, info]))} />`}
        ${faults > 0 && html`<${Wrong} turns=${wrong} failing=${found.failing} />`}
        <section class="panel" aria-label="What agents did">
          <h2>What agents did</h2>
          ${found.turns.length > 0 && html`
            <${Columns} label=${`Turns by hour: ${found.turns.length} in 24 hours`} columns=${byHour(found.turns, Date.parse(found.until))} series=${SERIES} format=${wholeNumber} height=${130} />
            <${Legend} series=${SERIES.filter(({ name }) => name === "done" || found.turns.some((turn) => (FAULTS[turn.outcome] ? "wrong" : turn.outcome) === name))} />
            <${Done} turns=${found.turns} />
          `}
          ${!found.turns.length && html`<p class="faint">Nothing was asked or done. <a href="#/new">Begin a thread</a>; what comes of it is told here.</p>`}
        </section>
        <section class="panel" aria-label="Coming up">
          <h2>Coming up</h2>
          ${found.coming.length
            ? html`<ul class="lines">${found.coming.map((one) => html`<li key=${one.id}><time datetime=${one.at} title=${fullTime(one.at)}>${clockTime(one.at)}</time><span class="clamped">${visible(one.text)}</span><span class="faint">${ago(one.at)}</span></li>`)}</ul>`
            : html`<p class="faint">Nothing is scheduled for the next 24 hours. <a href="#/schedules">Schedule something</a>.</p>`}
        </section>
        ${notes.length > 0 && html`<section class="panel" aria-label="Good to know"><h2>Good to know</h2>${notes.map((note) => html`<p key=${note} class="breakable"><${Words} text=${note} /></p>`)}</section>`}
      `}
    <//>
  `;
}

const wholeNumber = (value) => (Number.isInteger(value) ? String(value) : "");

const Waits = ({ waiting, threads }) => html`
  <section class="panel is-ask" aria-label="Waits for you">
    <h2>Waits for you</h2>
    <ul class="done">
      ${waiting.map((one) => {
        const info = threads.get(one.asked_in);
        const agent = info?.agent || "agent";
        return html`
          <li key=${one.id}>
            <${Face} name=${agent} />
            <a href=${at(one.asked_in)}>
              <span class="clamped">${threadName(info, one.asked_in)}</span>
              <code class="clamped">${visible(one.shown || one.action)}</code>
            </a>
            <span class="faint facts">${visible(agent)} with ${one.tool} · until ${clockTime(one.expires_at)}</span>
          </li>`;
      })}
    </ul>
  </section>
`;

const Wrong = ({ turns, failing }) => html`
  <section class="panel is-bad" aria-label="Went wrong">
    <h2>Went wrong</h2>
    <ul class="lines">
      ${turns.map((turn) => html`<li key=${`${turn.thread}/${turn.seq}`}><a href=${at(turn.thread, turn.seq)}>${FAULTS[turn.outcome]}</a><span class="clamped"><b>${threadName({ title: turn.title }, turn.thread)}</b> <${Words} text=${here(turn.reply) || turn.asked} /></span><time class="faint" datetime=${turn.at} title=${fullTime(turn.at)}>${clockTime(turn.at)}</time></li>`)}
      ${failing.map((one) => html`<li key=${one.id}><a href="#/schedules">Schedule</a><span class="clamped">${visible(one.text)}: <${Words} text=${one.error || "its time passed while nobody could send it."} /></span></li>`)}
    </ul>
  </section>
`;

const Done = ({ turns }) => html`
  <ul class="done">
    ${turns.slice(0, DONE_SHOWN).map((turn) => html`
      <li key=${`${turn.thread}/${turn.seq}`}>
        <${Face} name=${turn.agent || "agent"} />
        <a href=${at(turn.thread, turn.seq)}>
          <span class="clamped">${visible(turn.asked) || threadName({ title: turn.title }, turn.thread)}</span>
          <span class="clamped faint">${visible(plain(turn.reply)) || "Nothing was posted."}</span>
        </a>
        <span class="faint facts"><time datetime=${turn.at} title=${fullTime(turn.at)}>${clockTime(turn.at)}</time>${` · ${duration(turn.seconds * 1000)}`}</span>
      </li>
    `)}
  </ul>
  ${turns.length > DONE_SHOWN && html`<p class="faint">and ${turns.length - DONE_SHOWN} more; the threads have them all.</p>`}
`;
