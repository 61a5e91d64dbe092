// Background processes of agents, with their output.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { ago, duration, fullTime, visible } from "../format.js";
import { canChange } from "../me.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { TextBlock } from "./textblock.js";
import { Words } from "./words.js";

const POLL_MS = 5_000;
const LOG_POLL_MS = 3_000;
const LOG_LINES = 200;
const ENDS = { exited: "ended", killed: "killed", failed: "did not start", lost: "lost" };

export function Processes() {
  const [processes, problem, reload] = useAnswer(api.processes, POLL_MS);
  return html`
    <${Place} intro="Programs that agents run in the background. A hook starts a turn when a program ends, writes a matching line or takes too long." problem=${problem} reload=${reload} loading=${!processes}>
      <ul class="cards">${(processes || []).map((process) => html`<${Process} key=${process.id} process=${process} reload=${reload} />`)}</ul>
      ${processes && !processes.length && html`<p class="faint empty">No processes yet. Ask an agent: “Start the tests in the background and tell me when they finish.”</p>`}
    <//>
  `;
}

/** Return a process's status as `[words, isBad]`. */
export function standing({ state, exit_code: code }) {
  if (state === "running") return ["running", false];
  if (state === "exited" && code) return [`exit ${code}`, true];
  return [ENDS[state] || state, state !== "exited"];
}

/** Describe a hook's condition. */
export function hookWords(hook) {
  const when = {
    exit: hook.codes?.length ? `when it exits with ${hook.codes.join(", ")}` : "when it ends",
    output: `when a line matches ${hook.pattern}`,
    timeout: `if it is still running after ${duration((hook.after_seconds || 0) * 1000)}`,
  }[hook.on];
  return `${when || hook.on}${hook.note ? `: ${hook.note}` : ""}`;
}

function Process({ process, reload }) {
  const [open, setOpen] = useState(false);
  const [attempt, problem] = useAttempt(reload);
  const running = process.state === "running";
  const [words, isBad] = standing(process);
  const took = Date.parse(process.ended_at || "") - Date.parse(process.started_at);
  const facts = [process.agent, `started ${ago(process.started_at)}`, !running && duration(took) && `ran ${duration(took)}`];
  return html`
    <li class="card" id=${`process-${process.id}`}>
      <p class="card-head"><b class="clamped">${visible(process.name)}</b><span class=${`tag${running ? " is-active" : isBad ? " is-failed" : ""}`}>${words}</span></p>
      ${process.command !== process.name && html`<p><code class="clamped breakable">${visible(process.command)}</code></p>`}
      ${process.reason && html`<p class="problem"><${Words} text=${process.reason} /></p>`}
      ${process.hooks.length > 0 && html`<ul class="faint">${process.hooks.map((hook) => html`<li>Starts a turn ${visible(hookWords(hook))}</li>`)}</ul>`}
      <p class="card-foot">
        <span class="faint" title=${fullTime(process.started_at)}>${facts.filter(Boolean).join(" · ")}</span>
        <a class="quiet" href=${`#/t/${encodeURIComponent(process.thread)}`}>Conversation</a>
        <button type="button" class="plain" aria-expanded=${open} onClick=${() => setOpen(!open)}>Output</button>
        ${running && canChange() && html`<${Sure} label="Kill" what=${process.name} yes="Kill it" act=${() => attempt(() => api.killProcess(process.id))} />`}
      </p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
      ${open && html`<${TextBlock} label="Command" text=${process.command} /><${Output} process=${process.id} running=${running} />`}
    </li>
  `;
}

function Output({ process, running }) {
  const [log, problem, reload] = useAnswer(() => api.processLog(process, LOG_LINES), running ? LOG_POLL_MS : 0);
  if (problem) return html`<p class="problem" role="alert"><${Words} text=${problem} /> <button type="button" class="quiet" onClick=${reload}>Try again</button></p>`;
  if (!log) return html`<p class="faint">Loading…</p>`;
  const label = log.lines.length < LOG_LINES ? "Output" : `The last ${LOG_LINES} lines`;
  return html`<${TextBlock} label=${label} text=${log.lines.join("\n") || "(no output yet)"} />`;
}
