// The menu of slash commands above the message box while one is being written.

import { api } from "../api.js";
import { html, useEffect, useState } from "../dom.js";

const BEGINNING = /^\/[a-z-]*$/;

/** The commands that a beginning could become; none when it is no beginning. Pure. */
export function matching(commands, text) {
  return BEGINNING.test(text) ? commands.filter((command) => `/${command.name}`.startsWith(text)) : [];
}

/** The menu's state for a text: `{found, at, choose, keyed}`. `keyed` says whether it took a key for itself. */
export function useCommands(text, write) {
  const [commands, setCommands] = useState([]);
  const [chosen, setChosen] = useState({ text: "", at: 0 });
  const [closedFor, setClosedFor] = useState(null);
  const slash = text.startsWith("/");
  useEffect(() => {
    if (slash && !commands.length) api.commands().then(setCommands, () => {}); // without a menu, commands work too
  }, [slash]);
  const at = chosen.text === text ? chosen.at : 0; // another text begins at the top
  const setAt = (place) => setChosen({ text, at: place });
  const found = closedFor === text ? [] : matching(commands, text);

  const choose = (command) => {
    const whole = `/${command.name}${command.usage ? " " : ""}`;
    setClosedFor(whole);
    write(whole);
  };
  const keyed = (event) => {
    if (!found.length) return false;
    if (event.key === "ArrowDown") setAt((at + 1) % found.length);
    else if (event.key === "ArrowUp") setAt((at + found.length - 1) % found.length);
    else if (event.key === "Escape") setClosedFor(text);
    else if (event.key === "Tab" && !event.shiftKey) choose(found[at]);
    else if (event.key === "Enter" && !event.shiftKey && text !== `/${found[at].name}`) choose(found[at]);
    else return false;
    event.preventDefault();
    return true;
  };
  return { found, at, choose, keyed };
}

export function CommandMenu({ found, at, choose }) {
  return html`
    <ul class="commands" id="commands" role="listbox" aria-label="Commands">
      ${found.map(
        (command, place) => html`
          <li key=${command.name} id=${`command-${place}`} role="option" aria-selected=${place === at} onMouseDown=${(event) => event.preventDefault()} onClick=${() => choose(command)}>
            <span><b>/${command.name}</b> <span class="faint">${command.usage}</span></span>
            <span class="faint">${command.description}</span>
          </li>
        `,
      )}
    </ul>
  `;
}
