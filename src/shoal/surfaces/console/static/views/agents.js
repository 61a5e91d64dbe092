// Agents, and the server's status.

import { api } from "../api.js";
import { html, useRef, useState } from "../dom.js";
import { byName, visible } from "../format.js";
import { canChange, me } from "../me.js";
import { AgentFiles } from "./agentfiles.js";
import { useChats } from "./chats.js";
import { Filtered } from "./filtered.js";
import { Place, useAnswer } from "./lists.js";
import { Face } from "./face.js";
import { Words } from "./words.js";

const LISTENS = { all: "every message", named: "only messages that mention it", threads: "mentions, and later messages in threads that mention it" };

export function Agents() {
  const [agents, problem, reload] = useAnswer(api.agents);
  const [info] = useAnswer(async () => (me.agent ? null : api.info())); // a token for one agent may not see the status
  return html`
    <${Place} intro="An agent answers in the channels bound to it. The default agent answers everywhere else." problem=${problem} reload=${reload} loading=${!agents}>
      ${agents && html`<${Filtered} items=${agents} noun="agents" text=${(agent) => `${agent.name} ${agent.model} ${agent.system_prompt} ${agent.channels.join(" ")}`}
        row=${(agent) => html`<${Agent} key=${agent.name} agent=${agent} reload=${reload} />`} />`}
      ${canChange() && html`<${NewAgent} reload=${reload} />`}
      ${info && html`<${Up} info=${info} />`}
    <//>
  `;
}

function Agent({ agent, reload }) {
  const [open, setOpen] = useState("");
  const [problem, setProblem] = useState("");
  const attempt = async (action) => {
    try {
      await action();
      setProblem("");
      setOpen("");
      await reload();
    } catch (error) {
      setProblem(error.message);
    }
  };
  const toggle = (name) => setOpen(open === name ? "" : name);
  return html`
    <li class="card" id=${`agent-${agent.name}`}>
      <p class="card-head">
        <span class="named"><${Face} name=${agent.name} /><b>${agent.name}</b></span>
        <span>
          ${agent.at_work > 0 && html`<span class="tag">${agent.at_work} running</span>`} ${agent.is_default && html`<span class="tag">default agent</span>`}
          ${agent.profile && html`<span class="tag">profile ${agent.profile}</span>`}
        </span>
      </p>
      ${agent.channels.length > 0 &&
      html`<ul class="places-of">
        ${agent.channels.map(
          (place) => html`<li key=${place}><span class="breakable">${place}</span> <span class="faint">${LISTENS[agent.listen[place]]}</span>
            ${canChange() && html`<button type="button" class="quiet" aria-label=${`Unbind ${place}`} onClick=${() => attempt(() => api.unbind(place))}>Unbind</button>`}</li>`,
        )}
      </ul>`}
      <div class="agent-line">
        <div>${agent.error ? html`<p class="problem"><${Words} text=${agent.error} /></p>` : html`<${Facts} agent=${agent} />`}</div>
      ${canChange() &&
      html`<p class="card-foot">
        <button type="button" class="plain" aria-expanded=${open === "files"} onClick=${() => toggle("files")}>Files<span class="offscreen"> of ${agent.name}</span></button>
        <button type="button" class="plain" aria-expanded=${open === "change"} onClick=${() => toggle("change")}>Change</button>
        <button type="button" class="plain" aria-expanded=${open === "bind"} onClick=${() => toggle("bind")}>Bind a channel</button>
        ${!agent.is_default && html`<button type="button" class="quiet" aria-expanded=${open === "remove"} onClick=${() => toggle("remove")}>Remove</button>`}
      </p>`}
      </div>
      ${open === "files" && html`<${AgentFiles} agent=${agent.name} />`}
      ${open === "change" && html`<${Change} agent=${agent} attempt=${attempt} />`} ${open === "bind" && html`<${Bind} agent=${agent} attempt=${attempt} />`}
      ${open === "remove" && html`<${Remove} agent=${agent} attempt=${attempt} keep=${() => setOpen("")} />`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}

function Facts({ agent }) {
  const { usd_per_day: usd, tokens_per_day: tokens } = agent.budget;
  return html`
    <p><code>${agent.model || "the default model"}</code>${agent.fallback.length > 0 && html`<span class="faint">, then ${agent.fallback.join(", ")}</span>`}</p>
    ${agent.system_prompt && html`<p class="clamped">${agent.system_prompt}</p>`}
    <p class="faint">${agent.tools.length ? `${agent.tools.length} ${agent.tools.length === 1 ? "tool" : "tools"}: ${agent.tools.join(", ")}` : "All tools"}${usd > 0 && ` · limit $${usd} per day`}${tokens > 0 && ` · limit ${tokens} tokens per day`}</p>
  `;
}

const BUDGET = [
  ["usd_per_day", "Dollars per day"],
  ["tokens_per_day", "Tokens per day"],
  ["usd_per_turn", "Dollars per turn"],
  ["tokens_per_turn", "Tokens per turn"],
];

/** Load the known models, profiles and tools. */
const choices = async () => {
  const asked = [api.models(), api.profiles(), api.info()].map((one) => one.catch(() => null));
  const [models, profiles, info] = await Promise.all(asked);
  const names = (found) => (found || []).map((one) => one.name);
  return { models: names(models), profiles: names(profiles), tools: info?.tools || [] };
};

function Change({ agent, attempt }) {
  const [known] = useAnswer(choices);
  const { models = [], profiles = [], tools = [] } = known || {};
  const [every, setEvery] = useState(!agent.tools.length);
  const before = {
    model: agent.model,
    profile: agent.profile,
    system_prompt: agent.system_prompt,
    tools: agent.tools.join(", "),
    timezone: agent.timezone,
    ...Object.fromEntries(BUDGET.map(([key]) => [`budget.${key}`, agent.budget[key] ? String(agent.budget[key]) : ""])),
  };
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const chosen = form.getAll("tool");
    if (!every && !chosen.length) return;
    const given = { ...Object.fromEntries([...form].filter(([key]) => key !== "tool")), tools: every ? "" : chosen.join(", ") };
    const settings = Object.fromEntries(Object.entries(given).filter(([key, value]) => value.trim() !== before[key]));
    attempt(() => api.changeAgent(agent.name, settings));
  };
  return html`
    <form class="form inner" aria-label=${`Change ${agent.name}`} onSubmit=${submit}>
      <label>Instructions <textarea name="system_prompt" rows="3">${before.system_prompt}</textarea></label>
      <div class="pair">
        <label>Model <input name="model" list=${`models-${agent.name}`} defaultValue=${before.model} spellcheck=${false} /></label>
        <label>Permissions <select name="profile" key=${profiles.length}>${[...new Set([before.profile, ...profiles])].map((one) => html`<option key=${one} value=${one} selected=${one === before.profile}>${one}</option>`)}</select></label>
      </div>
      <label>Time zone <input name="timezone" defaultValue=${before.timezone} spellcheck=${false} placeholder="Europe/Berlin" /></label>
      <datalist id=${`models-${agent.name}`}>${models.map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>
      <fieldset class="budgets"><legend>Budget limits (leave empty for no limit)</legend>
        ${BUDGET.map(([key, label]) => html`<label key=${key}>${label} <input name=${`budget.${key}`} type="number" min="0" step=${key.startsWith("usd") ? "0.01" : "1"} defaultValue=${before[`budget.${key}`]} /></label>`)}
      </fieldset>
      <label>Tools <select value=${every ? "all" : "some"} onChange=${(event) => setEvery(event.target.value === "all")}><option value="all">all tools</option><option value="some">selected tools</option></select></label>
      ${!every && html`<fieldset class="tool-choices"><legend class="offscreen">Selected tools</legend>
        ${[...new Set([...tools, ...agent.tools])].sort(byName).map((one) => html`<label class="choice" key=${one}><input type="checkbox" name="tool" value=${one} defaultChecked=${agent.tools.includes(one)} /> ${visible(one)}</label>`)}
      </fieldset>`}
      <p class="card-foot"><span class="faint">Takes effect on the next turn. An empty model or time zone selects the default.</span><button type="submit" class="primary">Save</button></p>
    </form>
  `;
}

function Bind({ agent, attempt }) {
  const [chats] = useChats();
  const form = useRef(null);
  const choose = ({ target }) => {
    const { platform = "", channel = "" } = chats[target.value] || {};
    form.current.platform.value = platform;
    form.current.channel.value = channel;
  };
  const submit = (event) => {
    event.preventDefault();
    const { platform, channel, listen } = Object.fromEntries(new FormData(event.target));
    attempt(() => api.bind({ platform: platform.trim(), channel: channel.trim(), agent: agent.name, listen }));
  };
  return html`
    <form class="form inner" aria-label=${`Bind a channel to ${agent.name}`} onSubmit=${submit} ref=${form}>
      ${chats?.some(({ platform }) => platform !== "web") && html`<label>Known chat <select onChange=${choose}>
        <option value="">Other chat, by ID</option>
        ${chats.map((chat, at) => html`<option key=${chat.thread} value=${at}>${chat.name}</option>`)}
      </select></label>`}
      <div class="pair">
        <label>Platform <input name="platform" required placeholder="discord" spellcheck="false" /></label>
        <label>Channel ID <input name="channel" required spellcheck="false" /></label>
      </div>
      <${Listens} />
      <p class="card-foot"><button type="submit" class="primary">Bind</button></p>
    </form>
  `;
}

function Listens() {
  return html`<label>Answers <select name="listen">${Object.entries(LISTENS).map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}</select></label>`;
}

function Remove({ agent, attempt, keep }) {
  const submit = (event) => {
    event.preventDefault();
    attempt(() => api.destroyAgent(agent.name, event.target.keep.checked));
  };
  return html`
    <form class="form inner" aria-label=${`Remove ${agent.name}`} onSubmit=${submit}>
      <p>Removing ${agent.name} stops its turns and binds its channels to the default agent. Its conversations stay in the journal.</p>
      <label class="choice"><input type="checkbox" name="keep" checked /> Keep its files in removed/</label>
      <p class="card-foot"><button type="submit" class="plain danger">Remove ${agent.name}</button><button type="button" class="quiet" onClick=${keep}>Keep it</button></p>
    </form>
  `;
}

function NewAgent({ reload }) {
  const [problem, setProblem] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    const { name, beside, listen, ...rest } = Object.fromEntries(new FormData(form));
    const settings = Object.fromEntries(Object.entries(rest).filter(([, value]) => value.trim()));
    try {
      const made = await api.createAgent({ name: name.trim(), settings, beside: beside.trim(), listen });
      form.reset();
      setProblem(made.note);
      await reload();
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`
    <form class="card form" onSubmit=${submit}>
      <h2>New agent</h2>
      <div class="pair">
        <label>Name <input name="name" required pattern="[a-z0-9][a-z0-9_\\-]*" maxlength="64" placeholder="release-notes" spellcheck="false" /></label>
        <label>Model (leave empty for the default) <input name="model" spellcheck="false" /></label>
      </div>
      <label>Instructions <textarea name="system_prompt" rows="2" placeholder="Write the release notes of this project"></textarea></label>
      <label>Channel ID (optional). Shoal creates a channel for the agent in the same server or team <input name="beside" placeholder="discord:1234567890" spellcheck="false" /></label>
      <${Listens} />
      <p class="card-foot"><span class="faint">The agent starts as a copy of template/. Its workspace is a Git repository.</span><button type="submit" class="primary">Create agent</button></p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

function Up({ info }) {
  const known = info.providers.length ? `${info.models} models from ${info.providers.join(", ")}` : "no provider set up";
  const rows = [
    ["Platforms", info.platforms.join(", ")],
    ["Models", `${info.model} (${known})`],
    ["Tools", info.tools.join(", ")],
    ["Skills", info.skills.join(", ") || "none"],
    ...(info.mcp?.length ? [["MCP servers", info.mcp.join(" · ")]] : []),
    ["Sandbox", info.isolated ? info.sandbox : `${info.sandbox}, not isolated`],
  ];
  return html`
    <section class="up" aria-labelledby="up">
      <h2 id="up">Status</h2>
      <dl>${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
      ${info.notes.map((note) => html`<p class="problem"><${Words} text=${note} /></p>`)}
    </section>
  `;
}
