// The rule that a decision created, with a button for the owner to remove it.

import { api } from "../api.js";
import { html, useEffect, useState } from "../dom.js";
import { visible } from "../format.js";
import { isOwner } from "../me.js";
import { useAttempt } from "./lists.js";
import { Words } from "./words.js";

export function MadeRule({ approval }) {
  const [scope, setScope] = useState(""); // "withdrawn" once the rule is removed
  const [done, setDone] = useState("");
  const [attempt, problem] = useAttempt(() => {});
  const { words, agent, channel } = approval.item?.always || {};
  useEffect(() => void attempt(async () => setScope((await api.approval(approval.id)).scope)), [approval.id]);
  const back = () => attempt(async () => setDone((await api.takeBack(approval.item?.card || approval.id)).message));
  const rule = words && `${visible(words)}, in ${visible(agent)}'s workspace, ${channel ? "when you ask in this channel" : "when you ask in direct messages"}. `;
  return html`
    <p class="verdict">
      ${done || (rule && `${scope === "withdrawn" ? "Removed rule" : "Rule"}: ${rule}`)}
      ${!done && scope === "always" && isOwner() && html`<button type="button" class="quiet" onClick=${back}>Remove the rule</button>`}
    </p>
    ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
  `;
}
