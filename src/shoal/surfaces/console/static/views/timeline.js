// The end of a turn: its duration and cost, with details on demand.

import { api } from "../api.js";
import { html, memo, useEffect, useState } from "../dom.js";
import { count, dollars, duration, files } from "../format.js";
import { canTalk } from "../me.js";
import { TurnActions } from "./branches.js";
import { CopyAct } from "./copy.js";
import { icon } from "./icons.js";
import { Later } from "./later.js";

const OUTCOMES = { done: "", aborted: "Stopped", failed: "Failed", limit: "Limit reached" };
const KINDS = { model: "model", tool: "tool", wait: "waiting for a person", retry: "waiting to retry" };

const changes = () => import("./changes.js").then((found) => found.Changes);

const NAMES = { wait: "approval", retry: "wait" };

/** Return the bars of a turn's timeline, with positions and widths in thousandths. */
export function bars(turn) {
  const from = Date.parse(turn.startedAt);
  const whole = Math.max(1, Date.parse(turn.finishedAt || turn.steps.at(-1)?.to || turn.startedAt) - from);
  return turn.steps.map((step) => {
    const begin = Math.max(0, Date.parse(step.from) - from);
    const ms = Math.max(0, Date.parse(step.to) - Date.parse(step.from));
    const at = Math.min(994, Math.round((begin / whole) * 1000));
    return { ...step, ms, at, width: Math.max(6, Math.min(1000 - at, Math.round((ms / whole) * 1000))) };
  });
}

export const Timeline = memo(function Timeline({ item, turn, thread, session, resting }) {
  const [open, setOpen] = useState(false);
  const [shown, setShown] = useState(false);
  const [acting, setActing] = useState(false); // on touch screens, a button shows the actions
  if (!turn) return null;
  const took = duration(Date.parse(turn.finishedAt) - Date.parse(turn.startedAt));
  const calls = turn.steps.filter((step) => step.kind === "tool").length;
  const tokens = (turn.usage.input_tokens || 0) + (turn.usage.output_tokens || 0);
  const facts = [OUTCOMES[item.outcome], took, calls && `${calls} ${calls === 1 ? "call" : "calls"}`, tokens && `${count(tokens)} tokens`];
  return html`
    <div class=${`row end is-${item.outcome}`}>
      <span class="node" aria-hidden="true"></span>
      <div class="body">
        <div class="end-foot">
          <button type="button" class="end-line" aria-expanded=${open} onClick=${() => setOpen(!open)}>
            ${icon("chevron")}<span>${facts.filter(Boolean).join(" · ")}</span>
          </button>
          ${turn.changed > 0 && turn.copied &&
          html`<span class="faint">Changed ${files(turn.changed)}. You can undo this only in <a href=${`#/t/${encodeURIComponent(turn.copied)}`}>the original conversation</a>.</span>`}
          ${turn.changed > 0 && !turn.copied &&
          html`<button type="button" class="copy" aria-expanded=${shown} title="Show or undo the changes" onClick=${() => setShown(!shown)}>Changed ${files(turn.changed)}${turn.undone ? ", undone" : ""}</button>`}
          <button type="button" class="act acts-open" aria-label="Actions on this turn" aria-expanded=${acting} onClick=${() => setActing(!acting)}>${icon("more")}</button>
          <div class=${`acts${acting ? " is-open" : ""}`}>
            ${item.reply && html`<${CopyAct} text=${item.reply} label="Copy reply" />`}
            ${resting && canTalk() && html`<${TurnActions} item=${item} turn=${turn} thread=${thread} session=${session} />`}
          </div>
        </div>
        ${open && html`<${Steps} turn=${turn} thread=${thread} />`}
        ${shown && html`<${Later} load=${changes} thread=${thread} turn=${turn.id} session=${session} state=${turn.undone} />`}
      </div>
    </div>
  `;
});

function Steps({ turn, thread }) {
  const [cost, setCost] = useState(null);
  useEffect(() => {
    api.turnCost(thread, turn.id).then(setCost, () => {}); // the steps are useful without the cost
  }, [thread, turn.id]);
  const { input_tokens: read = 0, output_tokens: written = 0, cached_tokens: cached = 0 } = turn.usage;
  const whole = Date.parse(turn.finishedAt || turn.steps.at(-1)?.to || turn.startedAt) - Date.parse(turn.startedAt);
  const facts = [
    turn.model,
    read + written > 0 && `${count(read)} tokens in, ${count(written)} out`,
    cached > 0 && `${count(cached)} cached`,
    cost?.calls > 0 && `cost ${dollars(cost.usd)}`,
  ];
  return html`
    <table class="timeline">
      <caption class="offscreen">Steps of this turn</caption>
      <tbody>
        ${bars(turn).map(
          (bar) => html`
            <tr class=${`kind-${bar.kind}${bar.failed ? " failed" : ""}`}>
              <th scope="row">${NAMES[bar.kind] || bar.name || KINDS[bar.kind]}</th>
              <td class="bar">
                <svg viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label=${KINDS[bar.kind]}>
                  <rect class="track" x="0" y="4.5" width="1000" height="1" /><rect x=${bar.at} y="1" width=${bar.width} height="8" />
                </svg>
              </td>
              <td class="number">${duration(bar.ms)}</td>
              <td class="number">${tokensOf(bar)}</td>
            </tr>
          `,
        )}
      </tbody>
      <tfoot aria-hidden="true">
        <tr><th></th><td class="bar"><span class="scale"><span>0</span><span>${duration(whole / 2)}</span><span>${duration(whole)}</span></span></td></tr>
      </tfoot>
    </table>
    <p class="faint">${facts.filter(Boolean).join(" · ")}</p>
  `;
}

function tokensOf({ kind, usage }) {
  if (kind !== "model" || !usage?.output_tokens) return "";
  return `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out`;
}
