// Pending approvals of all threads.

import { api } from "../api.js";
import { html } from "../dom.js";
import { ago, count, fullTime, threadName, visible } from "../format.js";
import { canChange } from "../me.js";
import { Answered, ApprovalCard, CallsCard, cardOf } from "./approval.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { Words } from "./words.js";

export function Approvals({ state, session }) {
  const pending = state.approvals.filter((approval) => approval.state === "pending");
  return html`
    <${Place} intro="Tool calls that need your approval. Each runs exactly as shown, or not at all." loading=${!state.threads}>
      ${state.threads && !pending.length && html`<p class="faint empty">Nothing is waiting for you.</p>`}
      ${pending.length > 0 && html`<h2 class="offscreen">Pending</h2>`}
      ${cards(pending).map(
        ([approval, ...more]) => html`
          <article class="pending" key=${approval.item?.card || approval.id}>
            <p class="by">
              <a href=${`#/t/${encodeURIComponent(approval.thread)}`}>${threadName({ title: approval.title }, approval.thread)}</a>
              <time datetime=${approval.created_at} title=${fullTime(approval.created_at)}>${ago(approval.created_at)}</time>
            </p>
            ${more.length || approval.item?.staged ? html`<${CallsCard} calls=${[approval, ...more]} session=${session} />` : html`<${ApprovalCard} approval=${fromRecord(approval)} tool=${approval.tool} session=${session} />`}
          </article>
        `,
      )}
      ${Object.entries(state.answers).map(
        ([id, answer]) => html`
          <article class="pending" key=${`answered ${id}`}>
            <p class="by">${answer.thread && html`<a href=${`#/t/${encodeURIComponent(answer.thread)}`}>${threadName({ title: answer.title }, answer.thread)}</a>`}</p>
            <${Answered} text=${answer.text} thread=${answer.thread} turn=${answer.undo} session=${session} />
          </article>
        `,
      )}
      ${canChange() && html`<${Suggestions} />`}
    <//>
  `;
}

/** Suggested rules for calls that people were often asked about and always allowed. */
function Suggestions() {
  const [rules, , reload] = useAnswer(api.suggestedRules);
  const [attempt, problem] = useAttempt(reload);
  if (!rules?.length) return null;
  return html`
    <section class="suggested" aria-labelledby="suggested">
      <h2 id="suggested">Suggested rules</h2>
      <p class="intro">You allowed each of these calls every time the agent asked. If you add a rule, the agent runs the call without asking, starting with its next turn.</p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
      <ul class="cards">
        ${rules.map(
          (rule) => html`
            <li class="card" key=${`${rule.agent} ${rule.allow}`}>
              <p class="card-head"><code class="breakable">${visible(rule.shown)}</code><span class="tag">${rule.agent}</span></p>
              <p class="faint">Asked ${count(rule.asked)} times, first <time datetime=${rule.since} title=${fullTime(rule.since)}>${ago(rule.since)}</time>. </p>
              <details class="rule"><summary>Pattern</summary>${rule.allow.map((pattern) => html`<code class="breakable">${visible(pattern)}</code> `)}</details>
              <p class="card-foot">
                ${rule.accepted
                  ? html`<span class="faint">Added.</span>`
                  : html`<${Sure} label="Add rule" what=${rule.shown} yes="Always allow this" no="Keep asking" act=${() => attempt(() => api.acceptRule(rule.agent, rule.allow))} />`}
              </p>
            </li>
          `,
        )}
      </ul>
    </section>
  `;
}

const cards = (pending) => pending.filter((one) => cardOf(one, pending)[0] === one).map((one) => cardOf(one, pending));

const fromRecord = (record) => ({
  id: record.id,
  actions: record.actions || [],
  shown: record.shown || "",
  reason: record.reason || "",
  covers: record.covers || {},
  item: record.item || {},
  expiresAt: record.expires_at,
  decision: "",
});
