// A list of cards with a filter, shown in pages.

import { html, useState } from "../dom.js";

const PAGE = 30;
const FILTERED_FROM = 8; // shorter lists need no filter

/** A list of cards with a filter, shown in pages. `text` returns the searchable text of an item, `row` its card. */
export function Filtered({ items, noun, text, row }) {
  const [typed, setTyped] = useState("");
  const [shown, setShown] = useState(PAGE);
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = words.length ? items.filter((item) => words.every((word) => text(item).toLowerCase().includes(word))) : items;
  const more = matches.length - shown;
  return html`
    ${items.length >= FILTERED_FROM && html`
      <div class="filter">
        <label>Filter <input type="search" value=${typed} onInput=${(event) => (setTyped(event.target.value), setShown(PAGE))} /></label>
        <span class="faint" role="status">${words.length ? `${matches.length} of ${items.length} ${noun}` : `${items.length} ${noun}`}</span>
      </div>`}
    <ul class="cards">${matches.slice(0, shown).map(row)}</ul>
    ${more > 0 && html`<p class="more"><button type="button" class="plain" onClick=${() => setShown(shown + PAGE)}>Show ${Math.min(PAGE, more)} more</button><span class="faint">${shown} of ${matches.length}</span></p>`}
    ${!matches.length && words.length > 0 && html`<p class="faint empty">No matching ${noun}.</p>`}
  `;
}
