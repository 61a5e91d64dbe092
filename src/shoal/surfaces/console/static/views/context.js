// The next request's parts in the model's context window, and the parts trimmed first.

import { api } from "../api.js";
import { html } from "../dom.js";
import { bytes, count, visible, windowSize } from "../format.js";
import { Stack } from "./charts.js";
import { Place, useAnswer } from "./lists.js";

const NAMES = { system: "Instructions", tools: "Tools", skills: "Skills", documents: "Documents", memory: "Memory", summary: "Summary of older messages", transcript: "Conversation" };
const SOON = 0.8; // share of the available room above which a conversation is summarised

/** A sentence about the next summary or cut of the conversation. */
export function nextCut({ parts, room_tokens: room, left_out: leftOut }) {
  const used = parts.filter(({ name }) => ["transcript", "summary"].includes(name)).reduce((sum, { tokens }) => sum + tokens, 0);
  if (leftOut > 0) return `${leftOut} older messages are already left out, oldest first.`;
  if (!room) return "";
  if (used < SOON * room) return `The oldest part of the conversation will be summarized after ${count(Math.max(0, Math.round(SOON * room - used)))} more tokens.`;
  return "The oldest part of the conversation will be summarized after the next turn.";
}

export function Context({ thread }) {
  const [costs, problem, reload] = useAnswer(() => api.context(thread));
  const parts = (costs?.parts || []).map((part, at) => ({ ...part, shown: NAMES[part.name] || part.name, kind: `is-c${at}`, value: part.tokens })).filter((part) => part.tokens > 0);
  const whole = costs?.window_tokens || 1;
  return html`
    <${Place} intro="The contents of the next model request and their share of the context window." problem=${problem} reload=${reload} loading=${!costs}>
      ${costs && html`
        <p class="window"><span class="figure">${Math.max(1, Math.round((costs.tokens / whole) * 100))} %</span> <span class="faint">of the window: ${count(costs.tokens)} of ${windowSize(whole)} tokens, and ${count(costs.output_tokens)} more are reserved for the answer. The model is <span class="breakable">${visible(costs.model)}</span>.</span></p>
        <${Stack} label=${`The window: ${parts.map((part) => `${part.shown} ${count(part.tokens)} tokens`).join(", ")}`} whole=${whole}
          parts=${[...parts, { name: "Reserved for the answer", kind: "is-kept", value: Math.min(costs.output_tokens, whole - costs.tokens) }]} />
        <table class="sums parts">
          <caption class="offscreen">Parts of the request</caption>
          <thead><tr><th scope="col">Part</th><th scope="col">Tokens</th><th scope="col">Size</th><th scope="col">Share</th></tr></thead>
          <tbody>
            ${parts.map((part) => html`<tr key=${part.name}>
              <th scope="row"><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect class=${part.kind} width="10" height="10" rx="2" /></svg>${part.shown}</th>
              <td>${count(part.tokens)}</td><td>${bytes(part.bytes)}</td><td>${((part.tokens / Math.max(1, costs.tokens)) * 100).toFixed(part.tokens / costs.tokens < 0.1 ? 1 : 0)} %</td>
            </tr>`)}
          </tbody>
        </table>
        <section class="panel" aria-label="Trimmed first">
          <h2>Trimmed first</h2>
          <p>${nextCut(costs)}</p>
          ${costs.oldest && html`<p class="faint">The oldest message still sent begins: <q class="breakable">${visible(costs.oldest)}</q></p>`}
          ${costs.found_tools > 0 && html`<p class="faint">${costs.found_tools === 1 ? "One more tool is" : `${costs.found_tools} more tools are`} described to the model only when it searches for tools.</p>`}
          ${costs.fitted && html`<p class="faint">Instructions and tools are shortened to fit this window.</p>`}
        </section>
      `}
    <//>
  `;
}
