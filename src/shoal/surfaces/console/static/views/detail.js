// A service's error message. The rest of a long text is shown on demand.

import { html } from "../dom.js";
import { visible } from "../format.js";

const SENTENCE_CHARS_MAX = 280;

/** Return the first line of a text, cut between words. */
export function glance(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length <= SENTENCE_CHARS_MAX ? line : `${line.slice(0, SENTENCE_CHARS_MAX).replace(/\s+\S*$/, "")}…`;
}

export function Detail({ text }) {
  if (!text) return null;
  const first = glance(text);
  return html`
    <p class="detail">${visible(first)}</p>
    ${first !== text.trim() && html`<details><summary>Show all</summary><pre tabindex="0">${visible(text)}</pre></details>`}
  `;
}
