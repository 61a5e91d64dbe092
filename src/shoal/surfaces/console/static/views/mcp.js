// MCP servers: what they say otherwise of their tools than what was allowed, and the decision on it.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { ago, fullTime, visible } from "../format.js";
import { isOwner } from "../me.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { TextBlock } from "./textblock.js";
import { Words } from "./words.js";

const POLL_MS = 10_000;
const SAID = {
  changed: "The server describes it otherwise than you allowed. Agents go on with what you allowed.",
  new: "The server did not have it before. Agents are not told of it.",
  denied: "You denied this. Agents go on with what you allowed, if there was anything.",
};

const STATES = { up: "up", starting: "starting…", lost: "lost", down: "down", off: "switched off" };

export function Mcp() {
  const [found, problem, reload] = useAnswer(async () => Promise.all([api.mcpServers(), api.mcp()]), POLL_MS);
  const [configured, answer] = found || [];
  const servers = answer ? answer.servers : [];
  return html`
    <${Place} intro="MCP servers give agents more tools. The tools of a new server are allowed. Tools that it changes or adds later wait here for your decision." problem=${problem} reload=${reload} loading=${!answer}>
      ${configured && !configured.length && html`<p class="faint empty">No MCP server is set up yet. Add one below.</p>`}
      <ul class="cards">${(configured || []).map((one) => html`<${Configured} key=${one.name} server=${one} reload=${reload} />`)}</ul>
      ${configured && isOwner() && html`<${NewServer} reload=${reload} />`}
      ${servers.map((one) => html`<${Server} key=${one.server} server=${one} reload=${reload} />`)}
    <//>
  `;
}

function Configured({ server, reload }) {
  const [attempt, problem] = useAttempt(reload);
  return html`
    <li class="card">
      <p class="card-head"><b>${visible(server.name)}</b><span class="tag">${STATES[server.status]}</span></p>
      <p><code class="breakable">${visible([server.where, ...server.args].join(server.where.includes("://") ? "" : " "))}</code></p>
      ${server.secrets.length > 0 && html`<p class="faint breakable">With ${server.secrets.map((name) => `${visible(name)}=•••`).join(", ")}</p>`}
      ${server.why && html`<p class="problem breakable">${visible(server.why)}</p>`}
      ${server.left_out.map((one) => html`<p class="problem breakable">Left out: ${visible(one)}</p>`)}
      ${server.tools.length > 0 && html`<details><summary>${server.tools.length === 1 ? "One tool" : `${server.tools.length} tools`}</summary><p class="faint breakable">${server.tools.map(visible).join(", ")}</p></details>`}
      ${isOwner() && html`<p class="card-foot">
        <button type="button" class="plain" onClick=${() => attempt(() => api.switchMcpServer(server.name, !server.enabled))}>${server.enabled ? "Switch off" : "Switch on"}<span class="offscreen"> ${server.name}</span></button>
        <${Sure} label="Remove" what=${server.name} yes="Remove it" act=${() => attempt(() => api.removeMcpServer(server.name))} />
      </p>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}

/** `NAME=VALUE` lines as an object. Pure. */
export const pairsOf = (text) =>
  Object.fromEntries(text.split("\n").filter((line) => line.includes("=")).map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]));

function NewServer({ reload }) {
  const [attempt, problem] = useAttempt(reload);
  const [kind, setKind] = useState("command");
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    const { name, where, secrets } = Object.fromEntries(new FormData(form));
    const [command, ...args] = where.trim().split(/\s+/);
    const what = kind === "command" ? { command, args, env: pairsOf(secrets) } : { url: where.trim(), headers: pairsOf(secrets) };
    setBusy(true);
    if (await attempt(() => api.addMcpServer({ name: name.trim(), ...what }))) form.reset();
    setBusy(false);
  };
  return html`
    <form class="card form" aria-label="Add an MCP server" onSubmit=${submit}>
      <h2>Add a server</h2>
      <div class="pair">
        <label>Name <input name="name" required pattern="[a-z0-9][a-z0-9_\\-]*" maxlength="64" placeholder="calendar" spellcheck="false" /></label>
        <label>Kind <select value=${kind} onChange=${(event) => setKind(event.target.value)}><option value="command">Program that Shoal starts</option><option value="url">Server with an address</option></select></label>
      </div>
      <label>${kind === "command" ? "Program and its arguments" : "Address"} <input name="where" required type=${kind === "url" ? "url" : "text"} placeholder=${kind === "url" ? "https://…/mcp" : "npx -y some-mcp-server"} spellcheck="false" /></label>
      <label>${kind === "command" ? "Its environment" : "Its headers"}, NAME=VALUE, one a line, kept as secrets <textarea name="secrets" rows="2" spellcheck="false" autocomplete="off"></textarea></label>
      <p class="card-foot"><span class="faint">It is tried before it is added. A program runs with your rights: add only what you trust.</span><button type="submit" class="primary" disabled=${busy}>${busy ? "Trying…" : "Add server"}</button></p>
      ${problem && html`<p class="problem breakable" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

function Server({ server, reload }) {
  const open = server.tools.filter((tool) => tool.state !== "allowed");
  const allowed = server.tools.length - open.length;
  return html`
    <section aria-label=${server.server}>
      <h2>${server.server}</h2>
      <p class="faint" title=${fullTime(server.since)}>${allowed} ${allowed === 1 ? "tool" : "tools"} as allowed, first seen ${ago(server.since)}</p>
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
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}
