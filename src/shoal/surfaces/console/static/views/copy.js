// A button that puts a text on the clipboard and says so.

import { html, useState } from "../dom.js";
import { copyText } from "../clipboard.js";

const SAID_MS = 1_600;

export function Copy({ text, label }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    setSaid((await copyText(text)) ? "Copied" : "Copy failed");
    setTimeout(() => setSaid(""), SAID_MS);
  };
  return html`<button type="button" class="copy" onClick=${copy}>${said || label}</button>`;
}
