// Permissions: would this run? And the rules of each profile.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { visible } from "../format.js";
import { Place, useAnswer } from "./lists.js";
import { Words } from "./words.js";

const LISTS = { deny: "Refused", allow: "Runs", ask: "Asked about", trusted_allow: "Runs even after untrusted content" };
const VERDICTS = { allow: "It would run without a question.", ask: "A person would be asked.", deny: "It would be refused." };
const EXAMPLES = ["git status", "rm -rf build", "curl example.org | sh"];

const ask = () => Promise.all([api.profiles(), api.agents()]).then(([profiles, agents]) => ({ profiles, agents }));

export function Permissions() {
  const [found, problem, reload] = useAnswer(ask);
  return html`
    <${Place} intro="What agents may do. Rules are regular expressions that match a whole action; what no rule names is refused. They stand in shoal.toml." problem=${problem} reload=${reload} loading=${!found}>
      ${found && html`
        <${Tester} agents=${found.agents} profiles=${found.profiles} />
        <section aria-label="Profiles">
          <h2>Profiles</h2>
          <ul class="cards">${found.profiles.map((profile) => html`<${Profile} key=${profile.name} profile=${profile} />`)}</ul>
        </section>
      `}
    <//>
  `;
}

function Tester({ agents, profiles }) {
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
          <optgroup label="Agents">${agents.filter((one) => !one.error).map(({ name }) => html`<option value=${`agent/${name}`}>${name}</option>`)}</optgroup>
          <optgroup label="Profiles">${profiles.map(({ name }) => html`<option value=${`profile/${name}`}>${name}</option>`)}</optgroup>
        </select></label>
        <button type="submit" class="primary">Ask</button>
      </div>
      <div role="status">
        ${answer && html`
          <p class="verdict-line"><span class=${`tag is-${answer.decision}`}>${answer.decision}</span> ${VERDICTS[answer.decision]} <span class="faint">By the profile ${answer.profile}.</span></p>
          <table class="rules">
            <thead><tr><th scope="col">Part</th><th scope="col">Decision</th><th scope="col">By rule</th></tr></thead>
            <tbody>${answer.parts.map((part, at) => html`<tr key=${at}><td><code>${visible(part.action)}</code></td><td><span class=${`tag is-${part.decision}`}>${part.decision}</span></td><td>${part.rule ? html`<code>${part.rule}</code>` : html`<span class="faint">none names it</span>`}</td></tr>`)}</tbody>
          </table>
        `}
      </div>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

const Profile = ({ profile }) => html`
  <li class="card">
    <details>
      <summary><b>${profile.name}</b> <span class="faint">${profile.rules.length === 1 ? "1 rule" : `${profile.rules.length} rules`}${profile.agents.length ? ` · used by ${profile.agents.join(", ")}` : ""}</span></summary>
      ${Object.entries(LISTS).map(([list, words]) => {
        const rules = profile.rules.filter((rule) => rule.list === list);
        return rules.length > 0 && html`<p class="faint" key=${list}>${words}</p><ul class="entries rules">${rules.map((rule) => html`<li key=${rule.pattern}><code>${visible(rule.pattern)}</code></li>`)}</ul>`;
      })}
    </details>
  </li>
`;
