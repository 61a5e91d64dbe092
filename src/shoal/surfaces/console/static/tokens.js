// Our Markdown's differences from CommonMark, the same as in `shoal/markdown/parse.py`. URLs, paths and chat platforms'
// tokens are read before emphasis. Emphasis works next to Chinese, Japanese and Korean characters
// (github.com/tats-u/markdown-cjk-friendly, specification.md). A link definition takes one line.

const NATIVE =
  "<(?:@[!&]?[0-9]{1,20}|@[UW][A-Z0-9]{1,40}(?:\\|[^<>|\\n]{1,80})?|#[0-9]{1,20}|#[CG][A-Z0-9]{1,40}(?:\\|[^<>|\\n]{0,80})?" +
  "|a?:[A-Za-z0-9_]{1,64}:[0-9]{1,20}|/[^<>:\\n]{1,100}:[0-9]{1,20}|t:-?[0-9]{1,17}(?::[A-Za-z])?" +
  "|id:[a-z]{1,20}|![a-z]{1,20}(?:\\^[^<>\\n]{1,300})?(?:\\|[^<>\\n]{1,200})?|users/[^<>\\s]{1,100})>";
const URL_ =
  "(?:https?://|(?<![A-Za-z0-9])(?:[A-Za-z][A-Za-z0-9+.\\-]{1,31}://|(?:mailto|matrix|magnet|tel|xmpp|sip):(?=[A-Za-z0-9+?@])))" +
  "(?:\\\\[!-/:-@\\[-`{-~]|[^\\s<>\"`\\\\\\u200b\\u3000-\\u303f\\uff01-\\uff0f\\uff1a-\\uff20\\uff3b-\\uff40\\uff5b-\\uff65]){1,4000}";
const EMAIL =
  "(?<![\\p{L}\\p{N}_.+\\-])[A-Za-z0-9][A-Za-z0-9._%+\\-]{0,63}@[A-Za-z0-9\\-]{1,63}(?:\\.[A-Za-z0-9\\-]{1,63}){1,8}(?![\\p{L}\\p{N}_]|://)";
const MENTION =
  "(?<![\\p{L}\\p{N}_/])[@!#][A-Za-z0-9_.=\\-]{1,64}:[A-Za-z0-9.\\-]{1,120}(?![\\p{L}\\p{N}_])|(?<![\\p{L}\\p{N}_])@[A-Za-z0-9_]{1,64}(?![A-Za-z0-9_]|://)";
const SHORTCODE = "(?<![\\p{L}\\p{N}_:]):[a-z0-9_+\\-]{2,64}:(?![\\p{L}\\p{N}_:]|//)";
const WORD = "[^\\s<>\"'`|()\\[\\]{},;!?\\u200b\\u2018-\\u201f\\u2060\\u2e80-\\uffff]{2,512}";
const TOKENS = new RegExp(`(${NATIVE})|(${URL_})|(${EMAIL})|(${MENTION})|(${SHORTCODE})|(${WORD})`, "gu");
const DEFINITION =
  /^ {0,3}\[((?:\\.|[^\[\]\\\n]){1,999})\]:[ \t]*(?:<((?:\\.|[^<>\\\n])+)>|([^\s<]\S*))(?:[ \t]+(?:"((?:\\.|[^"\\\n])*)"|'((?:\\.|[^'\\\n])*)'|\(((?:\\.|[^()\\\n])*)\)))?[ \t]*(?:\n+|$)/;
const ESCAPE = /\\([!-/:-@[-`{-~])/g;
const OPENING = { ")": "(", "]": "[", "}": "{" };

/** Return the link definition at the beginning of a text, `[label]: address "title"` on one line, or null. */
export function definitionIn(text) {
  const found = DEFINITION.exec(text);
  if (!found || found[1].startsWith("^") || !found[1].trim()) return null;
  const plain = (written) => written.replace(ESCAPE, "$1");
  const href = plain(found[2] ?? found[3]);
  if (/^(?:vbscript|javascript|file|data):/i.test(href) && !/^data:image\/(?:gif|png|jpeg|webp);/i.test(href)) return null;
  const label = found[1].trim().replace(/\s+/g, " ").toLowerCase();
  return { raw: found[0], label, href, title: plain(found[4] ?? found[5] ?? found[6] ?? "") };
}

/** Find a paragraph's URLs, paths and platform tokens, in order, with their positions. */
export function tokensIn(text) {
  const found = [];
  let marksSeen = "";
  let lookedAt = 0;
  let at = 0;
  for (;;) {
    TOKENS.lastIndex = at;
    const match = TOKENS.exec(text);
    if (!match) return found;
    const start = match.index;
    let end = start + match[0].length;
    for (const mark of "*_~") {
      const seen = marksSeen.includes(mark) ? -1 : text.indexOf(mark, lookedAt);
      if (seen >= 0 && seen < start) marksSeen += mark;
    }
    lookedAt = start;
    at = end;
    if (match[2] !== undefined) {
      end = urlEnd(text, start, end, marksSeen);
      at = Math.max(end, start + 1);
      const url = text.slice(start, end);
      if (url && !url.endsWith("://") && !url.endsWith(":")) found.push({ start, end, text: unescaped(url), isUrl: true });
    } else if (match[6] !== undefined) {
      const inner = pathIn(text, start, end);
      if (inner) {
        at = inner.end;
        found.push({ ...inner, text: text.slice(inner.start, inner.end), isUrl: false });
      } else at = nextWord(text, start, end);
    } else found.push({ start, end, text: match[0], isUrl: false });
  }
}

const unescaped = (url) => url.replace(/\\([!-/:-@[-`{-~])/g, "$1").replaceAll("&amp;", "&");

/** Return where to continue after a word that is not a path. Another token may begin within the word or after its marks. */
function nextWord(text, start, end) {
  for (const [sign, others] of [["://", "+.-"], ["@", "+.-_%"]]) {
    const at = text.indexOf(sign, start);
    if (at <= start || at > end) continue;
    const before = text.slice(start, at);
    if (sign === "://" && (before.endsWith("http") || before.endsWith("https"))) {
      return Math.max(start + 1, at - (before.endsWith("s") ? 5 : 4));
    }
    let head = at;
    while (head > start && (/[A-Za-z0-9]/.test(text[head - 1]) || others.includes(text[head - 1]))) head -= 1;
    if (start < head && head < at) return head;
  }
  const marks = /^[*~_]*/.exec(text.slice(start, end))[0].length;
  return marks && start + marks < end ? start + marks : end;
}

/** Return the end of a URL, excluding the sentence's punctuation and marks that close emphasis. */
function urlEnd(text, start, end, marksSeen) {
  const opener = start ? text[start - 1] : "";
  if (opener === "*" || opener === "~") {
    const closing = text.indexOf(start > 1 && text[start - 2] === opener ? opener + opener : opener, start);
    if (closing > 0 && closing < end) end = closing;
  }
  const depth = { "(": 0, "[": 0, "{": 0 };
  for (let at = start; at < end; at += 1) {
    const character = text[at];
    if (character in depth) depth[character] += 1;
    else if (character in OPENING && (depth[OPENING[character]] -= 1) < 0) end = at;
  }
  while (end > start && "?!.,:;'*_~)]}".includes(text[end - 1])) {
    const last = text[end - 1];
    if (("*_~".includes(last) && !marksSeen.includes(last)) || last in OPENING) break;
    end -= 1;
  }
  return end;
}

/** Return the path in a word, without the marks around it, or null if the word is not a path or has no marks. */
function pathIn(text, start, end) {
  let word = text.slice(start, end);
  if (text.slice(start, end + 3).includes("://") || !/[*_~\\]/.test(word)) return null;
  let stripped = word.replace(/^[*~]+|[*~]+$/g, "");
  start += word.length - word.replace(/^[*~]+/, "").length;
  const isCalled = text[end] === "(";
  const run = stripped.startsWith("__") ? "__" : stripped.startsWith("_") ? "_" : "";
  if (run && !isCalled && !stripped.replace(/^_+|_+$/g, "").replace(/[_.:]+$/, "").includes(run)) {
    start += stripped.length - stripped.replace(/^_+/, "").length;
    stripped = stripped.replace(/^_+|_+$/g, "");
  }
  word = stripped.replace(/[.:]+$/, "");
  const found = { start, end: start + word.length };
  if (/^[A-Za-z]:\\/.test(word)) return found;
  if (word.includes("\\") || word.includes("~~")) return null;
  const isGlob = [...word.matchAll(/\*+/g)].every((stars) => {
    const after = word[stars.index + stars[0].length];
    return (stars.index === 0 || word[stars.index - 1] === "/") && (after === undefined || after === "/" || after === ".");
  });
  const isName = /[\p{L}\p{N}_]\.[\p{L}\p{N}_]/u.test(word) || (isCalled && /[^_]/.test(word));
  const isDunder = word.includes("__") && !word.includes("*") && isName;
  return (word.includes("/") && isGlob) || isDunder ? found : null;
}

// ---- emphasis ----

const CJK =
  /[\u1100-\u11ff\u20a9\u2329\u232a\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe10-\ufe19\ufe30-\ufe6f\uff01-\uffee\u{16fe0}-\u{18df2}\u{1aff0}-\u{1b2fb}\u{1f200}-\u{1f265}\u{20000}-\u{3fffd}]/u;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const DELIMITERS = /\*+|_+|~~(?!~)/gu;

const characterBefore = (text, at) => {
  const last = text.slice(Math.max(0, at - 4), at).replace(/[\ufe00-\ufe0e\u{e0100}-\u{e01ef}]$/u, "");
  return [...last].pop() ?? " ";
};
const characterAfter = (text, at) => (at < text.length ? String.fromCodePoint(text.codePointAt(at)) : " ");

function flanks(text, start, end, withinWords) {
  const [before, after] = [characterBefore(text, start), characterAfter(text, end)];
  if (/\s/u.test(before) || /\s/u.test(after)) return [!/\s/u.test(after), !/\s/u.test(before)];
  const [punctuationBefore, punctuationAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
  if (!withinWords) return [punctuationBefore, punctuationAfter];
  const byCjk = CJK.test(before) || CJK.test(after);
  return [punctuationBefore || byCjk || !punctuationAfter, punctuationAfter || byCjk || !punctuationBefore];
}

/**
 * Find the marks that open and close emphasis in a paragraph, by CommonMark's algorithm in linear time. `masked` is the
 * paragraph with overwritten parts where marks do not count. Returns a map from the start of each styled part to
 * `{kind, marks, end}`, outermost first.
 */
export function emphasisIn(masked) {
  const runs = [];
  for (const found of masked.matchAll(DELIMITERS)) {
    const mark = found[0][0];
    const end = found.index + found[0].length;
    if (mark === "~" && masked[found.index - 1] === "~") continue;
    const [canOpen, canClose] = flanks(masked, found.index, end, mark !== "_");
    runs.push({ mark, start: found.index, end, length: found[0].length, canOpen, canClose });
  }
  const pairs = new Map();
  const stack = [];
  const bottoms = new Map();
  for (const closer of runs) {
    while (closer.canClose && closer.end > closer.start) {
      const key = `${closer.mark}${closer.length % 3}${closer.canOpen}`;
      const bottom = bottoms.get(key) ?? 0;
      let at = stack.length - 1;
      for (; at >= bottom; at -= 1) {
        const opener = stack[at];
        const isOdd = (opener.canClose || closer.canOpen) && (opener.length + closer.length) % 3 === 0;
        const bothThirds = opener.length % 3 === 0 && closer.length % 3 === 0;
        if (opener.mark === closer.mark && (closer.mark === "~" || !isOdd || bothThirds)) break;
      }
      if (at < bottom) {
        bottoms.set(key, stack.length);
        break;
      }
      const opener = stack[at];
      stack.length = at + 1;
      const marks = closer.mark === "~" || (opener.end - opener.start >= 2 && closer.end - closer.start >= 2) ? 2 : 1;
      opener.end -= marks;
      pairs.set(opener.end, { kind: closer.mark === "~" ? "del" : marks === 2 ? "strong" : "em", marks, end: closer.start + marks });
      closer.start += marks;
      if (opener.end === opener.start) stack.pop();
      for (const [one, low] of bottoms) if (low > stack.length) bottoms.set(one, stack.length);
    }
    if (closer.canOpen && closer.end > closer.start) stack.push(closer);
  }
  return pairs;
}
