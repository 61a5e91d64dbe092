// MCP servers: configuration, kinds of tools, and decisions on changed tools.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { ago, fullTime, visible } from "../format.js";
import { isOwner } from "../me.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { TextBlock } from "./textblock.js";
import { Words } from "./words.js";

const POLL_MS = 10_000;
const SAID = {
  changed: "The server changed its description of this tool. Agents keep using the version you allowed.",
  new: "This tool is new. Agents do not see it yet.",
  denied: "You denied this version. If you allowed an earlier version, agents keep using it.",
};

const KINDS = { read: "Read", read_outside: "Read outside this machine", write: "Write" };
const KINDS_DO = {
  read: "run without asking, even after untrusted content",
  read_outside: "run without asking, except after untrusted content",
  write: "ask each time",
};

const STATES = { up: "up", starting: "starting…", lost: "lost", down: "down", off: "switched off" };

export function Mcp() {
  const [found, problem, reload] = useAnswer(async () => Promise.all([api.mcpServers(), api.mcp()]), POLL_MS);
  const [configured, answer] = found || [];
  const servers = answer ? answer.servers : [];
  return html`
    <${Place} intro="MCP servers give agents more tools. Here you confirm which tools are read-only, and review new and changed tools." problem=${problem} reload=${reload} loading=${!answer}>
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
      ${server.left_out.map((one) => html`<p class="problem breakable">Unusable: ${visible(one)}</p>`)}
      ${server.tools.length > 0 && html`<details><summary>${server.tools.length === 1 ? "One tool" : `${server.tools.length} tools`}</summary><p class="faint breakable">${server.tools.map(visible).join(", ")}</p></details>`}
      ${isOwner() && html`<p class="card-foot">
        <button type="button" class="plain" onClick=${() => attempt(() => api.switchMcpServer(server.name, !server.enabled))}>${server.enabled ? "Switch off" : "Switch on"}<span class="offscreen"> ${server.name}</span></button>
        <${Sure} label="Remove" what=${server.name} yes="Remove it" act=${() => attempt(() => api.removeMcpServer(server.name))} />
      </p>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}

/** Parse `NAME=VALUE` lines. */
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
        <label>Kind <select value=${kind} onChange=${(event) => setKind(event.target.value)}><option value="command">Program started by Shoal</option><option value="url">Server with a URL</option></select></label>
      </div>
      <label>${kind === "command" ? "Program and its arguments" : "URL"} <input name="where" required type=${kind === "url" ? "url" : "text"} placeholder=${kind === "url" ? "https://…/mcp" : "npx -y some-mcp-server"} spellcheck="false" /></label>
      <label>${kind === "command" ? "Environment variables" : "Headers"}, one NAME=VALUE per line, stored as secrets <textarea name="secrets" rows="2" spellcheck="false" autocomplete="off"></textarea></label>
      <p class="card-foot"><span class="faint">Shoal tests the server first. A program runs with your permissions, so add only programs that you trust.</span><button type="submit" class="primary" disabled=${busy}>${busy ? "Testing…" : "Add server"}</button></p>
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
      <p class="faint" title=${fullTime(server.since)}>${allowed} ${allowed === 1 ? "tool" : "tools"} allowed, first seen ${ago(server.since)}</p>
      <${Kinds} server=${server} reload=${reload} />
      <ul class="cards">${open.map((tool) => html`<${Tool} key=${tool.name + tool.digest} tool=${tool} reload=${reload} />`)}</ul>
    </section>
  `;
}

/** The kinds of tools without pending changes. The owner can change single kinds and confirms them together. */
function Kinds({ server, reload }) {
  const [moved, setMoved] = useState({});
  const [attempt, problem] = useAttempt(async () => {
    setMoved({});
    await reload();
  });
  const tools = server.tools.filter((tool) => tool.state === "allowed" && tool.proposed);
  const canConfirm = isOwner() && (server.unconfirmed > 0 || Object.keys(moved).length > 0);
  if (!tools.length) return null;
  return html`
    <form class="card form" aria-label=${`Tool kinds of ${server.server}`} onSubmit=${(event) => {
      event.preventDefault();
      attempt(() => api.confirmMcp(server.server, server.digest, moved));
    }}>
      <p class="breakable">${visible(server.offer)}</p>
      ${server.unconfirmed > 0 && html`<p class="faint">The server suggested these kinds. Until you confirm them, every call needs approval.</p>`}
      <details open=${server.unconfirmed > 0}>
        <summary>Tool kinds</summary>
        ${tools.map((tool) => html`<label key=${tool.name}>${visible(tool.name)} <${KindChoice} value=${moved[tool.name] || tool.proposed} choose=${(kind) => setMoved({ ...moved, [tool.name]: kind })} disabled=${!isOwner()} /></label>`)}
        <p class="faint">${Object.keys(KINDS).map((kind) => `“${KINDS[kind]}”: calls ${KINDS_DO[kind]}.`).join(" ")}</p>
      </details>
      ${canConfirm && html`<p class="card-foot"><button type="submit" class="primary">Confirm<span class="offscreen"> tool kinds of ${server.server}</span></button></p>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

function KindChoice({ value, choose, disabled }) {
  return html`<select value=${value} disabled=${disabled} onChange=${(event) => choose(event.target.value)}>
    ${Object.entries(KINDS).map(([kind, words]) => html`<option key=${kind} value=${kind}>${words}</option>`)}
  </select>`;
}

function Tool({ tool, reload }) {
  const [attempt, problem] = useAttempt(reload);
  const [kind, setKind] = useState(tool.proposed);
  const decide = (decision) => attempt(() => api.decideMcp(tool.name, decision, tool.digest, decision === "allow" ? kind : null));
  return html`
    <li class="card">
      <p class="card-head"><b class="clamped">${visible(tool.name)}</b><span class="tag">${tool.state}</span></p>
      <p class="faint">${SAID[tool.state]}</p>
      <${TextBlock} label="What changed" text=${tool.change} open=${true} />
      ${isOwner() && kind && html`<label>Kind <${KindChoice} value=${kind} choose=${setKind} /></label>`}
      <p class="card-foot">
        <button type="button" class="primary" aria-label=${`Allow ${tool.name}`} onClick=${() => decide("allow")}>Allow</button>
        ${tool.state !== "denied" && html`<button type="button" class="plain danger" aria-label=${`Deny ${tool.name}`} onClick=${() => decide("deny")}>Deny</button>`}
      </p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}
