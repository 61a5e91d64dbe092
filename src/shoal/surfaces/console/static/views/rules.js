// Permission rules in words, with their patterns on demand.

import { api } from "../api.js";
import { html } from "../dom.js";
import { visible } from "../format.js";

export const LISTS = { deny: "Denied", allow: "Runs without asking", ask: "Asks for approval", trusted_allow: "No extra approval after untrusted content" };

export const DECISIONS = { allow: "runs", ask: "asks", deny: "denied" };

/** Descriptions of calls without a rule, by effect. The texts are the same as in `shoal.permissions.effects`. */
const EFFECTS = {
  read: "reading the agent's own folders and memory, this conversation, the web and MCP servers",
  contained: "changes that /undo can revert, and commands in a sandbox without network access",
  outward: "calls that send something outside this machine or this conversation",
  lasting: "changes that /undo cannot revert",
  unknown: "calls with an unknown effect, such as commands without a sandbox",
};
const WORDS_BY_EFFECT = Object.entries(EFFECTS).flatMap(([effect, words]) => ["allow", "ask"].map((decision) => [`${decision} effect ${effect}`, words]));

/** Load all rules as `{profiles, own}`. */
export const allRules = () => Promise.all([api.profiles(), api.ownRules()]).then(([profiles, own]) => ({ profiles, own }));

/** Map `LIST PATTERN`, the form in API responses and the audit log, to the rules' descriptions. */
export const wordsByRule = ({ profiles, own }) =>
  new Map([...WORDS_BY_EFFECT, ...[...profiles.flatMap((profile) => profile.rules), ...own].map((rule) => [`${rule.list} ${rule.pattern}`, rule.words])]);

/** A rule's description, with its pattern on demand. */
export const Rule = ({ rule, words }) => html`
  <details class="rule">
    <summary>${words ? visible(words) : html`<code class="breakable">${visible(rule)}</code>`}</summary>
    <code class="breakable">${visible(rule)}</code>
  </details>
`;
