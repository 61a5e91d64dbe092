// Comparisons of recorded turns with other models' answers.

import { api } from "../api.js";
import { html, useEffect, useRef, useState } from "../dom.js";
import { count, dollars, fullTime, threadName, visible } from "../format.js";
import { Dialog } from "./dialog.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { Words } from "./words.js";

const NAMES = { same: "same", words: "different text", arguments: "different arguments", calls: "different calls", refused: "refused", failed: "failed" };
const MEANINGS = {
  same: "the same tools with the same arguments, or the same answer",
  words: "an answer with different text",
  arguments: "the same tools with different arguments",
  calls: "different tools, or an answer instead of a call",
  refused: "the model declined",
  failed: "no answer",
};
const ORDER = Object.keys(NAMES);
const DIFF_LINES_MAX = 400;
const READS_MAX = 20; // pause between reloads of a matrix while it fills

/** Return the largest difference, or an empty string. */
export const worst = (differences) => differences.reduce((most, one) => (ORDER.indexOf(one) > ORDER.indexOf(most) ? one : most), "");

/** Group comparisons of the same calls, in order: `[{key, title, states}]`. */
export function grouped(states) {
  const groups = new Map();
  for (const state of states) {
    const said = [state.selection, state.profile && `profile ${state.profile}`, state.has_system && "other instructions"].filter(Boolean).join(", ");
    const title = state.selection.startsWith("the last") ? `T${said.slice(1)}` : said;
    const group = groups.get(title) || { key: title, title, states: [] };
    group.states.push(state);
    groups.set(title, group);
  }
  return [...groups.values()];
}

/** Return the turns of several views as rows: `[{key, thread, turn, asked, steps: {comparison: [steps]}}]`. */
export function turnsOf(views) {
  const turns = new Map();
  for (const view of views) {
    for (const step of view.steps) {
      const key = `${step.thread} ${step.turn}`;
      const row = turns.get(key) || { key, thread: step.thread, turn: step.turn, asked: step.asked, recorded: step.model, steps: {} };
      (row.steps[view.state.id] ||= []).push(step);
      turns.set(key, row);
    }
  }
  return [...turns.values()];
}

/** Compare two texts line by line: `[[line, kind]]` for each side, where kind is "" for common lines. */
export function sides(before, after) {
  const left = before.split("\n").slice(0, DIFF_LINES_MAX);
  const right = after.split("\n").slice(0, DIFF_LINES_MAX);
  const lengths = Array.from({ length: left.length + 1 }, () => new Uint16Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      lengths[i][j] = left[i] === right[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const found = [[], []];
  let [i, j] = [0, 0];
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) {
      found[0].push([left[i++], ""]);
      found[1].push([right[j++], ""]);
    } else if (j >= right.length || (i < left.length && lengths[i + 1][j] >= lengths[i][j + 1])) found[0].push([left[i++], "gone"]);
    else found[1].push([right[j++], "new"]);
  }
  return found;
}

/** Format an answer: its calls with their arguments, then its text. */
export function written(answer) {
  const calls = (answer.calls || []).map((call) => {
    try {
      return `→ ${call.name} ${JSON.stringify(JSON.parse(call.arguments || "{}"), null, 1)}`;
    } catch {
      return `→ ${call.name} ${call.arguments}`;
    }
  });
  return visible([...calls, answer.text || ""].filter(Boolean).join("\n")) || (answer.failed ? `Failed: ${visible(answer.failed)}` : "(empty)");
}

export function Compare({ state }) {
  const [states, problem, reload] = useAnswer(api.comparisons);
  const [running, setRunning] = useState(null); // {id, done, calls, usd} of the running comparison
  const [stopped, setStopped] = useState("");
  const stop = useRef(null);
  useEffect(() => () => stop.current?.abort(), []);
  const run = async ({ id, done, calls }) => {
    const control = new AbortController();
    stop.current = control;
    setStopped("");
    setRunning({ id, done, calls });
    try {
      await api.runComparison(id, { signal: control.signal, take: (one) => (one.stopped ? setStopped(one.stopped) : setRunning({ id, ...one })) });
    } catch (error) {
      if (!control.signal.aborted) setStopped(`${error.message} Answers so far are saved.`);
    }
    await reload();
    setRunning(null);
  };
  return html`
    <${Place} intro="See how another model would answer past turns. Compare runs no tools and posts nothing." problem=${problem} reload=${reload} loading=${!states}>
      <${Begin} threads=${state.threads || []} running=${running} run=${run} stop=${() => stop.current.abort()} reload=${reload} />
      ${stopped && html`<p class="problem" role="alert"><${Words} text=${stopped} /></p>`}
      ${states && !states.length && html`<p class="faint empty">No comparisons yet. Choose a model above, or use <code>shoal compare</code> in a terminal.</p>`}
      ${grouped(states || []).map((group) => html`<${Group} key=${`${group.key} ${group.states.map((one) => one.id)}`} group=${group} running=${running} run=${run} reload=${reload} />`)}
    <//>
  `;
}

const toGo = ({ estimated_tokens: tokens, estimated_usd: usd }) => `about ${count(tokens)} tokens, ${usd === null ? "–" : `about ${dollars(usd)}`}`;

/** A form that estimates calls. A second button starts them. */
function Begin({ threads, running, run, stop, reload }) {
  const [models] = useAnswer(api.models);
  const [fields, setFields] = useState({ model: "", what: "10", usd: "1" });
  const [plan, setPlan] = useState(null);
  const [problem, setProblem] = useState("");
  const set = (name) => (event) => {
    setFields({ ...fields, [name]: event.target.value });
    setPlan(null);
  };
  const choose = async (event) => {
    event.preventDefault();
    const what = fields.what.trim();
    const wanted = /^\d+$/.test(what) ? { last: Number(what) } : what.startsWith("#") ? { tag: what.slice(1) } : { thread: what };
    try {
      setPlan(await api.beginComparison({ model: fields.model.trim(), ...wanted }, Number(fields.usd) || 0));
      setProblem("");
    } catch (error) {
      setPlan(null);
      setProblem(error.message);
    }
    await reload();
  };
  const begin = () => {
    setPlan(null);
    run(plan);
  };
  const left = plan ? plan.calls - plan.done : 0;
  return html`
    <form class="form compare-form" onSubmit=${choose}>
      <label>Model <input list="compare-models" value=${fields.model} required disabled=${running} placeholder="PROVIDER/MODEL" onInput=${set("model")} /></label>
      <datalist id="compare-models">${(models || []).map((one) => html`<option value=${one.name} />`)}</datalist>
      <label>Turns: a number, a conversation or a #tag <input list="compare-threads" value=${fields.what} required disabled=${running} onInput=${set("what")} /></label>
      <datalist id="compare-threads">${threads.map((info) => html`<option value=${info.thread}>${threadName(info)}</option>`)}</datalist>
      <label>Limit in US$ (0 means no limit) <input type="number" min="0" step="any" value=${fields.usd} disabled=${running} onInput=${set("usd")} /></label>
      <button type="submit" class=${plan ? "plain" : "primary"} disabled=${running}>Estimate</button>
      <div class="line" role="status">
        ${plan && html`<span>${calls(plan.steps)} from ${turns(plan.turns)}${plan.done > 0 ? `, ${count(plan.done)} already answered` : ""}. ${left > 0 ? `Remaining: ${toGo(plan)}.` : "All calls are already answered."}</span>`}
        ${plan && left > 0 && html`<button type="button" class="primary" onClick=${begin}>Ask now</button>`}
        ${running && html`<span>${running.done} of ${running.calls} answered${running.usd ? `, ${dollars(running.usd)}` : ""}…</span> <button type="button" class="plain" onClick=${stop}>Stop</button>`}
      </div>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

const turns = (number) => `${count(number)} ${number === 1 ? "turn" : "turns"}`;
const calls = (number) => `${count(number)} ${number === 1 ? "call" : "calls"}`;

function Group({ group, running, run, reload }) {
  const [views, failed, again] = useAnswer(() => Promise.all(group.states.map((one) => api.comparison(one.id))));
  const [attempt, problem] = useAttempt(reload);
  const [shown, setShown] = useState(null); // {row, state}
  const far = ({ id, calls: whole }) => (running?.id === id ? Math.floor((running.done / whole) * READS_MAX) : "");
  const stamp = group.states.map((one) => `${one.id} ${one.done} ${far(one)}`).join(); // changes when the matrix must be reloaded
  const [read, setRead] = useState(stamp);
  useEffect(() => {
    if (stamp === read) return;
    setRead(stamp);
    again();
  }, [stamp, read]);
  const rows = turnsOf(views || []);
  const seen = ORDER.filter((one) => rows.some((row) => Object.values(row.steps).flat().some((step) => step.answers.some((answer) => answer.difference === one))));
  return html`
    <section class="comparison">
      <h2>${visible(group.title)}</h2>
      ${(failed || problem) && html`<p class="problem" role="alert"><${Words} text=${failed || problem} /> <button type="button" class="quiet" onClick=${again}>Try again</button></p>`}
      ${!views && !failed && html`<p class="faint">Loading…</p>`}
      <div class="matrix-frame" tabindex="0" role="region" aria-label=${`Turns and models: ${group.title}`}>
        <table class="matrix">
          <thead><tr><th scope="col">Turn</th>${group.states.map((one) => html`<th scope="col" title=${fullTime(one.created_at)}>${visible(one.model)}</th>`)}</tr></thead>
          <tbody>
            ${rows.map(
              (row) => html`
                <tr key=${row.key}>
                  <th scope="row"><a href=${`#/t/${encodeURIComponent(row.thread)}/e/${Object.values(row.steps)[0][0].seq}`} title=${visible(row.asked)}>${visible(row.asked) || "(no text)"}</a> <span class="faint">${row.recorded && `answered by ${visible(row.recorded)}`}</span></th>
                  ${group.states.map((one) => html`<td><${Cell} steps=${row.steps[one.id] || []} runs=${one.runs} open=${() => setShown({ row, state: one })} /></td>`)}
                </tr>
              `,
            )}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row">Answered</th>
              ${group.states.map(
                (one) => html`
                  <td>
                    <span class="faint">${one.done} of ${one.calls}${one.done > 0 ? `, ${dollars(one.usd)}` : ""}</span>
                    ${!running && one.done < one.calls && html`<button type="button" class="quiet" aria-label=${`Continue with ${one.model}`} onClick=${() => run(one)}>${one.done > 0 ? "Continue" : "Ask now"}</button>`}
                    ${running?.id !== one.id && html`<${Sure} label="Remove" what=${one.model} yes="Remove it" act=${() => attempt(() => api.removeComparison(one.id))} />`}
                  </td>
                `,
              )}
            </tr>
          </tfoot>
        </table>
      </div>
      ${seen.length > 0 && html`<ul class="legend" aria-label="Legend">${seen.map((one) => html`<li key=${one}><span class=${`cell is-${one}`}>${NAMES[one]}</span> <span class="faint">${MEANINGS[one]}</span></li>`)}</ul>`}
      ${shown && html`<${SideBySide} ...${shown} close=${() => setShown(null)} />`}
    </section>
  `;
}

function Cell({ steps, runs, open }) {
  const answers = steps.flatMap((step) => step.answers.map((one) => one.difference));
  const whole = steps.length * runs;
  if (!answers.length) return html`<span class="cell is-open">${whole ? "pending" : "–"}</span>`;
  const most = worst(answers);
  const like = answers.filter((one) => one === most).length;
  const words = answers.length > 1 && answers.length > like ? `${NAMES[most]} ${like} of ${answers.length}` : NAMES[most];
  return html`<button type="button" class=${`cell is-${most}`} onClick=${open}>${words}${answers.length < whole ? `, ${whole - answers.length} pending` : ""}</button>`;
}

function SideBySide({ row, state, close }) {
  const steps = row.steps[state.id] || [];
  return html`
    <${Dialog} label="Recorded and new answers" kind="is-sides" close=${close}>
      <h2>${visible(row.asked)}</h2>
      ${steps.map((step) => step.answers.map((one) => html`<${Step} key=${`${step.seq} ${one.run}`} step=${step} one=${one} model=${state.model} runs=${state.runs} />`))}
      <p class="sheet-line is-end"><button type="button" class="quiet" onClick=${close}>Close</button></p>
    <//>
  `;
}

function Step({ step, one, model, runs }) {
  const [left, right] = sides(written(step.recorded), written(one.answer));
  return html`
    <section class="pair-of">
      <h3>Call ${step.number}${runs > 1 ? `, run ${one.run}` : ""} <span class=${`cell is-${one.difference}`}>${NAMES[one.difference]}</span></h3>
      <div class="both">
        <${Side} title=${step.model ? `Recorded (${step.model})` : "Recorded"} answer=${step.recorded} lines=${left} />
        <${Side} title=${model} answer=${one.answer} lines=${right} />
      </div>
    </section>
  `;
}

function Side({ title, answer, lines }) {
  const { input_tokens: read = 0, output_tokens: said = 0 } = answer.usage || {};
  const price = dollars(typeof answer.usd === "number" ? answer.usd : null);
  const facts = [`${count(read)} tokens in, ${count(said)} out`, price, typeof answer.seconds === "number" && `${answer.seconds.toFixed(1)} s`];
  return html`
    <figure>
      <figcaption>${visible(title)} <span class="faint">${facts.filter(Boolean).join(" · ")}</span></figcaption>
      <pre tabindex="0">${lines.map(([line, kind]) => (kind ? html`<span class=${`is-${kind}`}>${line}${"\n"}</span>` : `${line}\n`))}</pre>
    </figure>
  `;
}
