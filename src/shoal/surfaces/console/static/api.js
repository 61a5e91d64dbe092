// The HTTP API as docs/http.md describes it: one function per call.

import { pageKey } from "./key.js";
import { me } from "./me.js";
import { readStream } from "./sse.js";

const SILENCE_MS = 60_000; // the server sends a heartbeat more often than this
const ANSWER_MS = 600_000; // a model may think for minutes

/** Error of a call that failed on the server or never reached it (status 0). */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function check(response) {
  if (response.ok) return;
  let code = "error";
  let message = `The server returned an error (${response.status}). Try again.`;
  try {
    const body = await response.json();
    code = body.error || code;
    message = body.message || message;
  } catch {
    // not JSON: only the status is known
  }
  throw new ApiError(response.status, code, message);
}

async function ask(method, path, body) {
  const options = { method, headers: { Accept: "application/json", "X-Shoal": pageKey() }, cache: "no-store" };
  if (body instanceof Blob) {
    options.headers["Content-Type"] = "application/octet-stream";
    options.body = body;
  } else if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new ApiError(0, "unreachable", "Cannot reach Shoal.");
  }
  await check(response);
  return response;
}

/** Send a file, and report the progress to `told` from 0 to 1. Uses XMLHttpRequest because fetch reports no progress. */
function sendFile(path, file, told) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries({ Accept: "application/json", "X-Shoal": pageKey(), "Content-Type": "application/octet-stream" })) request.setRequestHeader(name, value);
    request.upload.onprogress = ({ loaded, total }) => told(total ? loaded / total : 0);
    request.onload = () => {
      const response = new Response(request.response, { status: request.status });
      check(response).then(() => response.json()).then(done, failed);
    };
    request.onerror = () => failed(new ApiError(0, "unreachable", "Cannot reach Shoal."));
    request.send(file);
  });
}

async function whole(read) {
  try {
    return await read();
  } catch {
    throw new ApiError(0, "unreachable", "The connection broke before the response was complete. Try again.");
  }
}

async function call(method, path, body) {
  const response = await ask(method, path, body);
  return response.status === 204 ? null : whole(() => response.json());
}

async function readText(path) {
  const response = await ask("GET", path);
  return whole(() => response.text());
}

const at = (thread) => `/api/threads/${encodeURIComponent(thread)}`;

/** Return a URL that the browser can load without our header. The ticket identifies the caller. */
const loaded = (address) => (me.ticket ? `${address}${address.includes("?") ? "&" : "?"}ticket=${me.ticket}` : address);

/** Return the URL of a thread's file by its path in the journal, or an empty string for any other path. */
export function fileAddress(thread, path) {
  const name = /\/(attachments\/[^/]+|scratch\/.+)$/.exec(path || "")?.[1];
  return name ? threadFileAddress(thread, name) : "";
}

/** Return the URL of a thread's file by its path in the list of files. */
export const threadFileAddress = (thread, path) => loaded(`${at(thread)}/files/${path.split("/").map(encodeURIComponent).join("/")}`);

/** Return the URL of a picture by its path in a reply. */
export const pictureAddress = (thread, path) => loaded(`${at(thread)}/picture?${new URLSearchParams({ path })}`);

export const speechAddress = (thread, turn) => loaded(`${at(thread)}/turns/${encodeURIComponent(turn)}/speech`);

export const artifactAddress = (thread, artifact) => loaded(`${at(thread)}/artifacts/${encodeURIComponent(artifact)}`);

export const exportAddress = (thread, format) => loaded(`${at(thread)}/export?format=${format}`);

const atFiles = (agent, path = "") => `/api/agents/${encodeURIComponent(agent)}/files${path && `/${path.split("/").map(encodeURIComponent).join("/")}`}`;
const atTrigger = (id) => `/api/triggers/${encodeURIComponent(id)}`;
const atProcess = (id) => `/api/processes/${encodeURIComponent(id)}`;

export const api = {
  me: () => call("GET", "/api/me"),
  signOut: () => call("DELETE", "/"),
  setPreferences: (preferences) => call("PUT", "/api/me/preferences", preferences),
  push: () => call("GET", "/api/push"),
  subscribe: (browser) => call("PUT", "/api/push", browser),
  unsubscribe: (endpoint) => call("DELETE", `/api/push?${new URLSearchParams({ endpoint })}`),
  threads: (limit, before) => call("GET", `/api/threads?${new URLSearchParams({ limit, ...(before && { before }) })}`),
  chats: () => call("GET", "/api/chats"),
  archived: () => call("GET", "/api/threads?archived=true"),
  thread: (thread) => call("GET", at(thread)),
  changeThread: (thread, fields) => call("PATCH", at(thread), fields),
  deleteThread: (thread) => call("DELETE", at(thread)),
  turnCost: (thread, turn) => call("GET", `${at(thread)}/turns/${encodeURIComponent(turn)}/cost`),
  search: (words, thread, limit) => call("GET", `/api/search?${new URLSearchParams({ q: words, limit, ...(thread && { thread }) })}`),
  models: () => call("GET", "/api/models"),
  events: (thread, after, limit) => call("GET", `${at(thread)}/events?after=${after}&limit=${limit}`),
  send: (thread, message) => call("POST", `${at(thread)}/messages`, message),
  upload: (thread, file, mine, told) => sendFile(`${at(thread)}/attachments?name=${encodeURIComponent(file.name)}${mine ? "&mine=true" : ""}`, file, told),
  steer: (thread, text, messageId) => call("POST", `${at(thread)}/steer`, { text, message_id: messageId }),
  abort: (thread) => call("POST", `${at(thread)}/abort`, {}),
  again: (thread, seq, model) => call("POST", `${at(thread)}/again`, { seq, model }),
  edit: (thread, seq, text) => call("POST", `${at(thread)}/edit`, { seq, text }),
  branch: (thread, after) => call("POST", `${at(thread)}/branch`, { after }),
  changes: (thread, turn) => call("GET", `${at(thread)}/turns/${encodeURIComponent(turn)}/changes`),
  undo: (thread, turn, since) => call("POST", `${at(thread)}/turns/${encodeURIComponent(turn)}/undo`, { since }),
  fork: (thread, after) => call("POST", `${at(thread)}/fork`, { after }),
  retry: (thread, model) => call("POST", `${at(thread)}/retry`, { model }),
  files: (thread) => call("GET", `${at(thread)}/files`),
  artifacts: (thread) => call("GET", `${at(thread)}/artifacts`),
  artifact: (thread, artifact) => readText(artifactAddress(thread, artifact)),
  approvals: () => call("GET", "/api/approvals"),
  approval: (id) => call("GET", `/api/approvals/${encodeURIComponent(id)}`),
  suggestedRules: () => call("GET", "/api/permissions/suggestions"),
  acceptRule: (agent, allow) => call("POST", "/api/permissions/suggestions", { agent, allow }),
  comparisons: () => call("GET", "/api/comparisons"),
  comparison: (id) => call("GET", `/api/comparisons/${encodeURIComponent(id)}`),
  beginComparison: (wanted, usdMax) => call("POST", "/api/comparisons", { wanted, usd_max: usdMax }),
  removeComparison: (id) => call("DELETE", `/api/comparisons/${encodeURIComponent(id)}`),
  saveCase: (thread, fields) => call("POST", `${at(thread)}/cases`, fields),
  takeBack: (id) => call("DELETE", `/api/approvals/${encodeURIComponent(id)}/always`),
  decide: (id, decision, scope, calls = []) => call("POST", `/api/approvals/${encodeURIComponent(id)}`, calls.length ? { decision, scope, calls } : { decision, scope }),
  triggers: () => call("GET", "/api/triggers"),
  calendar: () => call("GET", `/api/triggers/calendar?${new URLSearchParams({ timezone: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC" })}`),
  addTrigger: (trigger) => call("POST", "/api/triggers", trigger),
  pauseTrigger: (id) => call("POST", `${atTrigger(id)}/pause`, {}),
  resumeTrigger: (id) => call("POST", `${atTrigger(id)}/resume`, {}),
  removeTrigger: (id) => call("DELETE", atTrigger(id)),
  processes: () => call("GET", "/api/processes"),
  processLog: (id, tail) => call("GET", `${atProcess(id)}/log?tail=${tail}`),
  killProcess: (id) => call("DELETE", atProcess(id)),
  tokens: () => call("GET", "/api/tokens"),
  createToken: (token) => call("POST", "/api/tokens", token),
  revokeToken: (name) => call("DELETE", `/api/tokens/${encodeURIComponent(name)}`),
  access: () => call("GET", "/api/access"),
  pair: (code) => call("POST", "/api/access/pair", { code }),
  unpair: (platform, user) => call("DELETE", `/api/access/${encodeURIComponent(platform)}/${encodeURIComponent(user)}`),
  backups: () => call("GET", "/api/backups"),
  moveBackups: (target) => call("PUT", "/api/backups", target),
  backUp: () => call("POST", "/api/backups", {}),
  setBrief: (brief) => call("POST", "/api/brief", brief),
  endBrief: () => call("DELETE", "/api/brief"),
  setup: () => call("GET", "/api/setup"),
  changeSetup: (fields) => call("PATCH", "/api/setup", fields),
  tryProvider: (name, entered) => call("POST", `/api/setup/providers/${encodeURIComponent(name)}/test`, entered),
  useModel: (name, entered) => call("PUT", `/api/setup/providers/${encodeURIComponent(name)}`, entered),
  tryPlatform: (name, values) => call("POST", `/api/setup/platforms/${encodeURIComponent(name)}/test`, { values }),
  connectPlatform: (name, values) => call("PUT", `/api/setup/platforms/${encodeURIComponent(name)}`, { values }),
  ownPlatform: (name, code) => call("POST", `/api/setup/platforms/${encodeURIComponent(name)}/owner`, { code }),
  switchPlatform: (name, enabled) => call("PATCH", `/api/platforms/${encodeURIComponent(name)}`, { enabled }),
  mcpServers: () => call("GET", "/api/mcp-servers"),
  addMcpServer: (server) => call("POST", "/api/mcp-servers", server),
  switchMcpServer: (name, enabled) => call("PATCH", `/api/mcp-servers/${encodeURIComponent(name)}`, { enabled }),
  removeMcpServer: (name) => call("DELETE", `/api/mcp-servers/${encodeURIComponent(name)}`),
  mcp: () => call("GET", "/api/mcp"),
  decideMcp: (name, decision, digest, kind) => call("POST", `/api/mcp/${encodeURIComponent(name)}`, { decision, digest, kind }),
  confirmMcp: (server, digest, kinds) => call("POST", `/api/mcp-servers/${encodeURIComponent(server)}/confirm`, { digest, kinds }),
  agents: () => call("GET", "/api/agents"),
  createAgent: (agent) => call("POST", "/api/agents", agent),
  changeAgent: (name, settings) => call("PATCH", `/api/agents/${encodeURIComponent(name)}`, { settings }),
  destroyAgent: (name, keep) => call("DELETE", `/api/agents/${encodeURIComponent(name)}?keep_files=${keep}`),
  agentFiles: (name) => call("GET", atFiles(name)),
  agentFile: (name, path) => call("GET", atFiles(name, path)),
  writeAgentFile: (name, path, text, digest) => call("PUT", atFiles(name, path), { text, digest }),
  uploadAgentFile: (name, path, file) => call("POST", atFiles(name, path), file),
  deleteAgentFile: (name, path) => call("DELETE", atFiles(name, path)),
  undoAgent: (name) => call("POST", `/api/agents/${encodeURIComponent(name)}/undo`, {}),
  bind: (binding) => call("PUT", "/api/bindings", binding),
  unbind: (place) => call("DELETE", `/api/bindings/${/^([^:]*):(.*)$/s.exec(place).slice(1).map(encodeURIComponent).join("/")}`),
  memory: (thread) => call("GET", `/api/memory?${new URLSearchParams(thread ? { thread } : {})}`),
  writeMemory: (text) => call("PUT", "/api/memory", text),
  forget: (what) => call("DELETE", `/api/memory?${new URLSearchParams(what)}`),
  memoryChanges: (limit) => call("GET", `/api/memory/changes?limit=${limit}`),
  undoMemory: (id) => call("POST", `/api/memory/changes/${encodeURIComponent(id)}/undo`, {}),
  profiles: () => call("GET", "/api/permissions/profiles"),
  copyProfile: (copies, name) => call("POST", "/api/permissions/profiles", { copies, name }),
  removeProfile: (name) => call("DELETE", `/api/permissions/profiles/${encodeURIComponent(name)}`),
  ownRules: () => call("GET", "/api/permissions/rules"),
  addRule: (rule) => call("POST", "/api/permissions/rules", rule),
  changeRule: (id, rule) => call("PUT", `/api/permissions/rules/${id}`, rule),
  removeRule: (id) => call("DELETE", `/api/permissions/rules/${id}`),
  wouldRun: (what) => call("POST", "/api/permissions/check", what),
  skills: (agent) => call("GET", `/api/skills?agent=${encodeURIComponent(agent)}`),
  writeSkill: (name, skill) => call("PUT", `/api/skills/${encodeURIComponent(name)}`, skill),
  installSkills: (where, file) => call("POST", `/api/skills?${new URLSearchParams(where)}`, file),
  deleteSkill: (name, where) => call("DELETE", `/api/skills/${encodeURIComponent(name)}?${new URLSearchParams(where)}`),
  command: (thread, text) => call("POST", `${at(thread)}/command`, { text }),
  commands: () => call("GET", "/api/commands"),
  info: () => call("GET", "/api/info"),
  overview: () => call("GET", "/api/overview"),
  context: (thread) => call("GET", `${at(thread)}/context`),
  usage: (days) => call("GET", `/api/usage?days=${days}`),
  usageByThread: (days) => call("GET", `/api/usage/threads?days=${days}`),
  ceilings: () => call("GET", "/api/usage/ceilings"),
  lift: () => call("POST", "/api/usage/lift", {}),
  audit: async (limit) => (await call("GET", `/api/audit?limit=${limit}`)).reverse(),
  verifyAudit: () => call("GET", "/api/audit/verify"),

  /** Run a comparison's remaining calls until aborted. `take` gets each response. */
  runComparison: (id, { signal, take }) =>
    readStream({ url: `/api/comparisons/${encodeURIComponent(id)}/run`, method: "POST", silenceMs: ANSWER_MS, signal, check, take }),

  /** Follow a thread's events after `seq` until the stream ends. Throws ApiError if the server rejects the request. */
  follow: (thread, seq, { signal, opened, take }) =>
    readStream({ url: `${at(thread)}/events?after=${seq}`, lastEventId: seq, silenceMs: SILENCE_MS, signal, check, opened, take }),

  /** Follow changes to lists, `{changed: ["threads", "approvals"]}`, until the stream ends. Throws ApiError if the server rejects the request. */
  followChanges: ({ signal, take }) => readStream({ url: "/api/changes", silenceMs: SILENCE_MS, signal, check, take }),
};
