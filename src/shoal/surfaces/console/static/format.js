// Format times, numbers and names.

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "narrow" });
const units = [["year", 31_536_000], ["month", 2_592_000], ["day", 86_400], ["hour", 3_600], ["minute", 60]];

/** Format a time relative to now: "5m ago", "in 2h", "now". */
export function ago(iso, nowMs = Date.now()) {
  const seconds = (Date.parse(iso) - nowMs) / 1000;
  if (!Number.isFinite(seconds)) return "";
  for (const [at, [unit, size]] of units.entries()) {
    if (Math.abs(seconds) >= size - (units[at + 1]?.[1] ?? 0) / 2) return relative.format(Math.round(seconds / size), unit);
  }
  return "now";
}

/** Format a short age: "5m", "2h", "3d". */
export function age(iso, nowMs = Date.now()) {
  const seconds = (nowMs - Date.parse(iso)) / 1000;
  if (!Number.isFinite(seconds)) return "";
  const found = units.find(([, size]) => seconds >= size);
  return found ? `${Math.floor(seconds / found[1])}${found[0] === "month" ? "mo" : found[0][0]}` : "now";
}

// Creating a formatter is far slower than using it.
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeStyle: "medium" });

/** Format a time: "14:03" for today, "3 Mar, 14:03" for other days. */
export function clockTime(iso, now = new Date()) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return "";
  const time = CLOCK.format(at);
  return at.toDateString() === now.toDateString() ? time : `${DAY.format(at)}, ${time}`;
}

/** Format the date and time in full, for a tooltip. */
export function fullTime(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? "" : WHOLE.format(at);
}

/** Format a duration: "42 ms", "1.4 s", "12 s", "3 min 5 s". */
export function duration(ms) {
  if (!Number.isFinite(ms) || ms < 0) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Shorten a number: "980", "1.2k", "3.4M". */
export function count(number) {
  const value = number || 0;
  if (value < 1000) return String(value);
  if (value < 999_500) return `${(value / 1000).toFixed(value < 9950 ? 1 : 0)}k`;
  return `${(value / 1_000_000).toFixed(1)}M`;
}

export const files = (number) => `${number.toLocaleString("en")} ${number === 1 ? "file" : "files"}`;

/** Format US dollars. An unknown price is a dash, never 0. */
export function dollars(usd) {
  if (usd === null || usd === undefined) return "–";
  return usd < 0.01 && usd > 0 ? `$${usd.toFixed(4)}` : `$${usd.toFixed(2)}`;
}

export function bytes(size) {
  if (size < 1024) return `${size} B`;
  return size < 1_048_576 ? `${(size / 1024).toFixed(0)} KB` : `${(size / 1_048_576).toFixed(1)} MB`;
}

// A generated id: a ULID, one of the page's own, or hexadecimal digits.
const MADE_ID = /^(?:[0-9A-HJKMNP-TV-Z]{26}|[0-9a-hjkmnp-tv-z]{26}|[0-9a-z]{8,9}-[0-9a-z]{6,16}|[0-9a-f-]{16,})$/;

/** Return a thread's title, or the last part of its id if a person chose that id. */
export function threadName(info, thread = info?.thread || "") {
  if (info?.title) return info.title;
  let name = thread.split(":").slice(2).join(":");
  try {
    name = decodeURIComponent(name);
  } catch {
    // a malformed escape: show it unchanged
  }
  return !name || MADE_ID.test(name) ? "Untitled" : name;
}

/** Compare names in natural order: agent-2 before agent-10. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

export const BRIEF = "daily-brief"; // the name of the schedule that sends the daily brief

export const scheduleName = (name) => (name === BRIEF ? "Daily brief" : name);

/** Remove the sentence that points chat users to this page. */
export const here = (text) => (text || "").replace(" The details are in the console.", "");

/** Return a path for display. A sent file loses its unique id. */
export const shownPath = (path) => visible(path).replace(/^\/?attachments\/[0-9A-HJKMNP-TV-Z]{26}-/, "");

/** Convert a line of Markdown to plain text. */
export const plain = (text) =>
  text
    .replace(/!?\[([^\]]*)\]\([^)\s]*\)|\[\^\w+\]:?/g, "$1")
    .replace(/\[[ x]\]|(?<!\w)[*_~`]+(?=\S)|(?<=\S)[*~`]+|(?<=\S)_+(?!\w)|^\s*(?:[#>]+|[-*+])\s|[|]|:?-{3,}:?/gm, " ")
    .replace(/\s+/g, " ")
    .replace(/ (?=[.,;:!?)])/g, "")
    .trim();

const day = (at) => new Date(at.getFullYear(), at.getMonth(), at.getDate()).getTime();

export function dayGroup(iso, now = new Date()) {
  const days = Math.round((day(now) - day(new Date(iso))) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days <= 7 ? "Last 7 days" : days <= 30 ? "Last 30 days" : "Earlier";
}

/** Format the size of a context window: "128k", "1M". */
export const windowSize = (tokens) => (tokens >= 1_000_000 ? `${+(tokens / 1_000_000).toFixed(1)}M` : `${Math.round(tokens / 1000)}k`);

/** Map a name to one of eight colors. */
export const hueOf = (name) => [...name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 997, 7) % 8;

/** Summarize a call in one line: its main argument, or all of them. */
export function summary(argumentsJson) {
  let parsed;
  try {
    parsed = JSON.parse(argumentsJson || "{}");
  } catch {
    return oneLine(argumentsJson);
  }
  if (parsed === null || typeof parsed !== "object") return oneLine(String(parsed));
  const main = ["command", "path", "file_path", "query", "url", "text", "name"].find((key) => typeof parsed[key] === "string");
  if (main) return oneLine(parsed[main]);
  return oneLine(Object.entries(parsed).map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", "));
}

function oneLine(text) {
  const line = visible(text || "").replace(/\s+/g, " ").trim();
  return line.length > 160 ? `${line.slice(0, 159)}…` : line;
}

/** Return arguments as `[label, text]`: a single text unchanged, anything else as indented JSON. */
export function readable(argumentsJson) {
  try {
    const parsed = JSON.parse(argumentsJson);
    const [[key, value] = [], ...more] = Object.entries(parsed);
    if (!more.length && typeof value === "string") return [key[0].toUpperCase() + key.slice(1), value];
    return ["Arguments", JSON.stringify(parsed, null, 2)];
  } catch {
    return ["Arguments", argumentsJson || ""];
  }
}

// Invisible characters, and characters that change how others look. They could disguise a command.
const hidden =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** Write invisible and direction-changing characters as ⟨U+XXXX⟩. */
export function visible(text) {
  return text.replace(hidden, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// Spaces in a name, except a single space between other characters.
const blank = /[\t\n\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000]|^ | $| (?= )/gu;

/** Write unusual spaces and invisible characters of a name as ⟨U+XXXX⟩. */
export function shownName(name) {
  const written = (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return visible(name).replace(blank, written) || "(empty name)";
}
