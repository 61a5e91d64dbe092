// Exact text in a monospaced block with a label and a copy button. Very long text is shortened until the person expands it.

import { html, useEffect, useRef, useState } from "../dom.js";
import { visible } from "../format.js";
import { Copy } from "./copy.js";

const CHARS_SHOWN = 12_000;
const DIFF_LINE = /^(?:@@ |--- |\+\+\+ )/m;

/** Calls `seen` after both the beginning and the end of the text have been in view. */
export function TextBlock({ label, text, open = false, seen }) {
  const [whole, setWhole] = useState(open);
  const block = useRef(null);
  useEffect(() => {
    if (!seen) return undefined;
    // The empty elements at the text's ends show whether they are in view, in the box and in the window.
    const ends = new Set(block.current.querySelectorAll(".text-end"));
    const views = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) ends.delete(entry.target);
      if (!ends.size) seen();
    });
    ends.forEach((edge) => views.observe(edge));
    return () => views.disconnect();
  }, [text]);
  const shown = whole ? text : text.slice(0, CHARS_SHOWN);
  return html`
    <div class="code">
      <span class="code-language">${label}</span>
      <${Copy} text=${text} label="Copy" />
      <pre tabindex="0" aria-label=${label} ref=${block}><code><span class="text-end"></span>${DIFF_LINE.test(text) ? diffLines(shown) : visible(shown)}<span class="text-end"></span></code></pre>
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
