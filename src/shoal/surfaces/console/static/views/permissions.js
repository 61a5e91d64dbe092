// Permissions: test a command, edit your own rules, and see each profile's rules.

import { api } from "../api.js";
import { html, useMemo, useState } from "../dom.js";
import { byName, visible } from "../format.js";
import { isOwner } from "../me.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { DECISIONS, LISTS, Rule, allRules, wordsByRule } from "./rules.js";
import { Words } from "./words.js";

const VERDICTS = { allow: "It would run without asking.", ask: "It would ask for approval.", deny: "It would be denied." };
const EXAMPLES = ["git status", "rm -rf build", "curl example.org | sh"];
const SUBJECTS = {
  command: ["A command", "Command", "git status", "any arguments"],
  read: ["Reading a file or folder", "Path", "/workspace/notes", "everything below it"],
  write: ["Writing a file or folder", "Path", "/workspace/notes", "everything below it"],
  web: ["Reading a web page", "URL", "https://example.org/docs", "all pages below it"],
  tool: ["An entire tool", "Tool", "", ""],
};

const ask = () => Promise.all([allRules(), api.agents(), api.info()]).then(([rules, agents, info]) => ({ ...rules, agents: agents.filter((one) => !one.error), tools: info.tools || [] }));

export function Permissions() {
  const [found, problem, reload] = useAnswer(ask);
  const words = useMemo(() => (found ? wordsByRule(found) : new Map()), [found]);
  return html`
    <${Place} intro="Your own rules apply first, then the rules of the agent's profile. If no rule matches, the “standard” profile decides by the call's effect, and all other profiles deny the call." problem=${problem} reload=${reload} loading=${!found}>
      ${found && html`
        <${Tester} found=${found} words=${words} />
        <${OwnRules} found=${found} reload=${reload} />
        <section aria-label="Profiles">
          <h2>Profiles</h2>
          <p class="faint above">Copy a built-in profile to change it, and choose an agent's profile in <a href="#/agents">Agents</a>. Your own rules take precedence over a profile, but its deny rules always win.</p>
          <ul class="cards">${found.profiles.map((profile) => html`<${Profile} key=${profile.name} profile=${profile} reload=${reload} />`)}</ul>
        </section>
      `}
    <//>
  `;
}

function Tester({ found, words }) {
  const [answer, setAnswer] = useState(null);
  const [problem, setProblem] = useState("");
  const [shell, setShell] = useState("");
  const check = async (event) => {
    event.preventDefault();
    const [kind, name] = new FormData(event.target).get("whose").split("/");
    try {
      setAnswer(await api.wouldRun({ [kind]: name, ...(/^(tool|net|mcp):/.test(shell) ? { action: shell } : { shell }) }));
      setProblem("");
    } catch (error) {
      setAnswer(null);
      setProblem(error.message);
    }
  };
  return html`
    <form class="card form tester" onSubmit=${check} aria-label="Would this run?">
      <h2>Would this run?</h2>
      <label>Command, or an action such as tool:write:/workspace/notes.md <input name="shell" required spellcheck="false" autocomplete="off" value=${shell} onInput=${(event) => setShell(event.target.value)} /></label>
      <p class="sheet-line"><span class="faint">Try</span>${EXAMPLES.map((text) => html`<button type="button" class="quiet" key=${text} onClick=${() => setShell(text)}><code>${text}</code></button>`)}</p>
      <div class="line">
        <label>For <select name="whose">
          <optgroup label="Agents">${found.agents.map(({ name }) => html`<option value=${`agent/${name}`}>${name}</option>`)}</optgroup>
          <optgroup label="Profiles">${found.profiles.map(({ name }) => html`<option value=${`profile/${name}`}>${name}</option>`)}</optgroup>
        </select></label>
        <button type="submit" class="primary">Check</button>
      </div>
      <div role="status">
        ${answer && html`
          <p class="verdict-line"><span class=${`tag is-${answer.decision}`}>${DECISIONS[answer.decision]}</span> ${VERDICTS[answer.decision]} <span class="faint">The profile is ${answer.profile}.</span></p>
          <table class="rules">
            <thead><tr><th scope="col">Part</th><th scope="col">Decision</th><th scope="col">Rule</th></tr></thead>
            <tbody>${answer.parts.map((part, at) => html`<tr key=${at}><td><code title=${part.action}>${visible(bare(part.action))}</code></td><td><span class=${`tag is-${part.decision}`}>${DECISIONS[part.decision]}</span></td><td>${part.rule ? html`<${Rule} rule=${part.rule} words=${words.get(part.rule)} />` : html`<span class="faint">no rule</span>`}</td></tr>`)}</tbody>
          </table>
        `}
      </div>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

export const bare = (action) => action.replace(/^tool:bash:/, "");

/** Describe the scope of a rule. */
export function whose(rule) {
  if (rule.profile) return `the profile ${rule.profile}`;
  const names = ["agents", "platforms", "channels", "kinds", "users", "roles"].flatMap((name) => rule[name] || []);
  return names.length ? names.join(", ") : "every agent";
}

function OwnRules({ found, reload }) {
  const [adding, setAdding] = useState(false);
  return html`
    <section aria-label="Your rules" class="own-rules">
      <h2>Your rules</h2>
      <p class="faint above">${found.own.length ? "Rules apply from an agent's next turn. If several match, the first decides, but a deny rule always wins." : "You have no rules yet, so the agents' profiles decide."}</p>
      <ul class="cards">${found.own.map((rule) => html`<${OwnRule} key=${rule.id} rule=${rule} found=${found} reload=${reload} />`)}</ul>
      ${isOwner() && (adding
        ? html`<div class="card"><${RuleForm} found=${found} reload=${reload} close=${() => setAdding(false)} /></div>`
        : html`<p class="sheet-line above"><button type="button" class="plain" onClick=${() => setAdding(true)}>Add a rule</button></p>`)}
      ${!isOwner() && html`<p class="faint above">Only the owner can change rules.</p>`}
    </section>
  `;
}

function OwnRule({ rule, found, reload }) {
  const [editing, setEditing] = useState(false);
  const [attempt, problem] = useAttempt(reload);
  const named = rule.words || rule.pattern;
  return html`
    <li class="card">
      ${editing
        ? html`<${RuleForm} rule=${rule} found=${found} reload=${reload} close=${() => setEditing(false)} />`
        : html`
          <div class="card-head"><${Rule} rule=${rule.pattern} words=${rule.words} /><span class=${`tag is-${rule.list}`}>${LISTS[rule.list]}</span></div>
          <p class="card-foot"><span class="faint">For ${whose(rule)}</span>
            ${isOwner() && html`<button type="button" class="quiet" onClick=${() => setEditing(true)}>Change<span class="offscreen"> ${named}</span></button>
              <${Sure} label="Remove" what=${named} yes="Remove it" act=${() => attempt(() => api.removeRule(rule.id))} />`}
          </p>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}

/** A form for a rule. If the rule is only a pattern, the form changes only its decision. */
function RuleForm({ rule, found, reload, close }) {
  const [what, setWhat] = useState(rule?.subject?.what || "command");
  const [attempt, problem] = useAttempt(reload);
  const fixed = rule && !rule.subject;
  const [, label, example, more] = SUBJECTS[what];
  const isTool = what === "tool";
  const submit = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    const about = fixed ? { pattern: rule.pattern } : { subject: { what, text: given.text.trim(), beginning: Boolean(given.beginning) } };
    const [kind, name] = (given.whose || "").split("/");
    const where = kind === "agent" ? { agents: [name] } : kind === "profile" ? { profile: name } : {};
    const wanted = { list: given.list, ...about, ...where };
    if (await attempt(() => (rule ? api.changeRule(rule.id, wanted) : api.addRule(wanted)))) close();
  };
  return html`
    <form class="form" onSubmit=${submit} aria-label=${rule ? "Change this rule" : "Add a rule"}>
      ${fixed
        ? html`<p>You can change only the decision of this rule here. Change its pattern, <code class="breakable">${visible(rule.pattern)}</code>, in shoal.toml.</p>`
        : html`
          <div class="pair">
            <label>Subject <select value=${what} onChange=${(event) => setWhat(event.target.value)}>${Object.entries(SUBJECTS).map(([value, [words]]) => html`<option value=${value}>${words}</option>`)}</select></label>
            ${isTool
              ? html`<label key="tool">${label} <select name="text">${[...found.tools].sort(byName).map((name) => html`<option value=${name} selected=${name === rule?.subject?.text}>${name}</option>`)}</select></label>`
              : html`<label key=${what}>${label} <input name="text" required maxlength="900" spellcheck="false" autocomplete="off" placeholder=${example} defaultValue=${rule?.subject?.what === what ? rule.subject.text : ""} /></label>`}
          </div>
          ${!isTool && html`<label class="only" key=${`more ${what}`}><input type="checkbox" name="beginning" defaultChecked=${rule ? rule.subject.beginning : true} /> and ${more}</label>`}
          ${what === "read" && html`<p class="faint">Commands can also read files. This rule covers only the tools that read files, and files that a command reads with <code>${"<"}</code>.</p>`}`}
      <div class="pair">
        <label>Decision <select name="list">${Object.entries(LISTS).map(([value, words]) => html`<option value=${value} selected=${value === (rule?.list || "allow")}>${words}</option>`)}</select></label>
        ${!rule && html`<label>For <select name="whose">
          <option value="">every agent</option>
          <optgroup label="Agents">${found.agents.map(({ name }) => html`<option value=${`agent/${name}`}>${name}</option>`)}</optgroup>
          ${found.profiles.some((one) => !one.built_in) && html`<optgroup label="Your profiles">${found.profiles.filter((one) => !one.built_in).map(({ name }) => html`<option value=${`profile/${name}`}>${name}</option>`)}</optgroup>`}
        </select></label>`}
      </div>
      <p class="card-foot"><span class="faint">When you save, Shoal updates shoal.toml and adds an entry to the audit log.</span><button type="submit" class="primary">${rule ? "Save" : "Add rule"}</button><button type="button" class="quiet" onClick=${close}>Cancel</button></p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

function Profile({ profile, reload }) {
  const [attempt, problem] = useAttempt(reload);
  const copy = (event) => {
    event.preventDefault();
    attempt(() => api.copyProfile(profile.name, new FormData(event.target).get("name").trim()));
  };
  return html`
  <li class="card">
    <details>
      <summary><b>${profile.name}</b> <span class="faint">${profile.rules.length === 1 ? "1 rule" : `${profile.rules.length} rules`}${profile.built_in ? " · built-in" : ""}${profile.agents.length ? ` · used by ${profile.agents.join(", ")}` : ""}</span></summary>
      ${Object.entries(LISTS).map(([list, title]) => {
        const rules = profile.rules.filter((rule) => rule.list === list);
        return rules.length > 0 && html`<p class="faint" key=${list}>${title}</p><ul class="entries rules">${rules.map((rule) => html`<li key=${rule.pattern}><${Rule} rule=${rule.pattern} words=${rule.words} /></li>`)}</ul>`;
      })}
      ${isOwner() && html`<form class="filter" onSubmit=${copy}>
        <label>Copy to a new profile named <input name="name" required maxlength="64" pattern="[A-Za-z0-9_\\-]+" spellcheck="false" autocomplete="off" placeholder=${`my-${profile.name}`} /></label>
        <button type="submit" class="plain">Copy</button>
        ${!profile.built_in && html`<${Sure} label="Remove" what=${profile.name} yes="Remove it" act=${() => attempt(() => api.removeProfile(profile.name))} />`}
      </form>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </details>
  </li>
`;
}
