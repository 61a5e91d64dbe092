// What waits for a person, over all threads.

import { html } from "../dom.js";
import { ago, fullTime, threadName } from "../format.js";
import { ApprovalCard } from "./approval.js";
import { Place } from "./lists.js";

export function Approvals({ state, session }) {
  const names = new Map((state.threads || []).map((info) => [info.thread, threadName(info)]));
  const pending = state.approvals.filter((approval) => approval.state === "pending");
  return html`
    <${Place} intro="Calls that wait for your word. Each is run exactly as shown, or not at all." loading=${!state.threads}>
      ${state.threads && !pending.length && html`<p class="faint empty">Nothing waits for you.</p>`}
      ${pending.map(
        (approval) => html`
          <article class="pending" key=${approval.id}>
            <p class="by">
              <a href=${`#/t/${encodeURIComponent(approval.thread)}`}>${names.get(approval.thread) || threadName(null, approval.thread)}</a>
              ${approval.asked_by && html`<span class="faint">for ${approval.asked_by}</span>`}
              <time datetime=${approval.created_at} title=${fullTime(approval.created_at)}>${ago(approval.created_at)}</time>
            </p>
            <${ApprovalCard} approval=${fromRecord(approval)} tool=${approval.tool} session=${session} />
          </article>
        `,
      )}
    <//>
  `;
}

const fromRecord = (record) => ({
  id: record.id,
  actions: record.actions || [],
  shown: record.shown || "",
  reason: record.reason || "",
  covers: record.covers || {},
  expiresAt: record.expires_at,
  decision: "",
});
