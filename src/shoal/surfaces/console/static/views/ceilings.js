// Today's spending and budget limits, with a button that suspends the limits.

import { api } from "../api.js";
import { html } from "../dom.js";
import { count, dollars } from "../format.js";
import { canChange, me } from "../me.js";
import { Sure, useAnswer, useAttempt } from "./lists.js";
import { Words } from "./words.js";

const NEAR = 0.8;

/** Return the use of limits as `[{used, most, share}]` with formatted amounts. */
export function bounds({ usd, usd_max: usdMax, tokens, tokens_max: tokensMax }) {
  return [
    usdMax > 0 && { used: dollars(usd), most: dollars(usdMax), share: usd / usdMax },
    tokensMax > 0 && { used: count(tokens), most: `${count(tokensMax)} tokens`, share: tokens / tokensMax },
  ].filter(Boolean);
}

/** Name a limit's scope: "All agents" for the day, "All time" for the total, otherwise "agent ops" or "user discord:123". */
export function scopeName(scope) {
  const [kind, ...rest] = scope.split(":");
  return rest.length ? `${kind} ${rest.join(":")}` : { day: "All agents", total: "All time" }[kind] || kind;
}

const DAY_MS = 86_400_000;

const atHome = (at) => new Date(at).toLocaleString("sv-SE", { timeZone: me.home_timezone }); // YYYY-MM-DD hh:mm:ss

/** Return the current date in the installation's time zone, as YYYY-MM-DD. Usage and budget limits are counted by these days. */
export const today = () => atHome(Date.now()).slice(0, 10);

/** Return the start (0) or end (1) of this day, as a time in the browser's time zone. */
function midnight(days) {
  const wall = Date.parse(today()) + days * DAY_MS;
  const offset = (at) => Date.parse(`${atHome(at).replace(" ", "T")}Z`) - at;
  const at = new Date(wall - offset(wall - offset(wall)));
  const words = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return words === "00:00" ? "midnight" : words;
}

/** `sum` is today's usage, or null. */
export function Ceilings({ sum }) {
  const [ceilings, , reload] = useAnswer(api.ceilings);
  const [attempt, problem] = useAttempt(reload);
  const isLifted = ceilings?.some((one) => one.is_suspended);
  const rows = (ceilings || []).flatMap((one) => bounds(one).map((bound) => ({ ...bound, scope: one.scope })));
  return html`
    <section class="card today" aria-label="Today">
      <p class="card-head"><b>Today</b><span class="faint">since ${midnight(0)}</span></p>
      <p>${sum ? html`<span class="figure">${dollars(sum.usd)}</span> <span class="faint">in ${count(sum.calls)} ${sum.calls === 1 ? "call" : "calls"}, ${count(sum.input + sum.output)} tokens</span>` : html`<span class="faint">No model calls yet.</span>`}</p>
      ${rows.length > 0 && html`<ul class="ceilings">${rows.map((row) => html`<${Ceiling} key=${`${row.scope} ${row.most}`} row=${row} />`)}</ul>`}
      ${sum && ceilings && !rows.length && html`<p class="faint">No budget limit applied today.</p>`}
      ${rows.length > 0 &&
      html`<p class="card-foot"><span class="faint" role="status">${isLifted ? `All budget limits are suspended until ${midnight(1)}.` : `Once usage reaches a limit, model calls stop until ${midnight(1)}.`}</span>
        ${canChange() && !isLifted && html`<${Sure} label="Suspend limits" kind="plain" yes="Suspend all limits today" act=${() => attempt(api.lift)} />`}</p>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </section>
  `;
}

function Ceiling({ row }) {
  const level = row.share >= 1 ? "full" : row.share >= NEAR ? "near" : "free";
  return html`
    <li class=${`is-${level}`}>
      <span class="clamped breakable" title=${row.scope}>${scopeName(row.scope)}</span>
      <span class="number">${row.used} of ${row.most}${level === "full" ? ", reached" : ""}</span>
      <svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="1000" height="10" /><rect width=${Math.max(4, Math.min(1000, Math.round(row.share * 1000)))} height="10" /></svg>
    </li>
  `;
}
