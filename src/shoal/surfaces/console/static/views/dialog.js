// What stands before the page for a moment: the browser keeps the keyboard in it, and Escape closes it.

import { html, useLayoutEffect, useRef } from "../dom.js";

/** `isBare`: its label is not shown, since what stands in it says the same. */
export function Dialog({ label, close, children, kind = "", isBare = false }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const dialog = box.current;
    dialog.showModal();
    return () => dialog.close(); // what had the keyboard before has it again
  }, []);
  const clicked = (event) => event.target === box.current && close(); // beside it
  return html`
    <dialog class=${`sheet ${kind}`} ref=${box} aria-label=${label} onClose=${close} onClick=${clicked}>
      <div class="sheet-body">${!isBare && html`<h2>${label}</h2>`}${children}</div>
    </dialog>
  `;
}
