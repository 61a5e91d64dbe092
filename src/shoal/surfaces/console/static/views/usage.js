// Usage and cost of models: by day, model, agent and thread, with limits and a forecast.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { count, dollars, threadName, visible } from "../format.js";
import { Ceilings, today as dayNow } from "./ceilings.js";
import { Columns, Figures, Legend, largest } from "./charts.js";
import { Place, useAnswer } from "./lists.js";

const DAYS = 90; // enough for the month and the one before it
const SHOWN = [7, 30, 90];
const FORECAST_DAYS = 7;
const OTHERS = "others";

/** Sum usage rows by a key, largest first. A sum that includes an unknown price is unknown. */
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

const dayBefore = (today, days) => new Date(Date.parse(today) - days * 86_400_000).toISOString().slice(0, 10);

/** Forecast a month's cost as `{soFar, whole, isPartial}` from the last seven complete days, or those since the first call.
 * `isPartial`: some prices are unknown. */
export function forecast(rows, today) {
  const month = today.slice(0, 7);
  const [year, number] = month.split("-").map(Number);
  const left = new Date(Date.UTC(year, number, 0)).getUTCDate() - Number(today.slice(8));
  const sum = (some) => some.reduce((total, row) => total + (row.usd || 0), 0);
  const soFar = sum(rows.filter((row) => row.day.startsWith(month)));
  const first = rows.reduce((least, row) => (row.day < least ? row.day : least), today);
  const known = Math.min(FORECAST_DAYS, Math.round((Date.parse(today) - Date.parse(first)) / 86_400_000));
  const begin = dayBefore(today, known);
  const aDay = known ? sum(rows.filter((row) => row.day >= begin && row.day < today)) / known : soFar;
  return { soFar, whole: soFar + aDay * left, isPartial: rows.some((row) => row.usd === null) };
}

/** Return one column per day, oldest first, with each model's use in `unit` ("usd" or "tokens"). */
export function byDay(rows, today, days, unit, names) {
  const columns = Array.from({ length: days }, (_, at) => ({ key: dayBefore(today, days - 1 - at), parts: {} }));
  const known = new Map(columns.map((column) => [column.key, column]));
  for (const row of rows) {
    const parts = known.get(row.day)?.parts;
    const name = names.includes(row.model) ? row.model : OTHERS;
    const value = unit === "usd" ? row.usd || 0 : (row.usage.input_tokens || 0) + (row.usage.output_tokens || 0);
    if (parts) parts[name] = (parts[name] || 0) + value;
  }
  const format = unit === "usd" ? dollars : count;
  for (const column of columns) {
    column.label = new Date(column.key).toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
    column.said = [column.label, ...Object.entries(column.parts).map(([name, value]) => `${name}: ${format(value)}`)].join("\n");
  }
  return columns;
}

const ask = () => Promise.all([api.usage(DAYS), api.usageByThread(30)]).then(([rows, threads]) => ({ rows, threads }));

export function Usage() {
  const [answer, problem, reload] = useAnswer(ask);
  const [days, setDays] = useState(30);
  const [unit, setUnit] = useState("usd");
  const rows = answer?.rows || [];
  const today = dayNow();
  const shown = rows.filter((row) => row.day > dayBefore(today, days));
  const valued = unit === "usd" && shown.some((row) => row.usd) ? "usd" : "tokens";
  return html`
    <${Place} isWide intro="Tokens and cost. A dash means that a price is unknown. The month's cost, the forecast and the chart leave out calls without a price." problem=${problem} reload=${reload} loading=${!answer}>
      ${rows.length > 0 && html`<${Sight} rows=${rows} shown=${shown} today=${today} days=${days} />`}
      ${answer && html`<${Ceilings} sum=${sumBy(rows.filter((row) => row.day === today), (row) => row.day)[0] || null} />`}
      ${answer && !rows.length && html`<p class="faint empty">No model calls yet.</p>`}
      ${rows.length > 0 && html`
        <section class="panel" aria-label="By day">
          <div class="panel-head">
            <h2>By day and model</h2>
            <label><span class="offscreen">Unit</span><select value=${valued} onChange=${(event) => setUnit(event.target.value)}><option value="usd">Cost</option><option value="tokens">Tokens</option></select></label>
            <label><span class="offscreen">Days</span><select value=${days} onChange=${(event) => setDays(Number(event.target.value))}>${SHOWN.map((some) => html`<option value=${some}>${some} days</option>`)}</select></label>
          </div>
          ${shown.length ? html`<${Days} rows=${shown} today=${today} days=${days} unit=${valued} />` : html`<p class="faint">No model calls in this period.</p>`}
        </section>
        <${Sums} title="By model" sums=${sumBy(shown, (row) => row.model)} />
        <${Sums} title="By agent" sums=${sumBy(shown, (row) => row.agent)} />
        ${answer.threads.length > 0 && html`<${Threads} threads=${answer.threads} />`}
        <details class="more"><summary>Table by day</summary><${Sums} title="By day" sums=${sumBy(shown, (row) => row.day).sort((one, other) => other.key.localeCompare(one.key))} /></details>
      `}
    <//>
  `;
}

function Sight({ rows, shown, today, days }) {
  const { soFar, whole, isPartial } = forecast(rows, today);
  const [all] = sumBy(shown, () => "all");
  const isUnknown = isPartial && rows.every((row) => row.usd === null);
  const least = isPartial ? "at least " : "";
  const cached = all?.input ? Math.round((all.cached / all.input) * 100) : 0;
  return html`<${Figures} figures=${[
    { name: "This month", value: dollars(isUnknown ? null : soFar), note: isUnknown ? "all prices unknown" : isPartial ? "some prices unknown" : "so far" },
    { name: "Forecast for the month", value: isUnknown ? "–" : `${least}${dollars(whole)}`, note: "from the last seven days" },
    { name: "Tokens", value: count(all ? all.input + all.output : 0), note: `in ${days} days` },
    { name: "From the cache", value: `${cached} %`, note: "of input tokens" },
  ]} />`;
}

function Days({ rows, today, days, unit }) {
  const value = (row) => (unit === "usd" ? row.usd || 0 : (row.usage.input_tokens || 0) + (row.usage.output_tokens || 0));
  const names = largest(rows.map((row) => ({ [row.model]: value(row) })));
  const columns = byDay(rows, today, days, unit, names);
  const hasOthers = columns.some((column) => column.parts[OTHERS]);
  const series = [...names.map((name, at) => ({ name, shown: name || "unknown", kind: `is-c${at}` })), ...(hasOthers ? [{ name: OTHERS, kind: "is-c6" }] : [])];
  return html`
    <${Columns} label=${`${unit === "usd" ? "Cost" : "Tokens"} by day over ${days} days`} columns=${columns} series=${series} format=${unit === "usd" ? axisDollars : count} />
    <${Legend} series=${series} />
  `;
}

const axisDollars = (value) => (value && value < 0.1 ? dollars(value) : `$${value >= 10 ? Math.round(value) : value.toFixed(value % 1 ? 2 : 0)}`);

function Sums({ title, sums }) {
  const most = Math.max(1, ...sums.map((sum) => sum.input + sum.output));
  return html`
    <table class="sums">
      <caption>${title}</caption>
      <thead><tr><th scope="col">${title[3].toUpperCase() + title.slice(4)}</th><th scope="col" class="bar"><span class="offscreen">Share</span></th><th scope="col">Calls</th><th scope="col">In</th><th scope="col">Out</th><th scope="col">Cost</th></tr></thead>
      <tbody>
        ${sums.map((sum) => html`
          <tr key=${sum.key}>
            <th scope="row">${sum.key || "unknown"}</th>
            <${Bar} share=${(sum.input + sum.output) / most} />
            <td>${count(sum.calls)}</td>
            <td title=${sum.cached ? `${count(sum.cached)} of them cached` : null}>${count(sum.input)}</td>
            <td>${count(sum.output)}</td>
            <td>${dollars(sum.usd)}</td>
          </tr>
        `)}
      </tbody>
    </table>
  `;
}

const Bar = ({ share }) => html`<td class="bar"><svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true"><rect x="0" y="1" height="8" width=${Math.max(4, Math.round(share * 1000))} /></svg></td>`;

function Threads({ threads }) {
  const value = (one) => one.usd ?? 0;
  const byMoney = threads.some(value);
  const most = Math.max(1e-9, ...threads.map((one) => (byMoney ? value(one) : one.tokens)));
  return html`
    <table class="sums">
      <caption>By conversation, over 30 days</caption>
      <thead><tr><th scope="col">Conversation</th><th scope="col" class="bar"><span class="offscreen">Share</span></th><th scope="col">Calls</th><th scope="col">Tokens</th><th scope="col">Cost</th></tr></thead>
      <tbody>
        ${threads.map((one) => html`
          <tr key=${one.thread}>
            <th scope="row"><a class="clamped" href=${`#/t/${encodeURIComponent(one.thread)}`}>${visible(threadName({ title: one.title }, one.thread))}</a></th>
            <${Bar} share=${(byMoney ? value(one) : one.tokens) / most} />
            <td>${count(one.calls)}</td>
            <td>${count(one.tokens)}</td>
            <td>${dollars(one.usd)}</td>
          </tr>
        `)}
      </tbody>
    </table>
  `;
}
