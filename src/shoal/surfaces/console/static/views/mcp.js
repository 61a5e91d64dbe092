// MCP servers: what they say otherwise of their tools than what was allowed, and the decision on it.

import { api } from "../api.js";
import { html } from "../dom.js";
import { ago, fullTime, visible } from "../format.js";
import { Place, useAnswer, useAttempt } from "./lists.js";
import { TextBlock } from "./textblock.js";

const POLL_MS = 10_000;
const SAID = {
  changed: "The server describes it otherwise than you allowed. Agents go on with what you allowed.",
  new: "The server did not have it before. Agents are not told of it.",
  denied: "You denied this. Agents go on with what you allowed, if there was anything.",
};

export function Mcp() {
  const [answer, problem, reload] = useAnswer(api.mcp, POLL_MS);
  const servers = answer ? answer.servers : [];
  return html`
    <${Place} intro="What an MCP server says of its tools when it is first connected is allowed. Whatever it changes or adds later waits here." problem=${problem} reload=${reload} loading=${!answer}>
      ${answer && !servers.length && html`<p class="faint empty">No MCP server was connected yet.</p>`}
      ${servers.map((one) => html`<${Server} key=${one.server} server=${one} reload=${reload} />`)}
    <//>
  `;
}

function Server({ server, reload }) {
  const open = server.tools.filter((tool) => tool.state !== "allowed");
  return html`
    <section aria-label=${server.server}>
      <h2>${server.server}</h2>
      <p class="faint" title=${fullTime(server.since)}>${server.tools.length - open.length} tools as allowed, first seen ${ago(server.since)}</p>
      <ul class="cards">${open.map((tool) => html`<${Tool} key=${tool.name + tool.digest} tool=${tool} reload=${reload} />`)}</ul>
    </section>
  `;
}

function Tool({ tool, reload }) {
  const [attempt, problem] = useAttempt(reload);
  const decide = (decision) => attempt(() => api.decideMcp(tool.name, decision, tool.digest));
  return html`
    <li class="card">
      <p class="card-head"><b class="clamped">${visible(tool.name)}</b><span class="tag">${tool.state}</span></p>
      <p class="faint">${SAID[tool.state]}</p>
      <${TextBlock} label="What changed" text=${tool.change} open=${true} />
      <p class="card-foot">
        <button type="button" class="primary" aria-label=${`Allow ${tool.name}`} onClick=${() => decide("allow")}>Allow</button>
        ${tool.state !== "denied" && html`<button type="button" class="plain danger" aria-label=${`Deny ${tool.name}`} onClick=${() => decide("deny")}>Deny</button>`}
      </p>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    </li>
  `;
}
