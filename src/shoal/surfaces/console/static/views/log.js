// The log of a thread: rows strung on one line, what is being written, and what is on its way.

import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "../dom.js";
import { fileAddress } from "../api.js";
import { bytes, clockTime, fullTime, visible } from "../format.js";
import { me } from "../me.js";
import { icon } from "./icons.js";
import { OutgoingRow } from "./outgoingrow.js";
import { GrowingProse, Prose } from "./prose.js";
import { RetryRow } from "./retry.js";
import { Timeline } from "./timeline.js";
import { ToolRow } from "./tool.js";

const ROWS_SHOWN = 80;
const NEAR_BOTTOM_PX = 60;
const ORIGINS = { trigger: "Scheduled", system: "Shoal", agent: "Another agent", api: "Over the API" };

const UserRow = memo(function UserRow({ item, thread }) {
  const isMine = !item.author.id || item.author.id === me.author;
  const name = ORIGINS[item.origin] || (isMine ? "You" : visible(item.author.name || item.author.id));
  return html`
    <div class=${`row user${item.steered ? " steered" : ""}`}>
      <span class="node" aria-hidden="true"></span>
      <div class="body">
        <p class="by">
          <b>${name}</b>${item.steered && html`<span class="tag">steered</span>`}
          <time datetime=${item.at} title=${fullTime(item.at)}>${clockTime(item.at)}</time>
        </p>
        <p class="said">${item.text}</p>
        ${item.attachments.map((file) => html`<${Attached} thread=${thread} file=${file} />`)}
      </div>
    </div>
  `;
});

const SHOWN_TYPES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"]);

function Attached({ thread, file }) {
  const address = fileAddress(thread, file.path);
  if (address && SHOWN_TYPES.has(file.media_type)) {
    return html`<a class="picture" href=${address} target="_blank" rel="noopener"><img src=${address} alt=${file.name} loading="lazy" /></a>`;
  }
  return html`
    <p class="file">
      ${icon("clip")} ${address ? html`<a href=${address} download=${file.name}>${file.name}</a>` : file.name}
      ${file.size_bytes > 0 && html`<span class="faint">${bytes(file.size_bytes)}</span>`} ${file.error && html`<span class="problem">${file.error}</span>`}
    </p>
  `;
}

const AssistantRow = memo(function AssistantRow({ item }) {
  if (item.text.trim() === "[SILENT]") return html`<div class="row note"><div class="body faint">Nothing was posted.</div></div>`;
  return html`
    <div class="row assistant">
      <div class="body">
        ${item.thinking && html`<details class="thinking"><summary>Thinking</summary><p>${item.thinking}</p></details>`}
        ${item.text && html`<${Prose} text=${item.text} />`}
        ${item.stop === "refusal" && html`<p class="faint">The model declined to go on.</p>`}
      </div>
    </div>
  `;
});

const LIMITS = { steps: "the number of steps", tool_errors: "tool errors in a row", budget: "the budget", time: "the time" };

const NoteRow = memo(function NoteRow({ item }) {
  if (item.note === "error") {
    return html`
      <div class="row error">
        <span class="node" aria-hidden="true"></span>
        <div class="body" role="note">
          <p>${item.text || "Something went wrong."}</p>
          ${item.detail && html`<details><summary>Details</summary><pre tabindex="0">${item.detail}</pre></details>`}
        </div>
      </div>
    `;
  }
  const words = {
    cleared: "The agent starts afresh from here",
    compacted: "Older messages were condensed for the agent",
    limit: `A limit was reached: ${LIMITS[item.limit] || item.limit}`,
  };
  return html`
    <div class="row note">
      <div class="body">
        <span>${words[item.note]}</span>
        ${item.text && (item.text.length < 90 ? html`<span>: ${item.text}</span>` : html`<details><summary>Show</summary><p>${item.text}</p></details>`)}
      </div>
    </div>
  `;
});

const rows = { user: UserRow, assistant: AssistantRow, tool: ToolRow, retry: RetryRow, note: NoteRow, end: Timeline };

const STATUS = { thinking: "Thinking", tool: "Working", waiting: "Waiting for you", retrying: "Trying again", queued: "Queued" };

function Activity({ view }) {
  if (!view.openTurn && view.status?.state !== "queued") return null;
  const last = view.items.at(-1);
  if (view.live || ["waiting", "running"].includes(last?.state)) return null; // that is seen already
  const state = view.status?.state || "thinking";
  const words = view.status?.text || STATUS[state];
  return html`
    <div class=${`row activity is-${state}`}>
      <span class="node" aria-hidden="true"></span>
      <div class="body">${words}…</div>
    </div>
  `;
}

/** Everything of one thread. `outgoing` are this thread's messages that the journal does not have yet. */
export function Log({ view, complete, outgoing, session }) {
  const frame = useRef(null);
  const stick = useRef(true);
  const [shown, setShown] = useState(ROWS_SHOWN);
  const [below, setBelow] = useState(false);
  const heightBefore = useRef(0);

  useEffect(() => {
    stick.current = true;
    setShown(ROWS_SHOWN);
  }, [view.thread]);

  useLayoutEffect(() => {
    const box = frame.current;
    if (heightBefore.current) {
      box.scrollTop += box.scrollHeight - heightBefore.current;
      heightBefore.current = 0;
    } else if (stick.current) {
      box.scrollTop = box.scrollHeight;
    } else if (!below) {
      setBelow(true);
    }
  }, [view.items, view.live, view.status, outgoing, shown]);

  useEffect(() => {
    const keepEnd = new ResizeObserver(() => {
      const box = frame.current; // none once another place is shown, which is seen here before this is taken away
      if (stick.current && box) box.scrollTop = box.scrollHeight;
    });
    keepEnd.observe(frame.current);
    keepEnd.observe(frame.current.firstElementChild);
    return () => keepEnd.disconnect();
  }, []);

  const scrolled = ({ currentTarget: box }) => { // told late, it may come when this is taken away
    stick.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_BOTTOM_PX;
    if (stick.current && below) setBelow(false);
  };
  const toEnd = () => {
    stick.current = true;
    frame.current.scrollTop = frame.current.scrollHeight;
    setBelow(false);
  };
  const earlier = async () => {
    heightBefore.current = frame.current.scrollHeight;
    if (view.items.length <= shown && !complete) await session.loadEarlier(view.thread);
    if (!frame.current) return; // another place was shown meanwhile
    heightBefore.current = frame.current.scrollHeight;
    setShown(shown + ROWS_SHOWN);
  };

  const from = Math.max(0, view.items.length - shown);
  return html`
    <div class="log" ref=${frame} onScroll=${scrolled} tabindex="-1">
      <div class="column" role="log" aria-live="off" aria-label="Conversation">
        ${(from > 0 || !complete) && html`<button type="button" class="quiet earlier" onClick=${earlier}>Load earlier</button>`}
        ${view.items.slice(from).map(
          (item) => html`<${rows[item.kind]} key=${item.key} item=${item} thread=${view.thread} session=${session} turn=${item.kind === "end" ? view.turns.get(item.turn) : null} />`,
        )}
        ${view.live && html`
          <div class="row assistant live" key="live">
            <div class="body">${view.live.partial && html`<span class="faint">… </span>`}<${GrowingProse} text=${view.live.text} /></div>
          </div>
        `}
        <${Activity} view=${view} key="activity" />
        ${outgoing.map((message) => html`<${OutgoingRow} key=${message.id} message=${message} session=${session} running=${Boolean(view.openTurn)} />`)}
      </div>
    </div>
    ${below && html`<button type="button" class="to-end" onClick=${toEnd}>${icon("down")} Newest</button>`}
  `;
}
