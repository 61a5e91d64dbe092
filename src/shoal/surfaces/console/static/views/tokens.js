// Access tokens. The page shows a new token only once.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { ago, fullTime, visible } from "../format.js";
import { calledBy } from "../me.js";
import { Copy } from "./copy.js";
import { Sure, useAnswer, useAttempt } from "./lists.js";
import { Words } from "./words.js";

const SCOPES = [
  ["chat", "chat, only in the person's own conversations"],
  ["read", "read everything"],
  ["approve", "read everything and decide approvals"],
  ["admin", "full access"],
];
const EXPIRES = [["90d", "in 90 days"], ["365d", "in a year"], ["7d", "in a week"], ["", "never"]];

export function Tokens() {
  const [tokens, problem, reload] = useAnswer(api.tokens);
  const [made, setMade] = useState(null);
  return html`
    <section class="people" aria-label="Tokens">
      <h2>Tokens</h2>
      <p class="intro">A token lets a person sign in here or a program call the API, with limited permissions.</p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
      ${made && html`
        <div class="panel is-ask" role="status">
          <p>Copy the token <b>${made.token.name}</b> now. Shoal does not show it again.</p>
          <p class="sheet-line"><code class="breakable">${made.secret}</code><${Copy} text=${made.secret} label="Copy" /></p>
          <p class="card-foot"><button type="button" class="plain" onClick=${() => setMade(null)}>Done</button></p>
        </div>`}
      <${NewToken} reload=${reload} show=${setMade} />
      ${tokens && !tokens.length && html`<p class="faint">No tokens yet, except the owner's.</p>`}
      <ul class="cards">${(tokens || []).map((one) => html`<${Token} key=${one.name} token=${one} reload=${reload} />`)}</ul>
    </section>
  `;
}

function NewToken({ reload, show }) {
  const [attempt, problem] = useAttempt(reload);
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    const wanted = Object.fromEntries(new FormData(form));
    if (await attempt(async () => show(await api.createToken(wanted)))) form.reset();
  };
  return html`
    <form class="card form above" aria-label="New token" onSubmit=${submit}>
      <div class="pair">
        <label>Name <input name="name" required maxlength="64" placeholder="ben" autocomplete="off" spellcheck="false" /></label>
        <label>Permissions <select name="scope">${SCOPES.map(([scope, words]) => html`<option value=${scope}>${words}</option>`)}</select></label>
        <label>Expires <select name="expires">${EXPIRES.map(([span, words]) => html`<option value=${span}>${words}</option>`)}</select></label>
        <label>Agent <input name="agent" maxlength="64" placeholder="any" autocomplete="off" spellcheck="false" /></label>
      </div>
      <p class="card-foot"><button type="submit" class="primary">Create token</button></p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

function Token({ token, reload }) {
  const [attempt, problem] = useAttempt(reload);
  const { name, scope, person, agent, created_by: by, created_at: at, expires_at: ends, used_on: used } = token;
  const isOver = ends && Date.parse(ends) < Date.now();
  const facts = [
    `for ${calledBy(person)}`,
    agent && `only for the agent ${agent}`,
    `created ${ago(at)} by ${calledBy(by)}`,
    used ? `last used on ${used}` : "never used",
    ends ? `${isOver ? "expired" : "expires"} ${ago(ends)}` : "never expires",
  ];
  return html`
    <li class="card">
      <p class="card-head"><b class="breakable">${visible(name)}</b><span><span class="tag">${scope}</span>${isOver && html`<span class="tag is-missed">expired</span>`}</span></p>
      <p class="card-foot">
        <span class="faint" title=${fullTime(at)}>${facts.filter(Boolean).map(visible).join(" · ")}</span>
        <${Sure} label="Revoke" what=${name} yes="Revoke it" act=${() => attempt(() => api.revokeToken(name))} />
      </p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}
