// Settings and actions that the search finds, with their keywords.

import { prefer } from "./preferences.js";
import { PLACES } from "./views/shell.js";

/** Words that a search ignores. */
const FILLERS = new Set("a an the i my me it this that to of for in on at is are be do does can how what where which when with and or not don dont set add make get show find open see turn use change edit configure".split(" "));

/** Return the stem of a word: "ask" for "asking", "pric" for "prices". */
export function stem(word) {
  const bare = word.replace(/(?:ing|ed|es|er|s)$/, "");
  if (bare.length < 3 || bare === word) return word;
  return bare.at(-1) === bare.at(-2) && bare.length > 3 ? bare.slice(0, -1) : bare;
}

/** Return the meaningful words of a query, or all words if none is meaningful. */
export function meaningful(text) {
  const words = text.toLowerCase().split(/[^\p{L}\p{N}/#@._-]+/u).filter(Boolean);
  const counting = words.filter((word) => !FILLERS.has(word));
  return counting.length ? counting : words;
}

/** Whether a name or its keywords contain every word of a query, in any form. */
export const means = (text, words) => words.every((word) => text.toLowerCase().includes(word) || text.toLowerCase().includes(stem(word)));

/** Settings, each with its view, name and keywords. */
export const SETTINGS = [
  ["schedules", "Daily brief", "morning summary digest news every day mail"],
  ["schedules", "New schedule", "remind reminder cron timer recurring later alarm"],
  ["agents", "An agent's budget limits", "budget limit ceiling cap spend money dollars tokens cost quota"],
  ["agents", "An agent's model, tools and permissions", "model llm fallback thinking tools bash web profile"],
  ["agents", "An agent's persona and instructions", "persona system prompt character name who it is personality instructions documents"],
  ["agents", "Bind agents to chats", "bind binding channel group mention listen who answers telegram discord slack"],
  ["access", "Tokens for scripts and other people", "token api key secret password login sign in curl script openai client"],
  ["access", "People with access", "pair pairing code user guest stranger invite share block allow access phone family"],
  ["permissions", "Stop asking about a command", "ask less always allow never again stop asking prompt approve automatically trust yolo annoying confirm"],
  ["permissions", "Your rules", "allow deny forbid block command domain path rule"],
  ["permissions", "Profiles", "open guarded standard locked sandbox safe security read only"],
  ["memory", "Forget something", "forget delete remove personal data privacy gdpr erase wrong"],
  ["backups", "Backup location", "backup place folder s3 bucket target restore copy save schedule"],
  ["usage", "Budget for all agents", "budget limit ceiling cap spend money dollars tokens quota lift"],
  ["setup", "Model and API key", "model provider api key openai anthropic claude gpt gemini ollama local llama openrouter secret password"],
  ["setup", "Model prices", "price cost dollars unknown per million tokens"],
  ["setup", "Conversation titles", "thread title name automatic rename"],
  ["setup", "Connect a chat", "telegram discord slack teams matrix google chat whatsapp signal mail bot token platform"],
  ["setup", "How commands run", "sandbox isolate docker network host bash shell"],
  ["mcp", "Add an MCP server", "tools plugin extension integration connect calendar mail github server"],
  ["skills", "Install a skill", "ability procedure how-to instructions clawhub upload"],
];

/** Actions. Those with `thread` need an open thread. */
export const ACTIONS = [
  { key: "dark", name: "Use the dark theme", words: "dark night black colors colours appearance mode look display", act: () => prefer({ theme: "dark" }) },
  { key: "light", name: "Use the light theme", words: "light day white bright colors colours appearance mode look display", act: () => prefer({ theme: "light" }) },
  { key: "system", name: "Use the system theme", words: "automatic default colors colours appearance mode look display", act: () => prefer({ theme: "system" }) },
  { key: "hide", name: "Hide the sidebar", words: "sidebar rail collapse focus full width", act: ({ hideRail }) => hideRail(true) },
  { key: "options", name: "Rename, pin or archive this conversation", words: "thread title name keep favorite favourite hide away options", thread: true, act: ({ manage }) => manage() },
  { key: "export", name: "Export this conversation", words: "thread download save markdown html json share copy pdf print", thread: true, act: ({ manage }) => manage() },
  { key: "delete", name: "Delete this conversation", words: "thread remove erase trash clear history chat", thread: true, act: ({ manage }) => manage() },
  { key: "who", name: "Choose this conversation's agent and model", words: "thread model agent switch change llm gpt claude assistant", thread: true, act: ({ openDialog, thread }) => openDialog({ name: "answerers", thread }) },
  { key: "stop", name: "Stop the running turn", words: "cancel abort interrupt halt kill", thread: true, act: ({ session, thread }) => session.stop(thread) },
];

/** Find the views, settings and actions that match a query. */
export function meant(text) {
  const words = meaningful(text);
  const has = (name, others) => words.length > 0 && means(`${name} ${others}`, words);
  return {
    places: PLACES.filter(([, name, others]) => has(name, others)),
    settings: SETTINGS.filter(([, name, others]) => has(name, others)),
    actions: ACTIONS.filter((one) => has(one.name, one.words)),
  };
}
