// Permission rules as people read them: what a rule is about in words, with its pattern behind them.

import { api } from "../api.js";
import { html } from "../dom.js";
import { visible } from "../format.js";

export const LISTS = { deny: "Refused", allow: "Runs without a question", ask: "A person is asked", trusted_allow: "Runs even after untrusted content" };

/** What a decision of the rules is called. */
export const DECISIONS = { allow: "runs", ask: "asks", deny: "refused" };

/** Calls that no rule names, by what they reach: the words of `shoal.permissions.effects`. */
const EFFECTS = {
  read: "reading its own folders, memory, this conversation, the web and MCP servers",
  contained: "changes that /undo takes back, and commands in a sandbox without network",
  outward: "calls that leave this machine or this conversation",
  lasting: "changes that /undo does not take back",
  unknown: "calls whose effect nobody knows, such as commands without a sandbox",
};
const WORDS_BY_EFFECT = Object.entries(EFFECTS).flatMap(([effect, words]) => ["allow", "ask"].map((decision) => [`${decision} effect ${effect}`, words]));

/** All rules there are: `{profiles, own}`. */
export const allRules = () => Promise.all([api.profiles(), api.ownRules()]).then(([profiles, own]) => ({ profiles, own }));

/** What rules are about, by the list and pattern that answers and the audit log name them by. Pure. */
export const wordsByRule = ({ profiles, own }) =>
  new Map([...WORDS_BY_EFFECT, ...[...profiles.flatMap((profile) => profile.rules), ...own].map((rule) => [`${rule.list} ${rule.pattern}`, rule.words])]);

/** A rule in words, which unfold to its pattern. */
export const Rule = ({ rule, words }) => html`
  <details class="rule">
    <summary>${words ? visible(words) : html`<code class="breakable">${visible(rule)}</code>`}</summary>
    <code class="breakable">${visible(rule)}</code>
  </details>
`;
