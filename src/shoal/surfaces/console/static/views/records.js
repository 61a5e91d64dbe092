// Usage and the audit log: what there is to look at, not to change.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { clockTime, count, dollars, fullTime, visible } from "../format.js";
import { Place, useAnswer } from "./lists.js";
import { Today } from "./today.js";

const AUDIT_COLUMNS = ["Time", "What", "Action", "Decision", "By"];

/** Usage rows summed over a key, largest first. A sum with an unknown price in it is unknown. Pure. */
export function sumBy(rows, keyOf) {
  const sums = new Map();
  for (const row of rows) {
    const key = keyOf(row);
    const sum = sums.get(key) || { key, calls: 0, input: 0, output: 0, cached: 0, usd: 0 };
    sum.calls += row.calls;
    sum.input += row.usage.input_tokens || 0;
    sum.output += row.usage.output_tokens || 0;
    sum.cached += row.usage.cached_tokens || 0;
    sum.usd = sum.usd === null || row.usd === null ? null : sum.usd + row.usd;
    sums.set(key, sum);
  }
  return [...sums.values()].sort((one, other) => other.input + other.output - one.input - one.output);
}

export function Usage() {
  const [answer, problem, reload] = useAnswer(api.usage);
  const rows = answer || [];
  const today = new Date().toISOString().slice(0, 10);
  const days = sumBy(rows, (row) => row.day).sort((one, other) => other.key.localeCompare(one.key));
  return html`
    <${Place} intro="Tokens and money over the last 30 days. An unknown price is said to be unknown, never counted as nothing." problem=${problem} reload=${reload} loading=${!answer}>
      ${answer && html`<${Today} sum=${days.find((sum) => sum.key === today) || null} />`}
      ${answer && !rows.length && html`<p class="faint empty">No model was called yet.</p>`}
      ${rows.length > 0 &&
      html`
        <${Sums} title="By day" sums=${days} />
        <${Sums} title="By model" sums=${sumBy(rows, (row) => row.model)} />
        <${Sums} title="By agent" sums=${sumBy(rows, (row) => row.agent)} />
      `}
    <//>
  `;
}

function Sums({ title, sums }) {
  const most = Math.max(1, ...sums.map((sum) => sum.input + sum.output));
  return html`
    <table class="sums">
      <caption>${title}</caption>
      <thead><tr><th scope="col">${title[3].toUpperCase() + title.slice(4)}</th><th scope="col" class="bar"><span class="offscreen">Share</span></th><th scope="col">Calls</th><th scope="col">In</th><th scope="col">Out</th><th scope="col">Cost</th></tr></thead>
      <tbody>
        ${sums.map(
          (sum) => html`
            <tr key=${sum.key}>
              <th scope="row">${sum.key || "unknown"}</th>
              <td class="bar"><svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true"><rect x="0" y="1" height="8" width=${Math.max(4, Math.round(((sum.input + sum.output) / most) * 1000))} /></svg></td>
              <td>${count(sum.calls)}</td>
              <td title=${sum.cached ? `${count(sum.cached)} of them cached` : null}>${count(sum.input)}</td>
              <td>${count(sum.output)}</td>
              <td>${dollars(sum.usd)}</td>
            </tr>
          `,
        )}
      </tbody>
    </table>
  `;
}

export function Audit() {
  const [rows, problem, reload] = useAnswer(api.audit);
  const [wanted, setWanted] = useState("");
  const found = (rows || []).filter((row) => JSON.stringify(row.entry).toLowerCase().includes(wanted.toLowerCase()));
  return html`
    <${Place} intro=${html`What was checked, decided and done, newest first. <code>shoal audit verify</code> checks that nothing was changed.`} problem=${problem} reload=${reload} loading=${!rows}>
      <p class="filter">
        <label>Find <input type="search" value=${wanted} onInput=${(event) => setWanted(event.target.value)} /></label>
        <button type="button" class="quiet" onClick=${reload}>Reload</button>
      </p>
      ${rows && !found.length && html`<p class="faint empty">${rows.length ? "Nothing matches." : "Nothing was recorded yet."}</p>`}
      ${found.length > 0 &&
      html`
        <table class="audit">
          <thead><tr>${AUDIT_COLUMNS.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
          <tbody>${found.map((row) => html`<${AuditLine} key=${`${row.chain}/${row.number}`} row=${row} />`)}</tbody>
        </table>
      `}
    <//>
  `;
}

function AuditLine({ row }) {
  const { entry } = row;
  return html`
    <tr class=${`is-${entry.decision || "none"}`}>
      <td data-label="Time"><time datetime=${row.at} title=${fullTime(row.at)}>${clockTime(row.at)}</time></td>
      <td data-label="What">${entry.kind}</td>
      <td data-label="Action"><code>${visible(entry.action || "")}</code>${entry.rule && html`<span class="faint rule">${entry.rule}</span>`}</td>
      <td data-label="Decision"><span class=${`tag is-${entry.decision}`}>${entry.decision || "–"}</span></td>
      <td data-label="By">${entry.user || entry.agent || "–"}${entry.token && html` <span class="faint">token ${entry.token}</span>`}</td>
    </tr>
  `;
}
