// A sentence whose `names` in backticks are shown as code.

import { html } from "../dom.js";
import { visible } from "../format.js";

export function Words({ text }) {
  const parts = visible(text || "").split(/`([^`\n]+)`/);
  return parts.map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));
}
