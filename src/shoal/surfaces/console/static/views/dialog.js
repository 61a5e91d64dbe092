// A modal dialog. The browser traps the focus in it, and Escape closes it.

import { html, useLayoutEffect, useRef } from "../dom.js";

/** `isBare`: hide the label because the content repeats it. */
export function Dialog({ label, close, children, kind = "", isBare = false }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const dialog = box.current;
    dialog.showModal();
    return () => dialog.close(); // returns the focus to where it was
  }, []);
  const clicked = (event) => event.target === box.current && close(); // on the backdrop
  return html`
    <dialog class=${`sheet ${kind}`} ref=${box} aria-label=${label} onClose=${close} onClick=${clicked}>
      <div class="sheet-body">${!isBare && html`<h2>${label}</h2>`}${children}</div>
    </dialog>
  `;
}
