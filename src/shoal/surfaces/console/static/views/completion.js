// Completion in the message box: /commands, @agents and #files.

import { api } from "../api.js";
import { html, useEffect, useState } from "../dom.js";
import { shownPath } from "../format.js";
import { me } from "../me.js";

const SHOWN_MAX = 12;
const MENUS = { "/": "Commands", "@": "Agents", "#": "Files" };

/** Return the unfinished name before the caret as `{mark, from, word}`, or null. A command must be the entire text. */
export function naming(text, caret) {
  if (/^\/[a-z-]*$/.test(text)) return { mark: "/", from: 0, word: text.slice(1) };
  const found = /(?:^|\s)([@#])([^\s@#]*)$/.exec(text.slice(0, caret));
  return found && { mark: found[1], from: caret - found[2].length - 1, word: found[2] };
}

/** Find commands that start with the word, or agents and files that contain it. */
export function matching(choices, { mark, word }) {
  const wanted = word.toLowerCase();
  return choices.filter(({ name }) => (mark === "/" ? name.startsWith(wanted) : name.toLowerCase().includes(wanted))).slice(0, SHOWN_MAX);
}

const ASKED = {
  "/": async () => (await api.commands()).map(({ name, usage, description }) => ({ name, usage, description, text: `/${name}${usage && " "}` })),
  "@": async () => (me.scope === "chat" ? [] : (await api.agents()).map(({ name, model }) => ({ name, description: model, text: `@${name} ` }))),
  "#": async (thread, named) => {
    const kept = (await api.files(thread).catch(() => [])).map(({ path }) => `/${path}`); // paths as the agent sees them
    return [...new Set([...kept, ...named()])].map((name) => ({ name, description: "", text: `${name} ` }));
  },
};

/**
 * Return the menu's state for a text and its caret: `{label, mark, found, at, choose, keyed}`. `keyed` returns whether it
 * handled a key. `write` takes the new text and caret. `named` returns the files named in the thread.
 */
export function useCompletion({ text, caret, thread, named, write }) {
  const [choices, setChoices] = useState({});
  const [chosen, setChosen] = useState({ text: "", at: 0 });
  const [closedFor, setClosedFor] = useState(null);
  const open = naming(text, caret);
  const mark = open?.mark || "";
  useEffect(() => {
    if (!mark) return;
    ASKED[mark](thread, named).then((found) => setChoices((before) => ({ ...before, [mark]: found })), () => {}); // without choices there is no menu
  }, [mark, thread]);
  const at = chosen.text === text ? chosen.at : 0; // select the first choice after each change
  const setAt = (place) => setChosen({ text, at: place });
  const found = !open || closedFor === text ? [] : matching(choices[mark] || [], open);

  const choose = (choice) => {
    const before = text.slice(0, open.from) + choice.text;
    const whole = before + text.slice(caret);
    setClosedFor(whole);
    write(whole, before.length);
  };
  const keyed = (event) => {
    if (!found.length) return false;
    const isWritten = open.word === found[at].name;
    if (event.key === "ArrowDown") setAt((at + 1) % found.length);
    else if (event.key === "ArrowUp") setAt((at + found.length - 1) % found.length);
    else if (event.key === "Escape") setClosedFor(text);
    else if (event.key === "Tab" && !event.shiftKey) choose(found[at]);
    else if (event.key === "Enter" && !event.shiftKey && !isWritten) choose(found[at]);
    else return false;
    event.preventDefault();
    return true;
  };
  return { label: MENUS[mark], mark, found, at, choose, keyed };
}

export function CompletionMenu({ label, mark, found, at, choose }) {
  return html`
    <ul class="commands" id="choices" role="listbox" aria-label=${label}>
      ${found.map(
        (choice, place) => html`
          <li key=${choice.name} id=${`choice-${place}`} role="option" aria-selected=${place === at} onMouseDown=${(event) => event.preventDefault()} onClick=${() => choose(choice)}>
            <span class="breakable"><b>${mark === "/" ? "/" : ""}${shownPath(choice.name)}</b> <span class="faint">${choice.usage}</span></span>
            <span class="faint">${choice.description}</span>
          </li>
        `,
      )}
    </ul>
  `;
}
