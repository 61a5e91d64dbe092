// A button that copies a text and confirms it.

import { html, useState } from "../dom.js";
import { copyText } from "../clipboard.js";
import { Act } from "./icons.js";

const SAID_MS = 1_600;

function useCopy(text) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    setSaid((await copyText(text)) ? "Copied" : "Copy failed");
    setTimeout(() => setSaid(""), SAID_MS);
  };
  return [said, copy];
}

export function Copy({ text, label }) {
  const [said, copy] = useCopy(text);
  return html`<button type="button" class="copy" onClick=${copy}>${said || label}</button>`;
}

export function CopyAct({ text, label }) {
  const [said, copy] = useCopy(text);
  return html`<${Act} name=${said === "Copied" ? "done" : "copy"} label=${said || label} onClick=${copy} />`;
}
