// Branches of a conversation: try again, edit a message, switch branches, or continue in a copy.

import { api } from "../api.js";
import { html, useLayoutEffect, useRef, useState } from "../dom.js";
import { canChange, canTalk } from "../me.js";
import { Act } from "./icons.js";
import { Words } from "./words.js";

let pressed = ""; // the pressed switch button; the other branch replaces its row

/** The number of a turn's branch, with buttons for the other branches: ‹ 2/3 ›. */
export function BranchSwitch({ thread, session, siblings }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const box = useRef(null);
  const { at, tips } = siblings;
  const still = busy || !canTalk();
  useLayoutEffect(() => {
    if (pressed) box.current.querySelector(`[aria-label="${pressed}"]`).focus();
    pressed = "";
  }, []);
  const go = async (event, to) => {
    if (still || to < 0 || to >= tips.length) return;
    setBusy(true);
    pressed = event.currentTarget.ariaLabel;
    const failed = await session.attempt(() => api.branch(thread, tips[to]));
    if (failed) pressed = "";
    setProblem(failed);
    setBusy(false);
  };
  return html`
    <span class="branches" role="group" ref=${box} aria-label=${`Branch ${at + 1} of ${tips.length}`}>
      <button type="button" class="quiet" aria-label="Previous branch" aria-disabled=${still || at === 0} onClick=${(event) => go(event, at - 1)}>‹</button>
      <span aria-hidden="true">${at + 1}/${tips.length}</span>
      <button type="button" class="quiet" aria-label="Next branch" aria-disabled=${still || at === tips.length - 1} onClick=${(event) => go(event, at + 1)}>›</button>
      ${problem && html`<span class="problem" role="alert"><${Words} text=${problem} /></span>`}
    </span>
  `;
}

/** A form that edits the person's own message and sends it on a new branch. */
export function EditMessage({ item, thread, session, close }) {
  const [problem, setProblem] = useState("");
  const [text, setText] = useState(item.text);
  const box = useRef(null);
  useLayoutEffect(() => box.current.focus(), []);
  const send = async (event) => {
    event.preventDefault();
    const failed = text.trim() && (await session.attempt(() => api.edit(thread, item.seq, text)));
    if (failed) setProblem(failed);
    else close();
  };
  const keys = (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && !event.shiftKey && !event.altKey && !event.isComposing) send(event);
  };
  return html`
    <form class="rewrite" onSubmit=${send}>
      <textarea aria-label="Your message" rows=${Math.min(12, text.split("\n").length + 1)} value=${text} ref=${box} onInput=${(event) => setText(event.target.value)} onKeyDown=${keys}></textarea>
      <button type="submit" class="primary">Send</button>
      <button type="button" class="plain" onClick=${close}>Cancel</button> <span class="faint hint">Enter to send, Shift+Enter for a new line</span>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

export function TurnActions({ item, thread, session, turn }) {
  const [Form, setForm] = useState(null);
  const [problem, setProblem] = useState("");
  const open = (form) => form.then((found) => setForm(() => found), () => setProblem("Cannot load the form. Try again."));
  const saveCase = () => open(import("./savecase.js").then((found) => found.SaveCase));
  const anotherModel = () => open(import("./answerers.js").then((found) => found.AnotherModel));
  const again = async (model) => {
    const failed = await session.attempt(() => api.again(thread, item.seq, model));
    setProblem(failed);
    return failed;
  };
  const fork = async () => {
    let made;
    const failed = await session.attempt(async () => (made = await api.fork(thread, item.seq)));
    setProblem(failed || "");
    if (made) location.hash = `#/t/${encodeURIComponent(made.thread)}`;
  };
  return html`
    ${turn.asked && html`
      <${Act} name="again" label="Try again" onClick=${() => again("")} />
      <${Act} name="swap" label="Try another model" onClick=${anotherModel} />
    `}
    <${Act} name="fork" label="Continue in a copy" onClick=${fork} />
    ${canChange() && html`<${Act} name="keep" label="Save as test case" onClick=${saveCase} />`}
    ${problem && html`<span class="problem" role="alert"><${Words} text=${problem} /></span>`}
    ${Form && html`<${Form} thread=${thread} turn=${turn} session=${session} again=${again} close=${() => setForm(null)} />`}
  `;
}
