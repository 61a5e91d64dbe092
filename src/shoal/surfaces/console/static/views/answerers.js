// Choose a conversation's agent and model.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { dollars, visible, windowSize } from "../format.js";
import { choose } from "../keeping.js";
import { isOwner, me } from "../me.js";
import { Dialog } from "./dialog.js";
import { Face } from "./face.js";
import { useAnswer } from "./lists.js";
import { Words } from "./words.js";

const SHOWN_MAX = 100;

/** Find models or agents whose names contain every word of a text. */
export function matching(items, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return items.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
}

const price = ({ input_usd: input, output_usd: output }) =>
  input === null || output === null ? "–" : input + output === 0 ? "free" : `${dollars(input)} in, ${dollars(output)} out`;

export function Answerers({ thread, state, session, close }) {
  const seesAgents = me.scope !== "chat";
  const [found, problem] = useAnswer(() => Promise.all([seesAgents ? api.agents() : [], api.models()]));
  const [agents, models] = found || [[], null];
  const [refused, setRefused] = useState("");
  const info = state.threads?.find((one) => one.thread === thread) || state.views[thread]?.info;
  const chosen = { agent: info?.agent || "", model: info?.model || "", ...state.choices[thread] };
  const agent = agents.find((one) => one.name === chosen.agent) || agents.find((one) => one.is_default);
  const pick = async (choice, stays) => {
    const failed = await choose(session, thread, choice);
    setRefused(failed);
    if (!failed && !stays) close();
  };
  return html`
    <${Dialog} label="Agent and model" close=${close} kind="is-wide">
      ${agents.length > 0 && html`
        <h3>Agent</h3>
        <${Agents} agents=${agents} chosen=${agent?.name} pick=${(name) => pick({ agent: name }, true)} />`}
      <h3>Model</h3>
      <${Models} models=${models} chosen=${chosen.model} pick=${(model) => pick({ model })}>
        <li><button type="button" class="option" aria-pressed=${!chosen.model} onClick=${() => pick({ model: "" })}>
          <span>The agent's default model</span><span class="faint">${agent?.model || ""}</span>
        </button></li>
      <//>
      ${found && html`<p class="faint">Context windows are in tokens, prices per million tokens. Your choice takes effect with the next message.</p>`}
      ${(problem || refused) && html`<p class="problem" role="alert"><${Words} text=${problem || refused} /></p>`}
      <p class="sheet-line is-end"><button type="button" class="quiet" onClick=${close}>Close</button></p>
    <//>
  `;
}

/** Choose another model to answer a turn's message on a new branch. */
export function AnotherModel({ turn, again, close }) {
  const [models, problem] = useAnswer(api.models);
  const [refused, setRefused] = useState("");
  const pick = async (model) => {
    const failed = await again(model);
    setRefused(failed);
    if (!failed) close();
  };
  return html`
    <${Dialog} label="Try again with another model" close=${close} kind="is-wide">
      <p class="faint">Shoal keeps this reply. Use ‹ 1/2 › next to your message to switch between replies.</p>
      <${Models} models=${models} chosen=${turn.model} pick=${pick} />
      ${!models && !problem && html`<p class="faint" role="status">Loading…</p>`}
      ${(problem || refused) && html`<p class="problem" role="alert"><${Words} text=${problem || refused} /></p>`}
      <p class="sheet-line is-end"><button type="button" class="quiet" onClick=${close}>Cancel</button></p>
    <//>
  `;
}

const FILTERED_FROM = 8;

function Agents({ agents, chosen, pick }) {
  const [text, setText] = useState("");
  const listed = matching(agents, text);
  return html`
    ${agents.length >= FILTERED_FROM && html`<input type="search" aria-label="Filter agents" placeholder="Filter agents" value=${text} onInput=${(event) => setText(event.target.value)} />`}
    <ul class="options is-long">
      ${listed.slice(0, SHOWN_MAX).map((one) => html`
        <li key=${one.name}><button type="button" class="option" aria-pressed=${one.name === chosen} onClick=${() => pick(one.name)}>
          <${Face} name=${one.name} /><span class="breakable">${one.name}</span><span class="faint">${one.model}</span>
        </button></li>`)}
    </ul>
    ${listed.length > SHOWN_MAX && html`<p class="faint">${listed.length - SHOWN_MAX} more. Type to filter.</p>`}
    ${!listed.length && html`<p class="faint">No matching agents.</p>`}
  `;
}

function Models({ models, chosen, pick, children }) {
  const [text, setText] = useState("");
  const listed = matching(models || [], text);
  return html`
    ${models?.length > 0 && html`<input type="search" aria-label="Filter models" placeholder="Filter models" value=${text} onInput=${(event) => setText(event.target.value)} />`}
    <ul class="options is-long">
      ${children}
      ${listed.slice(0, SHOWN_MAX).map((one) => html`
        <li key=${one.name}><button type="button" class="option" aria-pressed=${one.name === chosen} onClick=${() => pick(one.name)}>
          <span class="breakable">${visible(one.name)}</span>
          <span class="faint">${[one.context_tokens > 0 && windowSize(one.context_tokens), price(one)].filter(Boolean).join(" · ")}</span>
        </button></li>`)}
    </ul>
    ${listed.length > SHOWN_MAX && html`<p class="faint">${listed.length - SHOWN_MAX} more. Type to filter.</p>`}
    ${models?.length > 0 && !listed.length && html`<p class="faint">No matching models.</p>`}
    ${models?.length === 0 && html`<p class="faint">No models are available. ${isOwner() ? html`<a href="#/setup">Set up a model</a>, or list models in available_models.json.` : "Ask the owner to add one."}</p>`}
  `;
}
