// The row of a turn that waits for its model, with actions.

import { api } from "../api.js";
import { html, memo, useState } from "../dom.js";
import { clockTime, fullTime } from "../format.js";
import { Detail } from "./detail.js";
import { Words } from "./words.js";

const ENDS = { over: "The model is available again.", done: "The model is available again.", failed: "The model did not become available in time.", aborted: "Stopped while waiting for the model." };

export const RetryRow = memo(function RetryRow({ item, thread, session }) {
  return html`
    <div class=${`row retry is-${item.state}`}>
      <span class="node" aria-hidden="true"></span>
      <div class="body">
        <p><${Words} text=${item.text} /></p>
        <${Detail} text=${item.detail} />
        ${item.state === "waiting" && html`<${Choices} item=${item} thread=${thread} session=${session} />`}
        ${item.state === "asked" && html`<p class="faint">${`Asking ${item.model || "the model"} again…`}</p>`}
        ${ENDS[item.state] && html`<p class="faint">${ENDS[item.state]}</p>`}
      </div>
    </div>
  `;
});

function Choices({ item, thread, session }) {
  const [problem, setProblem] = useState("");
  const [sent, setSent] = useState(false);
  const press = async (action) => {
    if (sent) return;
    setSent(true);
    setProblem((await action()) || "");
    setSent(false);
  };
  const button = (label, kind, action) => html`<button type="button" class=${kind} aria-disabled=${sent} onClick=${() => press(action)}>${label}</button>`;
  return html`
    <div class="choices">
      ${button("Try now", "primary", () => session.attempt(() => api.retry(thread, "")))}
      ${item.choices.map((model) => button(`Ask ${model}`, "plain", () => session.attempt(() => api.retry(thread, model))))}
      ${button("Give up", "plain danger", () => session.stop(thread))}
      <span class="faint" title=${fullTime(item.nextAt)}>next try at ${clockTime(item.nextAt)}</span>
    </div>
    ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
  `;
}
