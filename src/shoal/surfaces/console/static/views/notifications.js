// The switch for this browser's notifications, hidden if unsupported.

import { html, useEffect, useState } from "../dom.js";
import { pushOff, pushOn, pushState } from "../push.js";
import { Words } from "./words.js";

const LABELS = { on: "Turn off notifications", off: "Turn on notifications", blocked: "Notifications blocked" };
const HINTS = {
  on: "This browser notifies you about approvals and replies.",
  off: "Get notified about approvals and replies, even while this page is closed.",
  blocked: "Your browser blocks notifications from this site. Allow them in the site's settings.",
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
