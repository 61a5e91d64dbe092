// From a model's markdown to nodes that cannot do anything: raw HTML is shown as text, links are checked, images are links.

import DOMPurify from "./vendor/dompurify.js";
import { Marked } from "./vendor/marked.js";
import { visible } from "./format.js";

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const HOST = /(?:[\p{L}\p{N}-]+\.)+\p{L}{2,}/giu;
const CLEAN = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li",
    "a", "table", "thead", "tbody", "tr", "th", "td",
  ],
  ALLOWED_ATTR: ["href", "class", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const escapeHtml = (text) => text.replace(/[&<>"']/g, (found) => ENTITIES[found]);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escapeHtml(text),
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6); // the page itself has the first two
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    link({ href, tokens }) {
      const text = this.parser.parseInline(tokens);
      return address(href) ? `<a href="${escapeHtml(href)}">${text}</a>` : text;
    },
    image({ href, text }) {
      const label = escapeHtml(text ? `image: ${text}` : "image");
      return address(href) ? `<a href="${escapeHtml(href)}">${label}</a>` : label;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/** The URL when it is whole and of a kind that may be opened, else null. */
function address(href) {
  try {
    const url = new URL(href);
    return SCHEMES.has(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

/** A document fragment of the text, free of scripts, styles, forms, frames and foreign images. */
export function render(text) {
  let fragment;
  try {
    fragment = DOMPurify.sanitize(marked.parse(text), CLEAN);
  } catch {
    fragment = document.createDocumentFragment(); // a parser that gave up must not hide the words
    fragment.append(text);
  }
  for (const link of fragment.querySelectorAll("a")) dressLink(link);
  for (const block of fragment.querySelectorAll("pre")) dressCode(block);
  for (const table of fragment.querySelectorAll("table")) dressTable(table);
  return fragment;
}

function dressLink(link) {
  const url = address(link.getAttribute("href"));
  if (!url) {
    link.replaceWith(...link.childNodes);
    return;
  }
  link.rel = "noopener noreferrer nofollow";
  link.target = "_blank";
  link.title = visible(url.href);
  if (hostIsHidden(link.textContent, url)) {
    const host = document.createElement("span");
    host.className = "link-host";
    host.textContent = ` (${url.hostname || url.pathname})`;
    link.append(host);
  }
}

/** True when the words of a link name another host than the one it leads to. */
export function hostIsHidden(shown, url) {
  if (url.username || url.password) return true;
  const named = [...shown.matchAll(HOST)].map((found) => found[0].toLowerCase());
  const host = url.protocol === "mailto:" ? url.pathname.split("@").pop() : url.hostname;
  return named.length > 0 && named.some((name) => name !== host.toLowerCase());
}

function dressCode(block) {
  const code = block.querySelector("code") || block;
  const language = /^language-([\w+#.-]{1,20})$/.exec(code.className)?.[1] || "";
  code.removeAttribute("class");
  const frame = document.createElement("div");
  frame.className = "code";
  const label = document.createElement("span");
  label.className = "code-language";
  label.textContent = language;
  block.tabIndex = 0; // a keyboard can scroll it
  block.replaceWith(frame);
  frame.append(label, copyButton(() => code.textContent), block);
}

function dressTable(table) {
  const frame = document.createElement("div");
  frame.className = "table";
  frame.tabIndex = 0;
  table.replaceWith(frame);
  frame.append(table);
}

function copyButton(read) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    button.textContent = (await copyText(read())) ? "Copied" : "Copy failed";
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
  return button;
}

/** Put text on the clipboard; false when the browser refuses. Pages without TLS have only the old way. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "offscreen";
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/**
 * Cut a growing text into pieces that will not change when more comes: at blank lines outside code fences where no
 * list or quote goes on. The pieces joined are the text. Only the last one has to be rendered again.
 */
export function pieces(text) {
  const found = [];
  let from = 0;
  let at = 0;
  let fence = "";
  let blank = false;
  for (const line of text.split("\n")) {
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1];
    if (blank && !fence && /^[^\s>*+\-\d|]/.test(line) && at > from) {
      found.push(text.slice(from, at));
      from = at;
    }
    if (mark && !fence) fence = mark;
    else if (mark && mark[0] === fence[0] && mark.length >= fence.length) fence = "";
    blank = line.trim() === "";
    at += line.length + 1;
  }
  found.push(text.slice(from));
  return found;
}
