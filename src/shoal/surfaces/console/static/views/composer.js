// The message box: sending, queueing, steering, stopping, and files.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../dom.js";
import { me } from "../me.js";
import { keepDraft, readDraft } from "../storage.js";
import { CompletionMenu, useCompletion } from "./completion.js";
import { Files } from "./files.js";
import { icon } from "./icons.js";
import { Microphone } from "./microphone.js";
import { Prose } from "./prose.js";
import { Words } from "./words.js";

const ROWS_MAX = 10;
const COMMAND = /^\/[a-z][a-z-]*(\s|$)/;

/** Return the person's own messages in a thread, newest last. */
export const ownWords = (items) =>
  items.filter((item) => item.kind === "user" && ["person", "api"].includes(item.origin) && [me.author, ""].includes(item.author.id)).map((item) => item.text).filter(Boolean);

/** Return the files named in tool calls, newest first. */
export function namedFiles(items) {
  const named = items.map((item) => /^\{[^]*"(?:path|file_path)":\s*"((?:[^"\\]|\\.)+)"/.exec(item.arguments || "")?.[1]);
  return [...new Set(named.filter(Boolean).map((path) => JSON.parse(`"${path}"`)))].reverse();
}

/** The message box. Each thread has its own, which keeps text from leaking between threads. `running`: a turn is open. `items`
 * are the thread's rows. `suggestion` is the initial text, a new object each time. */
export function Composer({ thread, running, items, session, suggestion }) {
  const [text, setText] = useState(() => readDraft(thread));
  const [caret, setCaret] = useState(text.length);
  const [back, setBack] = useState(0); // recalled own message, counted from the newest
  const [files, setFiles] = useState([]);
  const [mine, setMine] = useState(false);
  const [asking, setAsking] = useState(false);
  const [problem, setProblem] = useState("");
  const [told, setTold] = useState("");
  const box = useRef(null);

  useLayoutEffect(() => { // a layout effect runs before the next key
    if (matchMedia("(min-width: 48rem)").matches) box.current.focus();
  }, []);
  useEffect(() => {
    if (!running) setAsking(false);
  }, [running]);
  useEffect(() => {
    if (!suggestion) return;
    write(suggestion.text);
    session.set({ suggestion: null }); // use it once
    box.current.focus();
  }, [suggestion]);

  const write = (value, place = value.length) => {
    setText(value);
    setCaret(place);
    setBack(0);
    keepDraft(thread, value);
  };
  const placed = useRef(-1); // caret position for the next text
  useLayoutEffect(() => {
    if (placed.current >= 0) box.current.setSelectionRange(placed.current, placed.current);
    placed.current = -1;
  });
  const menu = useCompletion({ text, caret, thread, named: () => namedFiles(items), write: (value, place) => {
    write(value, place);
    placed.current = place;
    box.current.focus();
  } });
  /** Recall own messages with the arrow keys, as in a terminal. Returns whether the key was handled. */
  const recalled = ({ key, target }) => {
    const said = ownWords(items);
    const next = back + { ArrowUp: 1, ArrowDown: -1 }[key];
    const isOwn = back ? text === said.at(-back) : !text;
    const inside = key === "ArrowUp" ? text.slice(0, target.selectionStart) : text.slice(target.selectionEnd);
    if (!isOwn || !(next >= 0 && next <= said.length) || inside.includes("\n")) return false;
    write(next ? said.at(-next) : "");
    setBack(next);
    return true;
  };
  const submit = (steering) => {
    if (!text.trim() && !files.length) return;
    if (!steering && !files.length && COMMAND.test(text)) {
      command();
      return;
    }
    if (steering) session.steer(thread, text);
    else session.send(thread, text, files, mine);
    write("");
    setFiles([]);
    setMine(false);
    box.current.focus();
  };
  const speak = (recording) => {
    session.send(thread, text, [...files, recording], mine);
    write("");
    setFiles([]);
    setMine(false);
  };
  const command = async () => {
    const given = text;
    write("");
    setTold("");
    const { answer, problem: failed } = await session.command(thread, given);
    setProblem(failed);
    setTold(answer);
    if (failed) write(given);
    box.current?.focus();
  };
  const stop = async () => {
    setAsking(false);
    setProblem(await session.stop(thread));
    box.current?.focus();
  };
  const keyed = (event) => {
    if (event.isComposing || menu.keyed(event)) return;
    if (recalled(event)) event.preventDefault();
    else if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      submit(running && (event.ctrlKey || event.metaKey) && !files.length);
    } else if (event.key === "Escape" && running) {
      event.preventDefault();
      if (asking) stop();
      else setAsking(true);
    }
  };
  const lines = Math.min(ROWS_MAX, text.split("\n").length);
  return html`
    <form class="composer" aria-label="Write to the agent" onSubmit=${(event) => (event.preventDefault(), submit(false))}>
      ${asking && html`<${StopQuestion} stop=${stop} keep=${() => (setAsking(false), box.current.focus())} />`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
      ${told && html`<div class="told" role="status"><${Prose} text=${told} /><button type="button" class="quiet" onClick=${() => (setTold(""), box.current.focus())}>Close</button></div>`}
      <div class="box">
        ${menu.found.length > 0 && html`<${CompletionMenu} ...${menu} />`}
        <label class="offscreen" for="message">Message</label>
        <textarea id="message" ref=${box} rows=${lines} value=${text} enterkeyhint="send" autocomplete="off" aria-describedby="keys"
          aria-controls=${menu.found.length ? "choices" : null} aria-activedescendant=${menu.found.length ? `choice-${menu.at}` : null}
          placeholder=${running ? "Queue a message, or send it now" : "Write a message, or / for commands"}
          onInput=${(event) => write(event.target.value, event.target.selectionStart)} onKeyDown=${keyed}
          onKeyUp=${(event) => setCaret(event.target.selectionStart)} onClick=${(event) => setCaret(event.target.selectionStart)}></textarea>
        <div class="tools">
          <${Files} files=${files} change=${setFiles} box=${box} word=${!running && "Attach"} />
          ${files.length > 0 && html`<label class="mine" title="If unchecked, the agent treats the content as untrusted and asks before acting on it"><input type="checkbox" checked=${mine} onChange=${(event) => setMine(event.target.checked)} /> I wrote ${files.length > 1 ? "these" : "this"}</label>`}
          <${Microphone} send=${speak} report=${setProblem} word=${!running && "Record"} />
          <span id="keys" class="faint hint">${running ? "Enter: queue, Ctrl+Enter: send now, Esc: stop" : "Enter to send, Shift+Enter for a new line"}</span>
          ${running && html`<button type="button" class="plain stop" onClick=${stop}>${icon("stop")} Stop</button>`}
          ${running && html`<button type="button" class="plain" title="The agent reads the message before its next step" disabled=${!text.trim() || files.length > 0} onClick=${() => submit(true)}>Send now</button>`}
          <button type="submit" class="primary send" title=${running ? "The agent reads the message after this turn" : null} disabled=${!text.trim() && !files.length}>${icon("send")} ${running ? "Queue" : "Send"}</button>
        </div>
      </div>
    </form>
  `;
}

function StopQuestion({ stop, keep }) {
  return html`
    <div class="question" role="alertdialog" aria-label="Stop this turn?">
      <span>Stop this turn? Press <kbd>Esc</kbd> again to stop.</span>
      <button type="button" class="plain danger" onClick=${stop}>Stop turn</button>
      <button type="button" class="quiet" onClick=${keep}>Keep running</button>
    </div>
  `;
}
