// The log of a thread: its rows, streamed text and outgoing messages.

import { html, memo, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../dom.js";
import { fileAddress, speechAddress } from "../api.js";
import { bytes, clockTime, files, fullTime, here, visible } from "../format.js";
import { canTalk, me } from "../me.js";
import { BranchSwitch, EditMessage } from "./branches.js";
import { Detail } from "./detail.js";
import { Elapsed } from "./elapsed.js";
import { Face } from "./face.js";
import { Act, icon } from "./icons.js";
import { Later } from "./later.js";
import { OutgoingRow } from "./outgoingrow.js";
import { GrowingProse, Prose } from "./prose.js";
import { RetryRow } from "./retry.js";
import { Timeline } from "./timeline.js";
import { ToolRow } from "./tool.js";
import { Words } from "./words.js";

const ROWS_SHOWN = 110;
const NEAR_BOTTOM_PX = 60;
const BY_HAND_MS = 400; // a scroll this soon after a wheel, touch, key or press event is the person's
const ORIGINS = { trigger: "Scheduled", system: "Shoal", agent: "Another agent" };

const UserRow = memo(function UserRow({ item, thread, session, siblings, resting }) {
  const [editing, setEditing] = useState(false);
  const row = useRef(null);
  const close = () => {
    setEditing(false);
    requestAnimationFrame(() => row.current?.querySelector(".act")?.focus());
  };
  const isMine = !item.author.id || item.author.id === me.author;
  const mayEdit = canTalk() && isMine && resting && item.turn && !item.steered && ["person", "api"].includes(item.origin);
  const name = ORIGINS[item.origin] || (isMine ? "You" : visible(item.author.name || item.author.id));
  return html`
    <div class=${`row user${item.steered ? " steered" : ""}`} ref=${row}>
      <span class="node" aria-hidden="true"></span>
      <div class="body">
        <p class="by">
          <b>${name}</b>${item.steered && html`<span class="tag">sent during the turn</span>`}
          ${item.origin === "api" && (thread.startsWith("terminal:")
            ? html`<span class="faint">in a terminal</span>`
            : html`<span class="faint" title="Sent by a program through the HTTP API">by a program</span>`)}
          <time datetime=${item.at} title=${fullTime(item.at)}>${clockTime(item.at)}</time>
          ${siblings && html`<${BranchSwitch} thread=${thread} session=${session} siblings=${siblings} />`}
          ${mayEdit && !editing && html`<${Act} name="edit" label="Edit" onClick=${() => setEditing(true)} />`}
        </p>
        ${editing ? html`<${EditMessage} item=${item} thread=${thread} session=${session} close=${close} />` : item.text && html`<p class="said">${item.text}</p>`}
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
  if (address && file.media_type.startsWith("audio/")) return html`<audio class="heard" controls preload="none" src=${address} aria-label=${file.name}></audio>`;
  return html`
    <p class="file">
      ${icon("clip")} ${address ? html`<a href=${address} download=${file.name}>${file.name}</a>` : file.name}
      ${file.size_bytes > 0 && html`<span class="faint">${bytes(file.size_bytes)}</span>`} ${file.error && html`<span class="problem"><${Words} text=${file.error} /></span>`}
    </p>
  `;
}

const BeginRow = memo(function BeginRow({ item, siblings }) {
  return html`
    <div class="row begin">
      <${Face} name=${item.agent || "agent"} />
      <p class="by body" title=${item.model ? `Model ${item.model}` : null}>
        <b>${visible(item.agent || "Agent")}</b><time datetime=${item.at} title=${fullTime(item.at)}>${clockTime(item.at)}</time>
        ${siblings && html`<span class="faint">${visible(item.model)}</span>`}
      </p>
    </div>
  `;
});

const AssistantRow = memo(function AssistantRow({ item, thread }) {
  if (item.text.trim() === "[SILENT]") return html`<div class="row note"><div class="body faint">Nothing was posted.</div></div>`;
  return html`
    <div class="row assistant">
      <div class="body">
        ${item.thinking && html`<details class="thinking"><summary>Thinking</summary><p>${item.thinking}</p></details>`}
        ${item.text && html`<${Prose} text=${item.text} thread=${thread} />`}
        ${item.stop === "refusal" && html`<p class="faint">The model declined to continue.</p>`}
      </div>
    </div>
  `;
});

const THINKING_SHOWN_CHARS = 6_000; // only the end is shown while the text grows

/** The model's thinking as it streams. It collapses when the reply begins, unless the person expanded it. */
function LiveThinking({ text, isAnswering }) {
  const [chosen, setChosen] = useState(null);
  const box = useRef(null);
  const isOpen = chosen ?? !isAnswering;
  useLayoutEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, isOpen]);
  return html`
    <details class="thinking is-live" open=${isOpen}>
      <summary onClick=${(event) => (event.preventDefault(), setChosen(!isOpen))}>${isAnswering ? "Thinking" : "Thinking…"}</summary>
      ${isOpen && html`<p ref=${box} tabindex="0">${visible(text.slice(-THINKING_SHOWN_CHARS))}</p>`}
    </details>
  `;
}

const LIMITS = { steps: "steps", tool_errors: "consecutive tool errors", budget: "budget", time: "time" };

const changes = () => import("./changes.js").then((found) => found.Changes);

const RestoredRow = ({ item, thread, session }) => {
  const [shown, setShown] = useState(false);
  const who = item.by === me.author ? "You" : visible(item.by);
  const did = item.undoes ? "undid a turn's changes" : "reversed an undo";
  const many = item.restored < item.of ? `${item.restored} of ${files(item.of)} restored` : `${files(item.restored)} restored`;
  return html`
    <div class="row note">
      <div class="body">
        <span>${who} ${did}: ${many}</span>
        ${!item.copied && html`<button type="button" class="copy" aria-expanded=${shown} onClick=${() => setShown(!shown)}>Show</button>`}
        ${shown && html`<${Later} load=${changes} thread=${thread} turn=${item.undo} session=${session} state=${item.undone} />`}
      </div>
    </div>
  `;
};

const NoteRow = memo(function NoteRow({ item, thread, session }) {
  if (item.note === "restored") return html`<${RestoredRow} item=${item} thread=${thread} session=${session} />`;
  if (item.note === "error") {
    return html`
      <div class="row error">
        <span class="node" aria-hidden="true"></span>
        <div class="body" role="note">
          <p><${Words} text=${here(item.text) || "Something went wrong."} /></p>
          <${Detail} text=${item.detail} />
        </div>
      </div>
    `;
  }
  const words = {
    cleared: "The conversation was cleared, and the agent starts fresh from here",
    compacted: "Older messages were summarized for the agent",
    forked: "Everything above was copied from another conversation",
    limit: `Limit reached: ${LIMITS[item.limit] || item.limit?.replaceAll("_", " ")}`,
  };
  return html`
    <div class="row note">
      <div class="body">
        <span>${words[item.note]}</span>
        ${item.source && html` <a href=${`#/t/${encodeURIComponent(item.source)}`}>Show the original</a>`}
        ${item.text && (item.text.length < 90 ? html`<span>: <${Words} text=${item.text} /></span>` : html`<details><summary>Show</summary><p><${Words} text=${item.text} /></p></details>`)}
      </div>
    </div>
  `;
});

const FRESH_MS = 30_000;

/** A spoken reply. A new one plays automatically, an older one on demand. */
const SpokenRow = memo(function SpokenRow({ item, thread }) {
  const [missing, setMissing] = useState(false);
  const fresh = Date.now() - Date.parse(item.at) < FRESH_MS;
  if (missing) return null; // the conversation already says why it is missing
  return html`
    <div class="row spoken">
      <div class="body">
        <audio controls preload=${fresh ? "auto" : "none"} autoplay=${fresh} src=${speechAddress(thread, item.turn)} aria-label="Spoken reply"
          onError=${() => setMissing(true)}></audio>
      </div>
    </div>
  `;
});

const callsCard = () => import("./approval.js").then((found) => found.CallsCard);

const answeredCard = () => import("./approval.js").then((found) => found.Answered);

/** The card with a turn's staged calls. After the decision it shows the outcome, and an undo button if all were discarded. */
function StagedRow({ item, thread, turn, session }) {
  const calls = session.state.approvals.filter((record) => record.item?.card === item.card && record.state === "pending").sort((one, other) => one.item.number - other.item.number);
  const answer = session.state.answers[item.card];
  const stays = item.files && item.refused === item.total && !turn?.undone && !turn?.copied;
  if (!calls.length && !answer && !stays) return null;
  return html`
    <div class="row staged">
      <span class="node" aria-hidden="true"></span>
      <div class="body">
        ${calls.length
          ? html`<${Later} key="calls" load=${callsCard} calls=${calls} session=${session} />`
          : html`<${Later} key="answered" load=${answeredCard} text=${answer?.text || "The turn's file changes stay."} thread=${thread} turn=${stays ? item.turn : ""} session=${session} />`}
      </div>
    </div>
  `;
}

const rows = { user: UserRow, begin: BeginRow, assistant: AssistantRow, spoken: SpokenRow, tool: ToolRow, staged: StagedRow, retry: RetryRow, note: NoteRow, end: Timeline };

const STATUS = { thinking: "Waiting for the model", tool: "Working", waiting: "Waiting for your decision", queued: "Queued" };

function Activity({ view }) {
  if (!view.openTurn && view.status?.state !== "queued") return null;
  const isSeen = view.items.some((item) => item.turn === view.openTurn && ["waiting", "running"].includes(item.state));
  if (view.live || isSeen) return null;
  const state = view.status?.state || "thinking";
  const { text = "", sinceMs = Date.parse(view.events.at(-1)?.at), untilMs } = view.status || {};
  const words = state === "retrying" ? `${text[0]?.toUpperCase() || ""}${text.slice(1)}, trying again` : STATUS[state];
  return html`
    <div class=${`row activity is-${state}`}>
      <span class="node" aria-hidden="true"></span>
      <div class="body">${visible(words)}<${Elapsed} key=${state} ...${state === "retrying" ? { untilMs, before: " in " } : { sinceMs, before: ", " }} />…</div>
    </div>
  `;
}

/** The log of one thread. `outgoing` are its messages that are not in the journal yet. `sends` counts messages sent from this
 * page. `at` is an event to show, a new object each time. */
export function Log({ view, complete, outgoing, session, sends, at }) {
  const frame = useRef(null);
  const stick = useRef(true);
  const sendsSeen = useRef(sends);
  const [unseen, setUnseen] = useState(null); // a pending approval card outside the view
  const [shown, setShown] = useState(ROWS_SHOWN);
  const [below, setBelow] = useState(false);
  const heightBefore = useRef(0);
  const lastTop = useRef(0);
  const handledMs = useRef(-BY_HAND_MS); // time of the person's last scrolling action

  // To show an event, load the past, render its row, then scroll to it.
  const [sought, setSought] = useState(null);
  useEffect(() => {
    if (!at?.seq) return;
    stick.current = false;
    import("../keeping.js").then((keeping) => keeping.loadBackTo(session, view.thread, at.seq)).then(() => setSought(at));
  }, [at]);
  useLayoutEffect(() => {
    if (!sought || (view.firstSeq > sought.seq && !complete)) return; // loaded events appear a frame later
    const place = view.items.findLastIndex((item) => item.seq <= sought.seq && item.kind !== "end");
    if (view.items.length - place > shown) {
      setShown(view.items.length - place + ROWS_SHOWN / 4);
      return;
    }
    const row = frame.current.querySelector(`[data-seq="${view.items[Math.max(0, place)]?.seq}"]`);
    setSought(null);
    row?.scrollIntoView({ block: "center" });
    row?.classList.add("is-sought");
    setTimeout(() => row?.classList.remove("is-sought"), 2_500);
  }, [sought, shown, view.items, complete]);

  useLayoutEffect(() => {
    const box = frame.current;
    if (sends !== sendsSeen.current) { // scroll to the sent message
      sendsSeen.current = sends;
      stick.current = true;
    }
    if (heightBefore.current) {
      box.scrollTop += box.scrollHeight - heightBefore.current;
      heightBefore.current = 0;
    } else if (stick.current) {
      box.scrollTop = box.scrollHeight;
    } else if (!below) {
      setBelow(true);
    }
  }, [view.items, view.live, view.status, outgoing, sends, shown]);

  useEffect(() => {
    const cards = [...frame.current.querySelectorAll(".asks")];
    const inSight = new Set();
    const watch = new IntersectionObserver((changes) => {
      for (const { target, isIntersecting } of changes) inSight[isIntersecting ? "add" : "delete"](target);
      setUnseen(inSight.size ? null : cards[0]);
    }, { root: frame.current });
    for (const card of cards) watch.observe(card);
    if (!cards.length) setUnseen(null);
    return () => watch.disconnect();
  }, [view.items, shown]);

  useEffect(() => {
    const keepEnd = new ResizeObserver(() => {
      const box = frame.current; // null after another view opened
      if (stick.current && box) box.scrollTop = box.scrollHeight;
    });
    keepEnd.observe(frame.current);
    keepEnd.observe(frame.current.firstElementChild);
    return () => keepEnd.disconnect();
  }, []);

  const scrolled = ({ currentTarget: box }) => { // the event may arrive after the log's removal
    const isNear = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_BOTTOM_PX;
    const isByHand = performance.now() - handledMs.current < BY_HAND_MS;
    // Content that changes its height also moves the text, for example when the complete reply replaces the streamed one.
    if (isNear) stick.current = true;
    else if (isByHand && box.scrollTop < lastTop.current) stick.current = false;
    if (isByHand) handledMs.current = performance.now(); // scrolling may continue for a while
    lastTop.current = box.scrollTop;
    if (stick.current && below) setBelow(false);
  };
  const handled = () => {
    handledMs.current = performance.now();
  };
  const toEnd = () => {
    stick.current = true;
    frame.current.scrollTop = frame.current.scrollHeight;
    setBelow(false);
  };
  const earlier = async () => {
    heightBefore.current = frame.current.scrollHeight;
    if (view.items.length <= shown && !complete) await session.loadEarlier(view.thread);
    if (!frame.current) return; // another view opened
    heightBefore.current = frame.current.scrollHeight;
    setShown(shown + ROWS_SHOWN);
  };

  const from = Math.max(0, view.items.length - shown);
  const answering = view.live && view.turns.get(view.live.turn);
  const begins = useMemo(() => answering && !answering.begun && { ...answering, at: answering.startedAt }, [answering]);
  return html`
    <div class="log" ref=${frame} onScroll=${scrolled} onWheel=${handled} onTouchMove=${handled} onKeyDown=${handled} onPointerDown=${handled} onPointerMove=${(event) => event.buttons && handled()} tabindex="-1">
      <div class="column" role="log" aria-live="off" aria-label="Conversation">
        <h2 class="offscreen">Conversation</h2>
        ${(from > 0 || !complete) && html`<button type="button" class="quiet earlier" onClick=${earlier}>Load earlier messages</button>`}
        ${view.items.slice(from).map(
          (item) => html`<div key=${item.key} class="strung" data-seq=${item.seq}><${rows[item.kind]} item=${item} thread=${view.thread} session=${session} turn=${["end", "staged"].includes(item.kind) ? view.turns.get(item.turn) : null} ...${item.approval && !item.approval.decision ? { approvals: session.state.approvals, answers: session.state.answers } : {}} siblings=${["user", "begin"].includes(item.kind) ? view.siblings.get(item.turn) : null} resting=${!view.openTurn} /></div>`,
        )}
        ${begins && html`<${BeginRow} key="begins" item=${begins} />`}
        ${view.live && html`
          <div class="row assistant live" key="live">
            <div class="body">
              ${view.live.thinking && html`<${LiveThinking} text=${view.live.thinking} isAnswering=${view.live.text !== ""} />`}
              ${view.live.partial && html`<span class="faint">… </span>`}<${GrowingProse} text=${view.live.text} thread=${view.thread} />
            </div>
          </div>
        `}
        <${Activity} view=${view} key="activity" />
        ${outgoing.map((message) => html`<${OutgoingRow} key=${message.id} message=${message} session=${session} running=${Boolean(view.openTurn)} />`)}
      </div>
    </div>
    <div class="ends">${unseen
      ? html`<button type="button" class="to-end is-ask" onClick=${() => unseen.scrollIntoView({ block: "center" })}>${icon("down")} Waiting for your decision</button>`
      : below && html`<button type="button" class="to-end" onClick=${toEnd}>${icon("down")} Jump to newest</button>`}</div>
  `;
}
