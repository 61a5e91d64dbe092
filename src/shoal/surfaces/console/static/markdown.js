// Render a model's Markdown as safe nodes. Raw HTML is shown as text, and links are checked. Pictures are shown only if they
// belong to the thread or its agent. Other images become links.

import "./vendor/purify.min.js";
import { Marked, Tokenizer } from "./vendor/marked.js";
import { pictureAddress } from "./api.js";
import { copyText } from "./clipboard.js";
import { visible } from "./format.js";
import { definitionIn, emphasisIn, tokensIn } from "./tokens.js";

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

const WINDOW = 500;

/** Return the first position of one of the signs. The lookahead is short because marked calls this for every piece of text. */
function firstOf(text, ...signs) {
  const near = text.slice(0, WINDOW);
  const found = signs.map((sign) => near.indexOf(sign)).filter((at) => at >= 0);
  return found.length ? Math.min(...found) : text.length > WINDOW ? WINDOW - 2 : undefined;
}

// ---- GitHub's additions to Markdown: formulas and footnotes ----

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
  start: (text) => firstOf(text, "$", "\\("),
  tokenizer(text) {
    // a dollar sign next to a space or before a digit is money
    const found = /^(?:\$\$([^\n]{1,2000}?)\$\$|\$(?![\s$])((?:\\.|[^\\$\n]){1,1000}?)(?<!\s)\$(?!\w)|\\\(([^\n]{1,1000}?)\\\))/.exec(text);
    return found ? { type: "inlineMath", raw: found[0], text: (found[1] ?? found[2] ?? found[3]).trim() } : undefined;
  },
  renderer: ({ text }) => `<code class="math">${escapeHtml(text)}</code>`,
};

// ---- our additions to CommonMark: tokens, and emphasis next to CJK characters ----

const KEPT = /\ue000(\d+)\ue001/g;
const KEPT_START = /^\ue000(\d+)\ue001/;
const MARKS_MAX = 1000; // per block; marked takes quadratic time, so a block with more marks has no emphasis
let kept = []; // tokens with marks in the current text

/** Replace each token that contains marks with a placeholder, except in a link's URL. */
function withTokensKept(text) {
  let out = "";
  let at = 0;
  const numbers = new Map(); // equal tokens share a number: a link's label must match its definition
  for (const token of tokensIn(text)) {
    const before = text.slice(Math.max(0, token.start - 2), token.start);
    if (!/[*_~]/.test(token.text) || before.endsWith("](") || (token.isUrl && before.endsWith("<"))) continue;
    const raw = text.slice(token.start, token.end);
    if (!numbers.has(raw)) numbers.set(raw, kept.push({ ...token, raw }) - 1);
    out += `${text.slice(at, token.start)}\ue000${numbers.get(raw)}\ue001`;
    at = token.end;
  }
  return out + text.slice(at);
}

const restored = (html) => html.replace(KEPT, (whole, number) => (kept[number] ? escapeHtml(kept[number].raw) : whole));
const restoredText = (text) => text.replace(KEPT, (whole, number) => kept[number]?.raw ?? whole);

/** Escape the marks of blocks with too many of them. */
function tamed(text) {
  return text
    .split(/(\n[ \t]*\n)/)
    .map((block) => {
      const marks = block.length > MARKS_MAX ? (block.match(/[*_~[\]<$`\\]/g) ?? []).length : 0;
      return marks > MARKS_MAX ? block.replace(/[*_~[\]<$`\\!(]/g, (mark) => ENTITIES_OF_MARKS[mark]) : block;
    })
    .join("");
}
const ENTITIES_OF_MARKS = Object.fromEntries([..."*_~[]<$`\\!("].map((mark) => [mark, `&#${mark.codePointAt(0)};`]));

const token = {
  name: "token",
  level: "inline",
  start: (text) => firstOf(text, "\ue000"),
  tokenizer(text) {
    const found = KEPT_START.exec(text);
    return found && kept[found[1]] ? { type: "token", raw: found[0], number: found[1], isInLink: this.lexer.state.inLink } : undefined;
  },
  renderer({ number, isInLink }) {
    const { text, isUrl } = kept[number];
    return isUrl && !isInLink && address(text) ? `<a href="${escapeHtml(text)}">${escapeHtml(text)}</a>` : escapeHtml(text);
  },
};

let pairs = { masked: null, found: null };

/** Return the styled part that begins here in the current paragraph. */
function styledPart(lexer, text, masked) {
  if (pairs.masked !== masked) pairs = { masked, found: emphasisIn(masked) };
  const pair = pairs.found.get(masked.length - text.length);
  if (!pair) return undefined;
  const raw = text.slice(0, pair.end - (masked.length - text.length));
  const inner = raw.slice(pair.marks, -pair.marks);
  const before = pairs;
  const tokens = lexer.inlineTokens(inner);
  pairs = before;
  return { type: pair.kind, raw, text: inner, tokens };
}

let notes = []; // the current text's footnotes as {id, html}, ordered by number

function numberOf(id) {
  const at = notes.findIndex((note) => note.id === id);
  return at < 0 ? notes.push({ id, html: null }) : at + 1;
}

const noteRef = {
  name: "noteRef",
  level: "inline",
  start: (text) => firstOf(text, "[^"),
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

/** Look up a link's label and mark its definition as used. */
function referred(links, label) {
  const found = Object.hasOwn(links, label) ? links[label] : undefined;
  if (found) found.isReferred = true;
  return found;
}

/** Break lines at `<br>` in table cells. Markdown has no other line break there. */
function breakLines(tokens) {
  for (const token of tokens ?? []) {
    if (token.type === "html" && /^<br[ \t]{0,9}\/?>$/i.test(token.raw)) token.type = "br";
    breakLines(token.tokens);
  }
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [blockMath, inlineMath, noteRef, noteText, token],
  tokenizer: {
    emStrong(text, masked) {
      return styledPart(this.lexer, text, masked);
    },
    del(text, masked) {
      return styledPart(this.lexer, text, masked);
    },
    def(text) {
      const found = definitionIn(text);
      const isFirst = found && !Object.hasOwn(this.lexer.tokens.links, found.label);
      return isFirst ? { type: "def", tag: found.label, raw: found.raw, href: found.href, title: found.title } : undefined;
    },
    reflink(text, links) {
      return Tokenizer.prototype.reflink.call(this, text, new Proxy(links, { get: referred }));
    },
  },
  hooks: {
    /** Shift headings below the page's own two levels. */
    processAllTokens(tokens) {
      const headings = tokens.filter((token) => token.type === "heading");
      const least = Math.min(...headings.map((token) => token.depth));
      for (const token of headings) token.depth -= least - 1;
      marked.walkTokens(tokens, (token) => {
        if (token.type === "def") token.isReferred = tokens.links[token.tag]?.isReferred;
        if (token.type === "table") for (const cell of [token.header, ...token.rows].flat()) breakLines(cell.tokens);
      });
      return tokens;
    },
  },
  renderer: {
    html: ({ text }) => escapeHtml(text),
    def: ({ raw, isReferred }) => (isReferred ? "" : `<p>${escapeHtml(raw.trim())}</p>`),
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6); // the page itself has the first two
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    link({ href: written, tokens }) {
      const href = restoredText(written);
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

/** Return the URL if it is complete and has an allowed scheme, otherwise null. */
function address(href) {
  try {
    const url = new URL(href);
    return SCHEMES.has(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

/** Render text as a document fragment without scripts, styles, forms, frames or foreign images. With `thread`, its pictures
 * are shown. A `live` text grows, so it is neither highlighted nor typeset. Links in a `draft` are inactive, because their
 * origins are known only when the reply is complete.
 */
export function render(text, { thread = "", live = false, draft = false } = {}) {
  let fragment;
  notes = [];
  try {
    kept = [];
    const body = restored(marked.parse(tamed(withTokensKept(text))));
    const listed = notes.map(({ html }) => `<li>${restored(html ?? "")}</li>`).join("");
    fragment = DOMPurify.sanitize(listed ? `${body}<section class="notes"><ol>${listed}</ol></section>` : body, CLEAN);
  } catch {
    fragment = document.createDocumentFragment(); // a failing parser must not hide the text
    fragment.append(text);
  }
  dressNotes(fragment);
  for (const link of fragment.querySelectorAll("a")) draft ? link.replaceWith(...link.childNodes) : dressLink(link);
  for (const formula of fragment.querySelectorAll(".math")) dressFormula(formula, live);
  for (const block of fragment.querySelectorAll("pre:not(.math)")) dressCode(block, live);
  for (const table of fragment.querySelectorAll("table")) dressTable(table);
  for (const picture of fragment.querySelectorAll(".own-picture")) dressPicture(picture, thread);
  return fragment;
}

/** Link footnote numbers to their notes and back. A number without a note is shown as written. */
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
  if (isBlock) box.tabIndex = 0; // makes it scrollable by keyboard
  formula.replaceWith(box);
  if (!live) import("./maths.js").then(({ typeset }) => typeset(box, isBlock), () => {});
}

/** Show a picture of the thread or of its agent's workspace, if the server finds it by its path. */
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
  image.addEventListener("error", () => link.replaceWith(`${label || path} (picture not found)`));
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

/** Whether a link's text names a different host than its URL. */
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
  block.tabIndex = 0; // makes it scrollable by keyboard
  block.replaceWith(frame);
  frame.append(label, copyButton(() => code.textContent), block);
  if (language && !live) import("./code.js").then(({ color }) => color(code, language), () => {});
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
