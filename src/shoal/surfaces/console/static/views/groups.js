// Group the list of threads. Pure.

import { dayGroup } from "../format.js";

export const GROUPINGS = [["day", "By day"], ["agent", "By agent"], ["platform", "By platform"]];
const DAYS = ["Today", "Yesterday", "Last 7 days", "Last 30 days", "Earlier"];
const PLATFORMS = { web: "This page", terminal: "Terminal", openai: "API", agent: "Subagents" };

/** Whether a thread is a single question of `shoal ask`. */
export const isAskedOnce = ({ thread }) => thread.startsWith("terminal:ask:");

/**
 * The threads in groups `{name, threads, folded}`: pinned ones first, then by day, agent or platform, and single questions
 * from a terminal last. A subagent's thread is in its caller's group.
 */
export function grouped(threads, by, now = new Date()) {
  const known = new Map(threads.map((info) => [info.thread, info]));
  const nameOf = (info) => {
    const root = rootOf(info, known);
    if (root.pinned) return "Pinned";
    if (isAskedOnce(root)) return "Asked once";
    if (by === "agent") return root.agent || "No agent yet";
    if (by === "platform") return PLATFORMS[platformOf(root)] || capital(platformOf(root));
    return dayGroup(root.updated_at, now);
  };
  const groups = new Map();
  for (const info of threads) {
    const name = nameOf(info);
    groups.set(name, [...(groups.get(name) || []), info]);
  }
  const rank = (name) => (name === "Pinned" ? -1 : name === "Asked once" ? 1000 : by === "day" ? DAYS.indexOf(name) : 0);
  return [...groups]
    .map(([name, inside]) => ({ name, threads: inside, folded: name === "Asked once" }))
    .sort((one, other) => rank(one.name) - rank(other.name));
}

function rootOf(info, known) {
  let root = info;
  for (let up = 0; up < 32 && known.has(root.parent) && root.parent !== root.thread; up += 1) root = known.get(root.parent);
  return root;
}

const platformOf = ({ thread }) => thread.split(":")[0];
const capital = (text) => text[0].toUpperCase() + text.slice(1).replaceAll("_", " ");

/** Subagents' threads below their caller, as `{info, depth}`; without its caller in the list, a thread is at the top level. */
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
