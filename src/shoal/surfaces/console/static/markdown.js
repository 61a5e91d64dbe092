// From a model's markdown to nodes that cannot do anything: raw HTML is shown as text, links are checked, images from
// elsewhere are links. Only pictures of the thread and of its agent are shown.

import "./vendor/purify.min.js";
import { Marked } from "./vendor/marked.js";
import { pictureAddress } from "./api.js";
import { copyText } from "./clipboard.js";
import { visible } from "./format.js";

const { DOMPurify } = globalThis;

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const HOST = /(?:[\p{L}\p{N}-]+\.)+\p{L}{2,}/giu;
const CLEAN = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li",
    "a", "table", "thead", "tbody", "tr", "th", "td", "span", "sup", "section",
  ],
  ALLOWED_ATTR: ["href", "class", "start", "align", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "start", "title"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const escapeHtml = (text) => text.replace(/[&<>"']/g, (found) => ENTITIES[found]);

const PICTURE = /^(?![a-z][a-z0-9+.-]*:|\/\/)[^?#]+\.(?:png|jpe?g|gif|webp|avif)$/i; // a path, not a URL

// ---- what GitHub's markdown has beside marked's: formulas and footnotes ----

const blockMath = {
  name: "blockMath",
  level: "block",
  start: (text) => text.match(/\$\$|\\\[/)?.index,
  tokenizer(text) {
    const found = /^ {0,3}(?:\$\$([^]{1,4000}?)\$\$|\\\[([^]{1,4000}?)\\\])[ \t]*(?:\n|$)/.exec(text);
    return found ? { type: "blockMath", raw: found[0], text: (found[1] ?? found[2]).trim() } : undefined;
  },
  renderer: ({ text }) => `<pre class="math">${escapeHtml(text)}</pre>`,
};

const inlineMath = {
  name: "inlineMath",
  level: "inline",
  start: (text) => text.match(/\$|\\\(/)?.index,
  tokenizer(text) {
    // a dollar before a space or after one, or before a digit, is money
    const found = /^(?:\$\$([^\n]{1,2000}?)\$\$|\$(?![\s$])((?:\\.|[^\\$\n]){1,1000}?)(?<!\s)\$(?!\w)|\\\(([^\n]{1,1000}?)\\\))/.exec(text);
    return found ? { type: "inlineMath", raw: found[0], text: (found[1] ?? found[2] ?? found[3]).trim() } : undefined;
  },
  renderer: ({ text }) => `<code class="math">${escapeHtml(text)}</code>`,
};

let notes = []; // of the text that is rendered now: {id, html}, in the order of their numbers

function numberOf(id) {
  const at = notes.findIndex((note) => note.id === id);
  return at < 0 ? notes.push({ id, html: null }) : at + 1;
}

const noteRef = {
  name: "noteRef",
  level: "inline",
  start: (text) => text.match(/\[\^/)?.index,
  tokenizer(text) {
    const found = /^\[\^([^\]\s]{1,40})\]/.exec(text);
    return found ? { type: "noteRef", raw: found[0], id: found[1] } : undefined;
  },
  renderer: ({ id }) => `<sup class="note-ref">${numberOf(id)}</sup>`,
};

const noteText = {
  name: "noteText",
  level: "block",
  start: (text) => text.match(/^ {0,3}\[\^[^\]\s]{1,40}\]:/m)?.index,
  tokenizer(text) {
    const found = /^ {0,3}\[\^([^\]\s]{1,40})\]:[ \t]*([^\n]*(?:\n[ \t]+[^\n]+)*)(?:\n+|$)/.exec(text);
    return found ? { type: "noteText", raw: found[0], id: found[1], tokens: this.lexer.inlineTokens(found[2]) } : undefined;
  },
  renderer({ id, tokens }) {
    notes[numberOf(id) - 1].html = this.parser.parseInline(tokens);
    return "";
  },
};

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [blockMath, inlineMath, noteRef, noteText],
  hooks: {
    /** A document's first level of headings comes after the page's own two, whichever it is. */
    processAllTokens(tokens) {
      const headings = tokens.filter((token) => token.type === "heading");
      const least = Math.min(...headings.map((token) => token.depth));
      for (const token of headings) token.depth -= least - 1;
      return tokens;
    },
  },
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
      if (PICTURE.test(href)) return `<span class="own-picture" title="${escapeHtml(href)}">${label}</span>`;
      return address(href) ? `<a href="${escapeHtml(href)}">${label}</a>` : label;
    },
    checkbox: ({ checked }) => `<span class="check${checked ? " is-done" : ""}">${checked ? "☑" : "☐"}</span> `,
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

/**
 * A document fragment of the text, free of scripts, styles, forms, frames and foreign images. Of a `thread` the pictures
 * are shown; `live` is a text that grows, which is neither coloured nor typeset yet.
 */
export function render(text, { thread = "", live = false } = {}) {
  let fragment;
  notes = [];
  try {
    const body = marked.parse(text);
    const listed = notes.map(({ html }) => `<li>${html ?? ""}</li>`).join("");
    fragment = DOMPurify.sanitize(listed ? `${body}<section class="notes"><ol>${listed}</ol></section>` : body, CLEAN);
  } catch {
    fragment = document.createDocumentFragment(); // a parser that gave up must not hide the words
    fragment.append(text);
  }
  dressNotes(fragment);
  for (const link of fragment.querySelectorAll("a")) dressLink(link);
  for (const formula of fragment.querySelectorAll(".math")) dressFormula(formula, live);
  for (const block of fragment.querySelectorAll("pre:not(.math)")) dressCode(block, live);
  for (const table of fragment.querySelectorAll("table")) dressTable(table);
  for (const picture of fragment.querySelectorAll(".own-picture")) dressPicture(picture, thread);
  return fragment;
}

/** Numbers lead to their notes and back; one without a note is shown as it was written. */
function dressNotes(fragment) {
  const list = fragment.querySelector("section.notes");
  const items = [...(list?.querySelectorAll("ol > li") || [])];
  const button = (words, label, target) => {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "note-link";
    made.textContent = words;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", () => {
      target.scrollIntoView({ block: "center" });
      target.tabIndex = -1;
      target.focus();
    });
    return made;
  };
  for (const ref of fragment.querySelectorAll("sup.note-ref")) {
    const number = Number(ref.textContent);
    if (notes[number - 1]?.html == null) ref.replaceWith(`[^${notes[number - 1]?.id ?? number}]`);
    else {
      ref.replaceChildren(button(String(number), `Note ${number}`, items[number - 1]));
      if (!items[number - 1].querySelector(".note-link")) items[number - 1].append(" ", button("↩", "Back to the text", ref));
    }
  }
  notes.forEach(({ html }, at) => (html === null ? items[at]?.remove() : (items[at].value = at + 1)));
  if (list && notes.every(({ html }) => html === null)) list.remove();
}

function dressFormula(formula, live) {
  const isBlock = formula.localName === "pre";
  const box = document.createElement(isBlock ? "div" : "span");
  box.className = isBlock ? "formula is-block" : "formula";
  box.textContent = formula.textContent;
  if (isBlock) box.tabIndex = 0; // a keyboard can scroll it
  formula.replaceWith(box);
  if (!live) import("./maths.js").then(({ typeset }) => typeset(box, isBlock), () => {});
}

/** A picture of the thread or of its agent's workspace is shown, if the server finds one by its path. */
function dressPicture(picture, thread) {
  const path = decoded(picture.title);
  const label = picture.textContent.replace(/^image(?:: )?/, "");
  if (!thread) {
    picture.replaceWith(picture.textContent);
    return;
  }
  const link = document.createElement("a");
  link.className = "picture";
  link.href = pictureAddress(thread, path);
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  const image = document.createElement("img");
  image.src = link.href;
  image.alt = label || path;
  image.loading = "lazy";
  image.addEventListener("error", () => link.replaceWith(`${label || path} (this picture is not there)`));
  link.append(image);
  picture.replaceWith(link);
}

function decoded(path) {
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
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

function dressCode(block, live) {
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
  if (language && !live) import("./code.js").then(({ colour }) => colour(code, language), () => {});
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
