// A tool call in the log, with its arguments, output and approval card.

import { fileAddress } from "../api.js";
import { html, memo, useEffect, useRef, useState } from "../dom.js";
import { duration, readable, summary, visible } from "../format.js";
import { me } from "../me.js";
import { icon } from "./icons.js";
import { Elapsed } from "./elapsed.js";
import { Later } from "./later.js";
import { TextBlock } from "./textblock.js";

const CALLING = new Set(["subagent", "spawn", "ask_agent"]);
const CHILD = /agent:[0-9a-f]{16}:[0-9a-f]{26}/;
const LABELS = {
  pending: "queued",
  waiting: "needs approval",
  allowed: "allowed",
  staged: "staged, not run yet",
  accepted: "accepted",
  discarded: "discarded",
  running: "running",
  done: "done",
  failed: "failed",
  stopped: "stopped",
  interrupted: "interrupted, outcome unknown",
  denied: "denied",
  expired: "expired",
  cancelled: "cancelled",
};

export const ToolRow = memo(function ToolRow({ item, thread, session }) {
  const [open, setOpen] = useState(false);
  const panel = `panel-${item.key}`;
  const text = item.arguments ? summary(item.arguments) : visible(item.actions?.[0] || "");
  const took = item.durationMs ? duration(item.durationMs) : "";
  const state = item.state === "done" && item.exitCode ? [`exit code ${item.exitCode}`, took].filter(Boolean).join(", ") : item.state === "done" ? took || "done" : item.state === "stopped" && took ? `stopped after ${took}` : LABELS[item.state];
  const isBad = item.state === "failed" || (item.state === "done" && Boolean(item.exitCode));
  return html`
    <div class=${`row tool is-${isBad ? "failed" : item.state}`}>
      <span class="node" aria-hidden="true"></span>
      <div class="body">
        <button type="button" class="tool-line" aria-expanded=${open} aria-controls=${panel} onClick=${() => setOpen(!open)}>
          ${icon("chevron")}
          <span class="tool-name">${item.name}</span>
          <span class="tool-summary">${text}</span>
          <span class="tool-state">${isBad && html`<span class="mark-bad" aria-hidden="true">✗ </span>`}${state}${item.state === "running" && html`<${Elapsed} sinceMs=${item.sinceMs || Date.parse(item.startedAt)} before=", " />`}</span>
        </button>
        ${item.approval?.decision && html`<p class=${`verdict is-${item.approval.decision}`}>${outcome(item)}</p>`}
        ${item.approval?.decision === "allow" && item.approval.scope === "always" && html`<${Later} load=${madeRule} approval=${item.approval} />`}
        ${item.approval && !item.approval.decision && html`<div class="asks"><${Later} load=${approvalCard} approval=${item.approval} tool=${item.name} session=${session} /></div>`}
        ${item.state === "running" && item.written && html`<${Written} text=${item.written} />`}
        <div id=${panel} class="tool-panel" hidden=${!open}>${open && html`<${Details} item=${item} thread=${thread} />`}</div>
      </div>
    </div>
  `;
});

/** Describe the outcome of an approval request. */
function outcome(item) {
  const { approval } = item;
  const by = approval.by ? ` by ${approval.by === me.author ? "you" : visible(approval.by)}` : "";
  switch (approval.decision) {
    case "allow": {
      const scope = { thread: "Allowed for this conversation", always: "Always allowed" }[approval.scope] || "Allowed once";
      return `${scope}${by}, ${ran(item)}`;
    }
    case "deny":
      return `Denied${by}. The call did not run.`;
    case "expired":
      return "Expired without a decision. The call did not run.";
    case "cancelled":
      return "Cancelled. The call did not run.";
    default:
      return "";
  }
}

function ran(item) {
  const took = item.durationMs ? ` after ${duration(item.durationMs)}` : "";
  switch (item.state) {
    case "done":
      return item.durationMs ? `and ran in ${duration(item.durationMs)}` : "and ran";
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

const approvalCard = () => import("./approval.js").then((found) => found.ApprovalCard);

const madeRule = () => import("./maderule.js").then((found) => found.MadeRule);

/** The end of a running call's output, as plain text. */
function Written({ text }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return html`<pre class="written" ref=${box} tabindex="0" aria-label="Output so far">${visible(text)}</pre>`;
}

const artifact = () => import("./kept.js").then((found) => found.Artifact);

function Details({ item, thread }) {
  const [label, text] = readable(item.arguments);
  const child = CALLING.has(item.name) ? item.output?.match(CHILD)?.[0] : null;
  return html`
    ${item.arguments && html`<${TextBlock} label=${label} text=${text} />`}
    ${item.output !== undefined &&
    html`<${TextBlock} label=${item.state === "failed" ? "Error" : item.state === "interrupted" ? "Output so far" : "Output"} text=${item.output || "(empty)"} />`}
    ${item.output === undefined && html`<p class="faint">No output yet.</p>`}
    ${(item.images || []).map((image) => {
      const address = fileAddress(thread, image.path);
      return address && html`<a class="picture" href=${address} target="_blank" rel="noopener"><img src=${address} alt="Image from the tool" loading="lazy" /></a>`;
    })}
    ${child && html`<p><a href=${`#/t/${encodeURIComponent(child)}`}>The subagent's conversation</a></p>`}
    ${item.artifact && html`<${Later} load=${artifact} thread=${thread} artifact=${item.artifact} name=${item.name} sizeBytes=${item.artifactBytes} />`}
    ${item.taintedBy && html`<p class="faint">Untrusted content: ${item.taintedBy}</p>`}
  `;
}
