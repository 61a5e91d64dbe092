// The mark of an agent: the first letter of its name on a colour of its own.

import { html } from "../dom.js";
import { hueOf } from "../format.js";

export const Face = ({ name }) => html`<span class=${`face is-${hueOf(name)}`} aria-hidden="true">${[...name][0]?.toUpperCase() || "?"}</span>`;
