// The mark of an agent: letters of its name on a colour of its own.

import { html } from "../dom.js";
import { hueOf } from "../format.js";

/** The first letters of a name's first two words, or its first two letters. Pure. */
export function initials(name) {
  const [first = "", second = ""] = name.split(/[^\p{L}\p{N}]+/u).filter(Boolean).map((word) => [...word]);
  return second ? `${first[0]}${second[0]}`.toUpperCase() : first.length ? `${first[0].toUpperCase()}${first[1] || ""}` : "?";
}

export const Face = ({ name }) => html`<span class=${`face is-${hueOf(name)}`} aria-hidden="true">${initials(name)}</span>`;
