// The card that asks a person, and afterwards says what really happened.

import { html, useEffect, useRef, useState } from "../dom.js";
import { ago, duration, fullTime, shownName, visible } from "../format.js";
import { calledBy, canDecide, me } from "../me.js";
import { TextBlock } from "./textblock.js";
import { Words } from "./words.js";

/** What became of a request, in words; `result` is the tool item where it is known. */
export function outcome(approval, result) {
  const by = approval.by ? ` by ${approval.by === me.author ? "you" : visible(approval.by)}` : "";
  switch (approval.decision) {
    case "allow": {
      const scope = approval.scope === "thread" ? "Allowed for this thread" : "Allowed once";
      return `${scope}${by}, ${ran(result)}`;
    }
    case "deny":
      return `Denied${by}; it did not run`;
    case "expired":
      return "Expired unanswered; it did not run";
    case "cancelled":
      return "Cancelled; it did not run";
    default:
      return "";
  }
}

function ran(result) {
  const took = result?.durationMs ? ` after ${duration(result.durationMs)}` : "";
  switch (result?.state) {
    case "done":
      return result.durationMs ? `and ran in ${duration(result.durationMs)}` : "and ran";
    case "failed":
      return `and failed${took}`;
    case "interrupted":
      return "but it was interrupted and its outcome is unknown";
    case "stopped":
      return `then stopped${took}`;
    case "cancelled":
      return "then stopped";
    case "running":
      return "running now";
    default:
      return "starting";
  }
}

export function ApprovalCard({ approval, tool, result, session }) {
  if (approval.decision) {
    return html`<p class=${`verdict is-${approval.decision}`}>${outcome(approval, result)}</p>`;
  }
  return html`<${OpenCard} approval=${approval} tool=${tool} session=${session} />`;
}

/** Who asks for a call and for whom, as far as the record says. Pure but for me. */
export function askedBy(record) {
  if (!record) return "";
  const person = record.asked_by && visible(["you", "the owner"].includes(calledBy(record.asked_by)) ? calledBy(record.asked_by) : record.asked_by_name || record.asked_by);
  return [record.agent && visible(record.agent), person && `for ${person}`].filter(Boolean).join(", ");
}

function OpenCard({ approval, tool, session }) {
  const [sent, setSent] = useState("");
  const [problem, setProblem] = useState("");
  const [isSeen, setSeen] = useState(false);
  const card = useRef(null);
  useEffect(
    () => () => {
      // The card goes once it is answered; who answered by keyboard stays where it was.
      if (card.current.contains(document.activeElement)) card.current.closest(".row")?.querySelector(".tool-line").focus();
    },
    [],
  );
  const decide = async (decision, scope) => {
    if (sent || (decision === "allow" && !isSeen)) return;
    setSent(`${decision}-${scope}`);
    setProblem("");
    const failure = await session.decide(approval.id, decision, scope);
    setProblem(failure);
    if (failure) setSent("");
  };
  const button = (label, kind, decision, scope) => html`
    <button type="button" class=${kind} aria-disabled=${Boolean(sent) || (decision === "allow" && !isSeen)} onClick=${() => decide(decision, scope)}>
      ${sent === `${decision}-${scope}` ? "Sending…" : label}
    </button>
  `;
  const asked = askedBy(session.state.approvals.find((record) => record.id === approval.id));
  const shown = approval.shown.trim() ? approval.shown : approval.actions.join("\n");
  return html`
    <div class="approval" role="group" ref=${card} aria-label=${`${tool} asks for approval: ${visible(shown).slice(0, 100)}`}>
      <h3>Allow <code>${tool}</code> to run exactly this?</h3>
      ${asked && html`<p class="reason">Asked by ${asked}</p>`}
      <${TextBlock} label="As it will run" text=${shown} open=${true} seen=${() => setSeen(true)} />
      ${!isSeen && html`<p class="reason out-of-view" role="status">Part of this is out of view. Scroll to its end to allow it.</p>`}
      ${runs(approval.covers).map((line) => html`<p class="reason">${line}</p>`)}
      <p class="reason"><b>Why it asks:</b> ${visible(approval.reason || "your permission rules say to ask before this.")}</p>
      ${approval.actions.length > 0 && html`<${Actions} actions=${approval.actions} />`}
      <div class="choices">
        ${canDecide()
          ? html`${button("Allow once", "primary", "allow", "once")}
              ${!approval.covers?.uncovered && button("Allow for this thread", "plain", "allow", "thread")}
              ${button("Deny", "plain danger", "deny", "once")}`
          : html`<span>Waits for someone who may decide it.</span>`}
        <span class="faint" title=${fullTime(approval.expiresAt)}>expires ${ago(approval.expiresAt)}</span>
      </div>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </div>
  `;
}

const FILES_SHOWN_MAX = 10;

/** What the call runs that its own text does not show: files with their sizes, and what is not covered. */
function runs(covers = {}) {
  const all = covers.files || [];
  const there = all.filter((file) => file.size_bytes >= 0);
  const files = there.length ? there : all;
  const more = files.length - FILES_SHOWN_MAX;
  const named = files.slice(0, FILES_SHOWN_MAX).map((file, at) => html`${at > 0 && ", "}<bdi>${shownName(file.path.replace(/^\/workspace\/(?=.)/su, ""))}</bdi> (${visible(size(file))})`);
  const other = covers.others && `run other files of the workspace (${count(covers.others, "code file")}).`;
  return [
    ...(named.length ? [html`Runs ${named}${more > 0 && `, ${more} more`}${other ? ` and may ${other}` : "."}`] : other ? [`May ${other}`] : []),
    ...(covers.uncovered ? [`It can only be allowed once, because ${visible(covers.uncovered)}.`] : []),
  ];
}

const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

const size = (file) => (file.size_bytes >= 0 ? count(file.size_bytes, "byte") : file.digest || "does not exist yet");

function Actions({ actions }) {
  return html`
    <details class="actions">
      <summary>How the rules see it${actions.length > 1 ? `: ${actions.length} parts` : ""}</summary>
      <ul>
        ${actions.map((action) => html`<li><code>${visible(action)}</code></li>`)}
      </ul>
    </details>
  `;
}
