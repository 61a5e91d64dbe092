// Exact text in a fixed-width block with a label and a copy button; very long text is shown in part until asked.

import { html, useState } from "../dom.js";
import { visible } from "../format.js";
import { Copy } from "./copy.js";

const CHARS_SHOWN = 12_000;
const DIFF_LINE = /^(?:@@ |--- |\+\+\+ )/m;

export function TextBlock({ label, text, open = false }) {
  const [whole, setWhole] = useState(open);
  const shown = whole ? text : text.slice(0, CHARS_SHOWN);
  return html`
    <div class="code">
      <span class="code-language">${label}</span>
      <${Copy} text=${text} label="Copy" />
      <pre tabindex="0" aria-label=${label}><code>${DIFF_LINE.test(text) ? diffLines(shown) : visible(shown)}</code></pre>
      ${shown.length < text.length &&
      html`<button type="button" class="quiet" onClick=${() => setWhole(true)}>Show all ${text.length.toLocaleString("en")} characters</button>`}
    </div>
  `;
}

function diffLines(text) {
  return text.split("\n").map((line, at) => {
    const kind = /^(?:---|\+\+\+|@@)/.test(line) ? "meta" : { "+": "plus", "-": "minus" }[line[0]] || "";
    return html`<span key=${at} class=${`diff ${kind}`}>${visible(line) + "\n"}</span>`;
  });
}
