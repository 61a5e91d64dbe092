import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { visible } from "../format.js";
import { canChange } from "../me.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { Prose } from "./prose.js";
import { Words } from "./words.js";

const SCOPES = { builtin: "built-in", global: "everywhere", platform: "on its platform", channel: "in its channel", agent: "only this agent" };
const WRITABLE = ["global", "agent"];
const NEW = `---
name: my-skill
description: In one sentence, what this skill does and when to use it.
---

# How to do it

1. First …
`;

export function Skills() {
  const [agents] = useAnswer(api.agents);
  const [agent, setAgent] = useState("");
  const chosen = agent || agents?.find((one) => one.is_default)?.name || agents?.[0]?.name || "";
  return html`
    <${Place} intro="Instructions for tasks. An agent sees each skill's name and description, and reads the rest when needed." loading=${!agents}>
      ${agents?.length > 1 && html`<div class="filter"><label>Agent <select value=${chosen} onChange=${(event) => setAgent(event.target.value)}>${agents.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label></div>`}
      ${chosen && html`<${Known} key=${chosen} agent=${chosen} />`}
    <//>
  `;
}

function Known({ agent }) {
  const [found, problem, reload] = useAnswer(() => api.skills(agent));
  const [draft, setDraft] = useState(""); // text of a new skill
  const [scope, setScope] = useState("global"); // scope of installed skills
  const [address, setAddress] = useState("");
  const [attempt, refused] = useAttempt(reload);
  const fetchIt = async (event) => {
    event.preventDefault();
    if (await attempt(() => api.installSkills({ scope, agent, url: address.trim() }))) setAddress("");
  };
  const take = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file && /\.zip$/i.test(file.name)) await attempt(() => api.installSkills({ scope, agent }, file));
    else if (file) setDraft(await file.text());
  };
  return html`
    ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    ${!found && !problem && html`<p class="faint">Loading…</p>`}
    ${found?.problems.map((one) => html`<p key=${one.path} class="problem breakable"><${Words} text=${`${one.path}: ${one.problem}`} /></p>`)}
    ${found && canChange() && !draft && html`<p class="sheet-line above">
      <button type="button" class="plain" onClick=${() => setDraft(NEW)}>New skill</button>
      <label class="plain file-button">Install a SKILL.md or .zip file <input type="file" class="offscreen" accept=".md,text/markdown,.zip,application/zip" onChange=${take} /></label>
      <label class="only">for <select value=${scope} onChange=${(event) => setScope(event.target.value)}><option value="global">every agent</option><option value="agent">only ${agent}</option></select></label>
    </p>
    <form class="filter above" onSubmit=${fetchIt}>
      <label>From a URL <input type="url" required pattern="https:.*" placeholder="https://example.org/skills.zip" value=${address} onInput=${(event) => setAddress(event.target.value)} /></label>
      <button type="submit" class="plain">Install</button>
    </form>
    <p class="faint above">A .zip file must contain one folder for each skill, with its SKILL.md and any other files. Agents follow skills, so install only skills that you trust.</p>`}
    ${refused && html`<p class="problem" role="alert"><${Words} text=${refused} /></p>`}
    ${draft && html`<div class="card above"><${Editor} agent=${agent} text=${draft} scope=${scope} close=${() => setDraft("")} reload=${reload} /></div>`}
    ${found && !found.skills.length && html`<p class="faint empty">This agent has no skills. Write or install one above.</p>`}
    <ul class="cards">${(found?.skills || []).map((skill) => html`<${Skill} key=${`${skill.scope} ${skill.name}`} skill=${skill} agent=${agent} reload=${reload} />`)}</ul>
  `;
}

const OFF = /^disable-model-invocation:.*\n/m;

/** Toggle whether agents see a SKILL.md. */
export const switched = (source) =>
  OFF.test(source.split(/^---$/m)[1] || "") ? source.replace(OFF, "") : source.replace(/^---\n/, "---\ndisable-model-invocation: true\n");

function Skill({ skill, agent, reload }) {
  const [open, setOpen] = useState(false);
  const [editing, setEditing] = useState(false);
  const [attempt, problem] = useAttempt(reload);
  const mine = canChange() && WRITABLE.includes(skill.scope);
  return html`
    <li class="card">
      <p class="card-head"><b class="breakable">${skill.name}</b><span><span class="tag">${SCOPES[skill.scope] || skill.scope}</span>${skill.hidden && html`<span class="tag is-missed">switched off</span>`}</span></p>
      <p class="breakable">${visible(skill.description)}</p>
      ${editing
        ? html`<${Editor} agent=${agent} text=${skill.source} scope=${skill.scope} name=${skill.name} close=${() => setEditing(false)} reload=${reload} />`
        : html`<p class="card-foot">
            <button type="button" class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Hide" : "Read"}<span class="offscreen"> ${skill.name}</span></button>
            ${mine && html`<button type="button" class="quiet" onClick=${() => setEditing(true)}>Edit<span class="offscreen"> ${skill.name}</span></button>
              <button type="button" class="quiet" onClick=${() => attempt(() => api.writeSkill(skill.name, { scope: skill.scope, text: switched(skill.source), agent }))}>${skill.hidden ? "Switch on" : "Switch off"}<span class="offscreen"> ${skill.name}</span></button>
              <${Sure} label="Remove" what=${skill.name} yes="Remove it" act=${() => attempt(() => api.deleteSkill(skill.name, { scope: skill.scope, agent }))} />`}
          </p>`}
      ${open && !editing && html`<div class="skill-text"><${Prose} text=${skill.text} thread="" /></div>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}

function Editor({ agent, text, scope, name = "", close, reload }) {
  const [draft, setDraft] = useState(text);
  const [where, setWhere] = useState(scope);
  const [attempt, problem] = useAttempt(reload);
  const save = async (event) => {
    event.preventDefault();
    const called = name || /^name:\s*["']?([\w-]+)/m.exec(draft)?.[1] || "";
    if (await attempt(() => api.writeSkill(called || "unnamed", { scope: where, text: draft, agent }))) close();
  };
  return html`
    <form class="form" onSubmit=${save}>
      ${!name && html`<label>For <select value=${where} onChange=${(event) => setWhere(event.target.value)}><option value="global">every agent</option><option value="agent">only ${agent}</option></select></label>`}
      <label>SKILL.md <textarea rows="14" spellcheck="false" required value=${draft} onInput=${(event) => setDraft(event.target.value)}></textarea></label>
      <p class="card-foot"><button type="submit" class="primary">Save</button><button type="button" class="quiet" onClick=${close}>Cancel</button></p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}
