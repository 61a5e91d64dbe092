// An agent's avatar: its initials on a color derived from its name.

import { html } from "../dom.js";
import { hueOf } from "../format.js";

/** Return the initials of a name's first two words, an initial with a number ("A10" for "agent-10"), or the first two letters. */
export function initials(name) {
  const [first = "", second = ""] = name.split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  const [letter = "?", next = ""] = first;
  if (/^\d{3,}$/.test(second)) return second.slice(-3);
  if (second) return `${letter}${/^\d/.test(second) ? second.slice(0, 2) : [...second][0]}`.toUpperCase();
  return `${letter.toUpperCase()}${next}`;
}

export function Face({ name }) {
  const letters = initials(name);
  return html`<span class=${`face is-${hueOf(name)}${letters.length > 2 ? " is-long" : ""}`} aria-hidden="true">${letters}</span>`;
}
