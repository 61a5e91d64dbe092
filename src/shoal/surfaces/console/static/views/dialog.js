// What stands before the page for a moment: the browser keeps the keyboard in it, and Escape closes it.

import { html, useLayoutEffect, useRef } from "../dom.js";

export function Dialog({ label, close, children, kind = "" }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  const clicked = (event) => event.target === box.current && close(); // beside it
  return html`
    <dialog class=${`sheet ${kind}`} ref=${box} aria-label=${label} onClose=${close} onClick=${clicked}>
      <div class="sheet-body">${children}</div>
    </dialog>
  `;
}
