// Group the list of threads.

import { dayGroup } from "../format.js";

export const GROUPINGS = [["day", "By day"], ["agent", "By agent"], ["platform", "By platform"]];
const DAYS = ["Today", "Yesterday", "Last 7 days", "Last 30 days", "Earlier"];
const PLATFORMS = { web: "This page", terminal: "Terminal", openai: "API", agent: "Subagents" };

/** Whether `shoal ask` created the thread for a single question. */
export const isAskedOnce = ({ thread }) => thread.startsWith("terminal:ask:");

/**
 * Group threads as `{name, threads, folded}`: pinned ones first, then by day, agent or platform. Single questions from a
 * terminal come last. A subagent's thread is in its caller's group.
 */
export function grouped(threads, by, now = new Date()) {
  const known = new Map(threads.map((info) => [info.thread, info]));
  const nameOf = (info) => {
    const root = rootOf(info, known);
    if (root.pinned) return "Pinned";
    if (isAskedOnce(root)) return "One-off questions";
    if (by === "agent") return root.agent || "No agent yet";
    if (by === "platform") return PLATFORMS[platformOf(root)] || capital(platformOf(root));
    return dayGroup(root.updated_at, now);
  };
  const groups = new Map();
  for (const info of threads) {
    const name = nameOf(info);
    groups.set(name, [...(groups.get(name) || []), info]);
  }
  const rank = (name) => (name === "Pinned" ? -1 : name === "One-off questions" ? 1000 : by === "day" ? DAYS.indexOf(name) : 0);
  return [...groups]
    .map(([name, inside]) => ({ name, threads: inside, folded: name === "One-off questions" }))
    .sort((one, other) => rank(one.name) - rank(other.name));
}

function rootOf(info, known) {
  let root = info;
  for (let up = 0; up < 32 && known.has(root.parent) && root.parent !== root.thread; up += 1) root = known.get(root.parent);
  return root;
}

const platformOf = ({ thread }) => thread.split(":")[0];
const capital = (text) => text[0].toUpperCase() + text.slice(1).replaceAll("_", " ");

/** Return threads as `{info, depth}`, with subagents' threads below their caller if that is listed. */
export function asTree(threads) {
  const known = new Set(threads.map((info) => info.thread));
  const below = new Map();
  for (const info of threads) {
    const parent = known.has(info.parent) && info.parent !== info.thread ? info.parent : "";
    below.set(parent, [...(below.get(parent) || []), info]);
  }
  const walk = (parent, depth) => (below.get(parent) || []).flatMap((info) => [{ info, depth }, ...walk(info.thread, depth + 1)]);
  return walk("", 0);
}
