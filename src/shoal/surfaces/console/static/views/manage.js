import { exportAddress } from "../api.js";
import { html, useState } from "../dom.js";
import { threadName } from "../format.js";
import { changeThread, deleteThread } from "../keeping.js";
import { canChange } from "../me.js";
import { Dialog } from "./dialog.js";
import { Sure } from "./lists.js";
import { Words } from "./words.js";

const FORMATS = [["markdown", "Markdown"], ["html", "HTML"], ["json", "JSON"]];

export function Manage({ thread, info, state, session, route, close }) {
  const now = state.threads?.find((one) => one.thread === thread) || state.views[thread]?.info || info;
  const [title, setTitle] = useState(now.title || "");
  const [problem, setProblem] = useState("");
  const change = async (fields) => {
    const failed = await changeThread(session, thread, fields);
    setProblem(failed);
    if (!failed) close();
  };
  const rename = (event) => {
    event.preventDefault();
    change({ title });
  };
  const markUnread = () => {
    session.setSeen(thread, 0);
    close();
  };
  const remove = async () => {
    const failed = await deleteThread(session, thread);
    setProblem(failed);
    if (failed) return;
    close();
    if (route.thread === thread) location.hash = "#/new";
  };
  return html`
    <${Dialog} label=${threadName(now)} close=${close}>
      <form class="form" onSubmit=${rename}>
        <label>Name <input value=${title} maxlength="80" required onInput=${(event) => setTitle(event.target.value)} /></label>
        <p class="sheet-line">
          <button type="submit" class="primary" disabled=${!title.trim() || title === now.title}>Rename</button>
          <button type="button" class="plain" onClick=${() => change({ pinned: !now.pinned })}>${now.pinned ? "Unpin" : "Pin"}</button>
          <button type="button" class="plain" onClick=${() => change({ archived: !now.archived })}>${now.archived ? "Unarchive" : "Archive"}</button>
          ${route.thread !== thread && html`<button type="button" class="plain" onClick=${markUnread}>Mark as unread</button>`}
        </p>
      </form>
      <p class="sheet-line">
        <span class="faint">Export</span>
        ${FORMATS.map(([format, name]) => html`<a class="quiet" href=${exportAddress(thread, format)} download>${name}</a>`)}
      </p>
      ${canChange() && !thread.startsWith("agent:") && html`
        <p class="sheet-line is-end">
          ${now.open_turn
            ? html`<span class="faint">A turn is running. Stop it before you delete the conversation.</span>`
            : html`<span class="faint">Deleting removes all messages, files and results permanently.</span><${Sure} label="Delete" what=${threadName(now)} yes="Delete permanently" kind="plain danger" act=${remove} />`}
        </p>
      `}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
      <p class="sheet-line is-end"><button type="button" class="quiet" onClick=${close}>Close</button></p>
    <//>
  `;
}
