// The switch for this browser's notifications; hidden if unsupported.

import { html, useEffect, useState } from "../dom.js";
import { pushOff, pushOn, pushState } from "../push.js";
import { Words } from "./words.js";

const LABELS = { on: "Notifications on", off: "Notifications off", blocked: "Notifications blocked" };
const HINTS = {
  on: "This browser notifies you about approvals and answers. Click to turn notifications off.",
  off: "Get notified about approvals and answers, even while this page is closed.",
  blocked: "The browser's settings for this site block notifications.",
};

export function Notifications() {
  const [state, setState] = useState("none");
  const [problem, setProblem] = useState("");
  const look = () => pushState().then(setState, () => setState("none"));
  useEffect(() => {
    look();
  }, []);
  const press = async () => {
    setProblem("");
    try {
      await (state === "on" ? pushOff() : pushOn());
    } catch (error) {
      setProblem(error.message);
    }
    await look();
  };
  if (state === "none") return null;
  return html`
    <div class="rail-foot">
      <button type="button" class="quiet" disabled=${state === "blocked"} title=${HINTS[state]} onClick=${press}>${LABELS[state]}</button>
    </div>
    ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
  `;
}
