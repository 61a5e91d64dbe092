// What a service said of a failure: its sentence at once, the rest of a long text on unfolding.

import { html } from "../dom.js";
import { visible } from "../format.js";

const SENTENCE_CHARS_MAX = 280;

/** The beginning of a text that is read at a glance: its first line, cut between words. Pure. */
export function glance(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length <= SENTENCE_CHARS_MAX ? line : `${line.slice(0, SENTENCE_CHARS_MAX).replace(/\s+\S*$/, "")}…`;
}

export function Detail({ text }) {
  if (!text) return null;
  const first = glance(text);
  return html`
    <p class="detail">${visible(first)}</p>
    ${first !== text.trim() && html`<details><summary>All of it</summary><pre tabindex="0">${visible(text)}</pre></details>`}
  `;
}
