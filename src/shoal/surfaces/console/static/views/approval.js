import { api } from "../api.js";
import { html, useEffect, useRef, useState } from "../dom.js";
import { ago, files, fullTime, shownName, visible } from "../format.js";
import { calledBy, canDecide, canSeeApprovals, canTalk } from "../me.js";
import { TextBlock } from "./textblock.js";
import { Words } from "./words.js";

/** Return the pending calls on a record's card, by number, or only the record if it has no card. */
export function cardOf(record, pending) {
  const card = record.item?.card;
  if (!card) return [record];
  return pending.filter((other) => other.item?.card === card).sort((one, other) => one.item.number - other.item.number);
}

export function ApprovalCard({ approval, tool, session }) {
  const pending = session.state.approvals.filter((record) => record.state === "pending");
  const calls = approval.item?.card ? cardOf(approval, pending) : [];
  const answer = session.state.answers[approval.item?.card || approval.id];
  if (answer && !pending.some((record) => record.id === approval.id)) return html`<p class="reason" role="status"><${Words} text=${answer.text} /></p>`;
  if (calls.length > 1 || calls[0]?.item.staged) {
    return calls[0].id === approval.id ? html`<${CallsCard} calls=${calls} session=${session} />` : html`<p class="reason">Included in the request above.</p>`;
  }
  if (approval.item?.card && canSeeApprovals()) return html`<p class="reason" role="status">Checking whether this request is still pending…</p>`;
  return html`<${OpenCard} approval=${approval} tool=${tool} session=${session} />`;
}

/** The outcome of a card that was decided on this page. `turn` is the turn whose files can be restored, or empty. */
export function Answered({ text, thread, turn, session }) {
  const [busy, setBusy] = useState(false);
  const [done, setDone] = useState("");
  const [problem, setProblem] = useState("");
  const undo = async () => {
    if (busy) return;
    setBusy(true);
    setProblem(await session.attempt(async () => setDone(`Restored ${files((await api.undo(thread, turn, "ask")).restored)}.`)));
    setBusy(false);
  };
  return html`
    <div class="answered">
      <p class="reason" role="status"><${Words} text=${done || text} /></p>
      ${turn && !done && canTalk() && html`<p class="choices"><button type="button" class="plain" aria-disabled=${busy} onClick=${undo}>${busy ? "Undoing…" : "Undo file changes"}</button></p>`}
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </div>
  `;
}

/** Return the agent that asks and the person it asks for, if known. */
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
      // The card disappears after the decision. Keep the keyboard focus in place.
      if (card.current.contains(document.activeElement)) card.current.closest(".row")?.querySelector(".tool-line")?.focus();
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
  const record = session.state.approvals.find((one) => one.id === approval.id);
  const asked = askedBy(record);
  const shown = approval.shown.trim() ? approval.shown : approval.actions.join("\n");
  return html`
    <div class="approval" role="group" ref=${card} aria-label=${`${tool} asks for approval: ${visible(shown).slice(0, 100)}`}>
      <h3>Allow <code>${tool}</code> to run exactly this?</h3>
      ${asked && html`<p class="reason">Asked by ${asked}</p>`}
      <${OwnWords} item=${approval.item} />
      <${TextBlock} label="Exact call" text=${shown} open=${true} seen=${() => setSeen(true)} />
      ${!isSeen && html`<p class="reason out-of-view" role="status">Part of the call is out of view. Scroll to its end to allow it.</p>`}
      ${runs(approval.covers).map((line) => html`<p class="reason">${line}</p>`)}
      <${Origins} item=${approval.item} />
      <p class="reason"><b>Why it asks:</b> ${visible(approval.reason || "your permission rules require approval for this call.")}</p>
      ${record?.always && html`<p class="reason">${visible(record.always)}</p>`}
      ${approval.actions.length > 0 && html`<${Actions} actions=${approval.actions} />`}
      <div class="choices">
        ${canDecide()
          ? html`${button("Allow once", "primary", "allow", "once")}
              ${!approval.covers?.uncovered && button("Allow for this conversation", "plain", "allow", "thread")}
              ${record?.always && button("Always allow", "plain", "allow", "always")}
              ${button("Deny", "plain danger", "deny", "once")}`
          : html`<span>Waiting for an approver.</span>`}
        <span class="faint" title=${fullTime(approval.expiresAt)}>expires ${ago(approval.expiresAt)}</span>
      </div>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </div>
  `;
}

/** Return a card's list of changed files as plain text, without the Markdown around names and diffs. */
const withoutFences = (text) =>
  text
    .split(/^`{3,}(?:diff)?\n?/m)
    .map((part, at) => (at % 2 ? part : part.replace(/^(?:- )?`(.*)`(?= )/gm, "$1")))
    .join("")
    .trimEnd();

/** Several calls of one message: allow all, the checked ones, or none. */
export function CallsCard({ calls, session }) {
  const [ticked, setTicked] = useState(null); // the checked numbers, once the person chooses
  const [sent, setSent] = useState("");
  const [problem, setProblem] = useState("");
  const [seen, setSeen] = useState([]);
  const card = useRef(null);
  useEffect(
    () => () => {
      if (card.current.contains(document.activeElement)) card.current.closest(".row")?.querySelector(".tool-line")?.focus();
    },
    [],
  );
  const numbers = calls.map((call) => call.item.number);
  const foreign = calls.filter((call) => sourcesOf(call.item).length);
  const chosen = ticked ? numbers.filter((number) => ticked.includes(number)) : numbers;
  const isSeen = calls.every((call) => !chosen.includes(call.item.number) || seen.includes(call.id));
  const decide = async (decision, scope = "once") => {
    if (sent || (decision === "allow" && (!isSeen || !chosen.length))) return;
    setSent(scope === "always" ? scope : decision);
    setProblem("");
    const failure = await session.decide(calls[0].item.card, decision, scope, decision === "allow" ? chosen : numbers);
    setProblem(failure);
    setSent("");
  };
  const sources = [...new Set(foreign.flatMap((call) => sourcesOf(call.item)))];
  const including = foreign.length ? `, including ${listed(foreign.map((call) => call.item.number))} from ${sources.length === 1 ? visible(sources[0]) : "untrusted text"}` : "";
  const staged = calls[0].item.staged;
  const [yes, no] = staged ? ["Do", "discard"] : ["Allow", "deny"];
  const all = staged && numbers.length === 1 ? "Do it" : `${yes} all${including}`;
  const some = `${yes} ${listed(chosen)}${chosen.length < numbers.length ? `, ${no} the rest` : ""}`;
  const label = !ticked ? all : chosen.length ? some : staged ? "Select actions to run" : "Select calls to allow";
  const canAlways = chosen.length > 0 && calls.every((call) => call.always || !chosen.includes(call.item.number));
  const asked = askedBy(calls[0]);
  return html`
    <div class="approval calls" role="group" ref=${card} aria-label=${`${calls.length} calls ask for approval`}>
      ${staged
        ? html`<h3>Run ${calls.length === 1 ? "this action" : `these ${calls.length.toLocaleString("en")} actions`}?</h3><p class="reason">Nothing has been done yet.</p>`
        : html`<h3>Allow ${calls.length === 1 ? "this call" : `these ${calls.length} calls`}?</h3>`}
      ${asked && html`<p class="reason">Asked by ${asked}</p>`}
      <${OwnWords} item=${calls[0].item} />
      ${calls[0].item.files && html`<p class="reason">This turn changed files. The changes stay unless you undo them:</p><${TextBlock} label="File changes" text=${withoutFences(calls[0].item.files)} open=${true} />`}
      ${calls.map(
        (call) => html`
          <section class="call" key=${call.id} aria-label=${`Call ${call.item.number}`}>
            <h4>
              ${ticked
                ? html`<label><input type="checkbox" checked=${ticked.includes(call.item.number)} onChange=${() => setTicked(ticked.includes(call.item.number) ? ticked.filter((number) => number !== call.item.number) : [...ticked, call.item.number])} /> ${call.item.number}. <code>${call.tool}</code></label>`
                : html`${call.item.number}. <code>${call.tool}</code>`}
            </h4>
            <${TextBlock} label="Exact call" text=${call.shown.trim() ? call.shown : call.actions.join("\n")} open=${true} seen=${() => setSeen((ids) => [...ids, call.id])} />
            ${runs(call.covers).map((line) => html`<p class="reason">${line}</p>`)}
            <${Origins} item=${call.item} />
            ${call.reason && html`<p class="reason"><b>Why it asks:</b> ${visible(call.reason)}</p>`}
            ${call.always && html`<p class="reason">${visible(call.always)}</p>`}
            ${call.actions.length > 0 && html`<${Actions} actions=${call.actions} />`}
          </section>
        `,
      )}
      ${!isSeen && html`<p class="reason out-of-view" role="status">Some of the calls are not fully in view. Scroll to their end to allow them.</p>`}
      <div class="choices">
        ${canDecide()
          ? html`<button type="button" class="primary" aria-disabled=${Boolean(sent) || !isSeen || !chosen.length} onClick=${() => decide("allow")}>${sent === "allow" ? "Sending…" : label}</button>
              ${ticked
                ? html`<button type="button" class="plain" onClick=${() => setTicked(null)}>Back</button>`
                : numbers.length > 1 && html`<button type="button" class="plain" onClick=${() => setTicked(calls.filter((call) => !sourcesOf(call.item).length).map((call) => call.item.number))}>Choose</button>`}
              ${canAlways && html`<button type="button" class="plain" aria-disabled=${Boolean(sent) || !isSeen} onClick=${() => decide("allow", "always")}>${sent === "always" ? "Sending…" : `Always allow ${ticked ? listed(chosen) : "all"}`}</button>`}
              <button type="button" class="plain danger" aria-disabled=${Boolean(sent)} onClick=${() => decide("deny")}>${sent === "deny" ? "Sending…" : staged ? "Discard" : ticked ? "Deny all" : "Deny"}</button>`
          : html`<span>Waiting for an approver.</span>`}
        <span class="faint" title=${fullTime(calls[0].expires_at)}>expires ${ago(calls[0].expires_at)}</span>
      </div>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </div>
  `;
}

const sourcesOf = (item) => [...new Set((item?.origins || []).map((origin) => origin.source).filter(Boolean))];

const listed = (numbers) => (numbers.length > 1 ? `${numbers.slice(0, -1).join(", ")} and ${numbers.at(-1)}` : `${numbers[0] ?? ""}`);

function OwnWords({ item }) {
  return item?.why ? html`<p class="reason"><b>The model says:</b> <q>${visible(item.why)}</q></p>` : null;
}

function Origins({ item }) {
  const origins = item?.origins || [];
  return origins.map((origin) => {
    const value = html`<bdi class="value">${visible(origin.value)}</bdi>`;
    return origin.source
      ? html`<p class="reason is-foreign">${value} comes only from ${visible(origin.source)}.</p>`
      : html`<p class="reason">${origin.named_by === "you" ? "You" : visible(origin.named_by)} named ${value}.</p>`;
  });
}

const FILES_SHOWN_MAX = 10;

/** Describe code that the call runs beyond its own text: files with sizes, and code that the approval does not cover. */
function runs(covers = {}) {
  const all = covers.files || [];
  const there = all.filter((file) => file.size_bytes >= 0);
  const isOfGit = (file) => file.path.includes("/.git/");
  const files = (there.length ? there : all).filter((file) => !isOfGit(file));
  const repository = (there.length ? there : all).some(isOfGit) && "Also runs this repository's hooks and the programs named in its settings.";
  const more = files.length - FILES_SHOWN_MAX;
  const named = files.slice(0, FILES_SHOWN_MAX).map((file, at) => html`${at > 0 && ", "}<bdi>${shownName(file.path.replace(/^\/workspace\/(?=.)/su, ""))}</bdi> (${visible(size(file))})`);
  const other = covers.others && `run other files in the workspace (${count(covers.others, "code file")}).`;
  return [
    ...(named.length ? [html`Runs ${named}${more > 0 && `, ${more} more`}${other ? ` and may ${other}` : "."}`] : other ? [`May ${other}`] : []),
    ...(repository ? [repository] : []),
    ...(covers.uncovered ? [`You can allow this call only once, because ${visible(covers.uncovered)}.`] : []),
  ];
}

const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

const size = (file) => (file.size_bytes >= 0 ? count(file.size_bytes, "byte") : file.digest || "does not exist yet");

function Actions({ actions }) {
  return html`
    <details class="actions">
      <summary>Actions checked against your rules${actions.length > 1 ? ` (${actions.length})` : ""}</summary>
      <ul>
        ${actions.map((action) => html`<li><code>${visible(action)}</code></li>`)}
      </ul>
    </details>
  `;
}
