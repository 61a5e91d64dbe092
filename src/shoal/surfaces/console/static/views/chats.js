// Choose a chat or a conversation.

import { api } from "../api.js";
import { html, useMemo, useState } from "../dom.js";
import { ago, threadName, visible } from "../format.js";
import { useAnswer } from "./lists.js";

const OWN = { web: "This page", terminal: "Terminal", openai: "API" };
const MATCHES_MAX = 50;

export const platformName = (platform) => OWN[platform] || platform[0].toUpperCase() + platform.slice(1).replaceAll("_", " ");

/** Return a chat's name: "Telegram: Ada", "Discord: #general in Harbor", "This page". `several`: its platform has several chats. */
export function chatName({ platform, channel, people, title, name }, several) {
  if (OWN[platform]) return several ? `${OWN[platform]}: ${visible(channel)}` : OWN[platform];
  return `${platformName(platform)}: ${visible(name || people.join(", ") || title || channel)}`;
}

/** Give chats unique names. Chats with the same name get their channel appended. */
export function named(chats) {
  const alike = (name, key) => chats.filter((chat) => key(chat) === name).length > 1;
  return chats.map((chat) => {
    const name = chatName(chat, alike(chat.platform, (one) => one.platform));
    return { ...chat, name: !OWN[chat.platform] && alike(name, (one) => chatName(one, true)) ? `${name} (${visible(chat.channel)})` : name };
  });
}

export function useChats() {
  const [chats, problem, reload] = useAnswer(api.chats);
  return [useMemo(() => chats && named(chats), [chats]), problem, reload];
}

const hasAll = (name, words) => words.every((word) => name.toLowerCase().includes(word));

export function ThreadPicker({ state, session, value, change }) {
  const [text, setText] = useState("");
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (state.threads || []).filter((info) => !info.thread.startsWith("agent:") && hasAll(`${threadName(info)} ${info.agent}`, words));
  const more = matches.length - MATCHES_MAX;
  return html`
    <div class="picker">
      <label>Find a conversation <input type="search" value=${text} placeholder="Words in the title" onInput=${(event) => setText(event.target.value)} /></label>
      <select name="thread" size="6" required aria-label="Conversations" value=${value} onChange=${(event) => change(event.target.value)}>
        ${matches.slice(0, MATCHES_MAX).map((info) => html`<option key=${info.thread} value=${info.thread}>${`${threadName(info)} · ${ago(info.updated_at)}`}</option>`)}
      </select>
      <p class="faint">
        ${!matches.length ? "No matching conversations. " : more > 0 ? `${MATCHES_MAX} of ${matches.length} conversations. Type to narrow the list. ` : ""}
        ${state.hasOlder && html`<button type="button" class="quiet" onClick=${() => session.loadOlder()}>Load older conversations</button>`}
      </p>
    </div>
  `;
}
