// Access: people waiting for access, people with access, and tokens.

import { api } from "../api.js";
import { html } from "../dom.js";
import { ago, fullTime, visible } from "../format.js";
import { canChange } from "../me.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { Tokens } from "./tokens.js";
import { Words } from "./words.js";

const POLL_MS = 10_000;

export function Access() {
  const [access, problem, reload] = useAnswer(api.access, POLL_MS);
  return html`
    <${Place} intro="People who write to an agent for the first time get a code, unless shoal.toml lists them. Enter the code here to give them access." problem=${problem} reload=${reload} loading=${!access}>
      ${canChange() && html`<${LetIn} reload=${reload} />`}
      ${access &&
      html`
        <${People} title="Waiting" people=${access.waiting} empty="No one is waiting." reload=${reload} />
        <${People} title="With access" people=${access.paired} empty="No one has used a code yet." reload=${reload} />
      `}
      ${canChange() && html`<${Tokens} />`}
    <//>
  `;
}

function LetIn({ reload }) {
  const [attempt, problem] = useAttempt(reload);
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    if (await attempt(() => api.pair(new FormData(form).get("code").trim()))) form.reset();
  };
  return html`
    <form class="card form pair-code" onSubmit=${submit}>
      <div class="line">
        <label>Code <input name="code" required maxlength="40" autocomplete="off" autocapitalize="characters" spellcheck="false" placeholder="ABCD-EFGH" /></label>
        <button type="submit" class="primary">Give access</button>
      </div>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

function People({ title, people, empty, reload }) {
  return html`
    <section class="people" aria-label=${title}>
      <h2>${title}</h2>
      ${!people.length && html`<p class="faint">${empty}</p>`}
      <ul class="cards">${people.map((one) => html`<${Person} key=${`${one.platform}:${one.user}`} person=${one} reload=${reload} />`)}</ul>
    </section>
  `;
}

function Person({ person, reload }) {
  const [attempt, problem] = useAttempt(reload);
  const { platform, user, name, at, by, expires_at: expires } = person;
  const facts = [at && `added ${ago(at)}`, by && `by ${by}`, expires && `code expires ${ago(expires)}`];
  return html`
    <li class="card">
      <p class="card-head"><b class="clamped">${visible(name || user)}</b><span class="tag">${platform}</span></p>
      <p class="card-foot">
        <span class="faint" title=${fullTime(at || expires)}>${[name && visible(user), ...facts].filter(Boolean).join(" · ")}</span>
        ${!expires && canChange() && html`<${Sure} label="Remove access" what=${name || user} yes="Remove it" act=${() => attempt(() => api.unpair(platform, user))} />`}
      </p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}
