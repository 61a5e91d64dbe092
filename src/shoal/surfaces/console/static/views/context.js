// The parts of the next model request, and the part that is trimmed first.

import { api } from "../api.js";
import { html } from "../dom.js";
import { bytes, count, visible, windowSize } from "../format.js";
import { Stack } from "./charts.js";
import { Place, useAnswer } from "./lists.js";

const NAMES = { system: "Instructions", tools: "Tools", skills: "Skills", documents: "Documents", memory: "Memory", summary: "Summary of older messages", transcript: "Conversation" };
const SOON = 0.8; // Shoal summarizes a conversation that exceeds this share of the room

/** Describe when Shoal will summarize or trim the conversation. */
export function nextCut({ parts, room_tokens: room, left_out: leftOut }) {
  const used = parts.filter(({ name }) => ["transcript", "summary"].includes(name)).reduce((sum, { tokens }) => sum + tokens, 0);
  if (leftOut > 0) return `The request leaves out ${leftOut === 1 ? "the oldest message" : `the ${leftOut} oldest messages`}.`;
  if (!room) return "";
  if (used < SOON * room) return `Shoal will summarize the oldest part of the conversation after ${count(Math.max(0, Math.round(SOON * room - used)))} more tokens.`;
  return "Shoal will summarize the oldest part of the conversation after the next turn.";
}

export function Context({ thread }) {
  const [costs, problem, reload] = useAnswer(() => api.context(thread));
  const parts = (costs?.parts || []).map((part, at) => ({ ...part, shown: NAMES[part.name] || part.name, kind: `is-c${at}`, value: part.tokens })).filter((part) => part.tokens > 0);
  const whole = costs?.window_tokens || 1;
  return html`
    <${Place} intro="The contents of the next model request and their share of the context window." problem=${problem} reload=${reload} loading=${!costs}>
      ${costs && html`
        <p class="window"><span class="figure">${Math.max(1, Math.round((costs.tokens / whole) * 100))} %</span> <span class="faint">of the window of <span class="breakable">${visible(costs.model)}</span>: ${count(costs.tokens)} of ${windowSize(whole)} tokens. Another ${count(costs.output_tokens)} are reserved for the response.</span></p>
        <${Stack} label=${`The window: ${parts.map((part) => `${part.shown} ${count(part.tokens)} tokens`).join(", ")}`} whole=${whole}
          parts=${[...parts, { name: "Reserved for the response", kind: "is-kept", value: Math.min(costs.output_tokens, whole - costs.tokens) }]} />
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
          ${costs.oldest && html`<p class="faint">The oldest message in the request begins: <q class="breakable">${visible(costs.oldest)}</q></p>`}
          ${costs.found_tools > 0 && html`<p class="faint">The model finds ${costs.found_tools === 1 ? "one more tool" : `${costs.found_tools} more tools`} only by searching.</p>`}
          ${costs.fitted && html`<p class="faint">Shoal shortened the instructions and tools to fit the window.</p>`}
        </section>
      `}
    <//>
  `;
}
