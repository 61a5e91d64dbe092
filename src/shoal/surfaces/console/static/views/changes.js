// A turn's file changes, with buttons to undo them.

import { api } from "../api.js";
import { html, useCallback, useEffect, useRef, useState } from "../dom.js";
import { files, visible } from "../format.js";
import { canTalk } from "../me.js";
import { TextBlock } from "./textblock.js";
import { Words } from "./words.js";

const SINCE = { changed: "changed since", restored: "already restored", shared: "possibly changed by another turn at the same time" };

/** The changes of a turn or an undo. They are loaded again when `state` changes. */
export function Changes({ thread, turn, session, state }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [left, setLeft] = useState([]);
  const box = useRef(null);
  const read = useCallback(() => session.attempt(async () => setFound(await api.changes(thread, turn))).then(setProblem), [thread, turn]);
  useEffect(() => {
    read();
  }, [thread, turn, state]);
  const undo = async (what, since) => {
    if (busy) return;
    setBusy(true);
    const failed = await session.attempt(async () => {
      const done = await api.undo(thread, what, since);
      const more = done.not_restored - done.left.length;
      setLeft([...done.left.map((one) => `${one.path}: ${one.why}`), ...(more > 0 ? [`and ${more} more ${more === 1 ? "file" : "files"}`] : [])]);
    });
    await read();
    if (failed) setProblem(failed);
    setBusy(false);
    box.current?.focus(); // the pressed button may have disappeared
  };
  const button = (label, what, since) => canTalk() && html`<button type="button" class="plain" aria-disabled=${busy} onClick=${() => undo(what, since)}>${label}</button>`;
  if (!found) {
    if (!problem) return html`<p class="faint" role="status">Loading…</p>`;
    return html`<p class="problem" role="alert"><${Words} text=${problem} /> <button type="button" class="quiet" onClick=${read}>Try again</button></p>`;
  }
  const name = found.undoes ? "Redo these changes" : "Undo these changes";
  const differ = found.differ > 0;
  return html`
    <div class="changes" ref=${box} tabindex="-1">
      ${found.files.map((file) => html`<${File} key=${file.path} file=${file} isUndone=${found.state === "undone"} />`)}
      ${found.changed > found.files.length && html`<p class="faint">More changed files: ${(found.changed - found.files.length).toLocaleString("en")}</p>`}
      ${found.notes.map((note) => html`<p class="faint">${visible(note)}</p>`)}
      ${found.beyond.length > 0 &&
      html`<details><summary>Cannot be undone</summary><ul>${found.beyond.map((line) => html`<li><${Words} text=${line} /></li>`)}</ul></details>`}
      ${found.state === "running" && html`<p class="faint">This turn is still running. You can undo its changes when it finishes.</p>`}
      ${found.state === "done" &&
      html`
        <p class="choices">
          ${button(differ ? `${name}, keep later changes` : name, turn, differ ? "keep" : "ask")}
          ${differ && button(`${name}, overwrite later changes`, turn, "overwrite")}
        </p>
      `}
      ${found.state === "undone" &&
      html`<p class="choices"><span>${found.undoes ? "This undo was reversed." : "These changes were undone."}</span>${button(found.undoes ? "Undo the changes again" : "Redo these changes", found.undone_by, "keep")}</p>`}
      ${left.length > 0 && html`<div role="status"><p>Not restored:</p><ul>${left.map((line) => html`<li><${Words} text=${line} /></li>`)}</ul></div>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </div>
  `;
}

function File({ file, isUndone }) {
  const since = isUndone && file.since === "restored" ? "" : SINCE[file.since]; // expected after an undo
  const counts = [file.added && `+${file.added}`, file.removed && `−${file.removed}`].filter(Boolean).join(" ");
  const label = [visible(file.path), file.change, counts, since, file.note].filter(Boolean).join(" · ");
  if (!file.diff) return html`<p class="file"><code>${visible(file.path)}</code> <span class="faint">${[file.change, since, file.note].filter(Boolean).join(" · ")}</span></p>`;
  return html`<${TextBlock} label=${label} text=${file.diff} />`;
}
