// Exact text in a fixed-width block with a label and a copy button; very long text is shown in part until asked.

import { html, useEffect, useRef, useState } from "../dom.js";
import { visible } from "../format.js";
import { Copy } from "./copy.js";

const CHARS_SHOWN = 12_000;
const DIFF_LINE = /^(?:@@ |--- |\+\+\+ )/m;

/** `seen` is called once the end of the text was in view, by scrolling if need be. */
export function TextBlock({ label, text, open = false, seen }) {
  const [whole, setWhole] = useState(open);
  const block = useRef(null);
  useEffect(() => {
    if (!seen) return undefined;
    const look = () => isAtEnd(block.current) && seen();
    look();
    const sizes = new ResizeObserver(look);
    sizes.observe(block.current);
    return () => sizes.disconnect();
  }, [text]);
  const shown = whole ? text : text.slice(0, CHARS_SHOWN);
  return html`
    <div class="code">
      <span class="code-language">${label}</span>
      <${Copy} text=${text} label="Copy" />
      <pre tabindex="0" aria-label=${label} ref=${block} onScroll=${seen && (() => isAtEnd(block.current) && seen())}><code>${DIFF_LINE.test(text) ? diffLines(shown) : visible(shown)}</code></pre>
      ${shown.length < text.length &&
      html`<button type="button" class="quiet" onClick=${() => setWhole(true)}>Show all ${text.length.toLocaleString("en")} characters</button>`}
    </div>
  `;
}

const ROUNDED_PX = 2;

/** Whether a box with content shows the end of it, in both directions. A box that is not laid out shows nothing. */
const isAtEnd = (box) =>
  box.clientHeight > 0 && box.scrollTop + box.clientHeight >= box.scrollHeight - ROUNDED_PX && box.scrollLeft + box.clientWidth >= box.scrollWidth - ROUNDED_PX;

function diffLines(text) {
  return text.split("\n").map((line, at) => {
    const kind = /^(?:---|\+\+\+|@@)/.test(line) ? "meta" : { "+": "plus", "-": "minus" }[line[0]] || "";
    return html`<span key=${at} class=${`diff ${kind}`}>${visible(line) + "\n"}</span>`;
  });
}
