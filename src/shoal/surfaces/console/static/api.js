// The HTTP API as docs/contract.md describes it: one function a call.

import { readStream } from "./sse.js";

const SILENCE_MS = 60_000; // a live stream says something more often than this

/** A call that the server answered with an error, or that never reached it (status 0). */
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
  let message = `The server answered ${response.status}.`;
  try {
    const body = await response.json();
    code = body.error || code;
    message = body.message || message;
  } catch {
    // no JSON: the status has to do
  }
  throw new ApiError(response.status, code, message);
}

async function ask(method, path, body) {
  const options = { method, headers: { Accept: "application/json", "X-Shoal": "1" }, cache: "no-store" };
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
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
  await check(response);
  return response;
}

async function whole(read) {
  try {
    return await read();
  } catch {
    throw new ApiError(0, "unreachable", "The connection broke before the answer was whole.");
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

/** Where one of a thread's files can be fetched, by the path the journal has for it; empty for any other file. */
export function fileAddress(thread, path) {
  const name = /\/(attachments\/[^/]+|scratch\/.+)$/.exec(path || "")?.[1];
  return name ? threadFileAddress(thread, name) : "";
}

/** Where a file of a thread can be fetched, by the path that the list of its files has. */
export const threadFileAddress = (thread, path) => `${at(thread)}/files/${path.split("/").map(encodeURIComponent).join("/")}`;

/** Where the whole of a tool's result can be fetched. */
export const artifactAddress = (thread, artifact) => `${at(thread)}/artifacts/${encodeURIComponent(artifact)}`;

const atTrigger = (id) => `/api/triggers/${encodeURIComponent(id)}`;
const atProcess = (id) => `/api/processes/${encodeURIComponent(id)}`;

export const api = {
  me: () => call("GET", "/api/me"),
  threads: () => call("GET", "/api/threads"),
  thread: (thread) => call("GET", at(thread)),
  events: (thread, after, limit) => call("GET", `${at(thread)}/events?after=${after}&limit=${limit}`),
  send: (thread, message) => call("POST", `${at(thread)}/messages`, message),
  upload: (thread, file) => call("POST", `${at(thread)}/attachments?name=${encodeURIComponent(file.name)}`, file),
  steer: (thread, text, messageId) => call("POST", `${at(thread)}/steer`, { text, message_id: messageId }),
  abort: (thread) => call("POST", `${at(thread)}/abort`, {}),
  retry: (thread, model) => call("POST", `${at(thread)}/retry`, { model }),
  files: (thread) => call("GET", `${at(thread)}/files`),
  artifacts: (thread) => call("GET", `${at(thread)}/artifacts`),
  artifact: (thread, artifact) => readText(artifactAddress(thread, artifact)),
  approvals: () => call("GET", "/api/approvals"),
  decide: (id, decision, scope) => call("POST", `/api/approvals/${encodeURIComponent(id)}`, { decision, scope }),
  triggers: () => call("GET", "/api/triggers"),
  addTrigger: (trigger) => call("POST", "/api/triggers", trigger),
  pauseTrigger: (id) => call("POST", `${atTrigger(id)}/pause`, {}),
  resumeTrigger: (id) => call("POST", `${atTrigger(id)}/resume`, {}),
  removeTrigger: (id) => call("DELETE", atTrigger(id)),
  processes: () => call("GET", "/api/processes"),
  processLog: (id, tail) => call("GET", `${atProcess(id)}/log?tail=${tail}`),
  killProcess: (id) => call("DELETE", atProcess(id)),
  access: () => call("GET", "/api/access"),
  pair: (code) => call("POST", "/api/access/pair", { code }),
  unpair: (platform, user) => call("DELETE", `/api/access/${encodeURIComponent(platform)}/${encodeURIComponent(user)}`),
  backups: () => call("GET", "/api/backups"),
  backUp: () => call("POST", "/api/backups", {}),
  mcp: () => call("GET", "/api/mcp"),
  decideMcp: (name, decision, digest) => call("POST", `/api/mcp/${encodeURIComponent(name)}`, { decision, digest }),
  agents: () => call("GET", "/api/agents"),
  createAgent: (agent) => call("POST", "/api/agents", agent),
  changeAgent: (name, settings) => call("PATCH", `/api/agents/${encodeURIComponent(name)}`, { settings }),
  destroyAgent: (name, keep) => call("DELETE", `/api/agents/${encodeURIComponent(name)}?keep_files=${keep}`),
  bind: (binding) => call("PUT", "/api/bindings", binding),
  unbind: (place) => call("DELETE", `/api/bindings/${/^([^:]*):(.*)$/s.exec(place).slice(1).map(encodeURIComponent).join("/")}`),
  command: (thread, text) => call("POST", `${at(thread)}/command`, { text }),
  commands: () => call("GET", "/api/commands"),
  info: () => call("GET", "/api/info"),
  usage: () => call("GET", "/api/usage"),
  ceilings: () => call("GET", "/api/usage/ceilings"),
  lift: () => call("POST", "/api/usage/lift", {}),
  audit: async () => (await call("GET", "/api/audit?limit=200")).reverse(),

  /** Follow a thread's events after `seq` until the stream ends; throws ApiError when it is refused. */
  follow: (thread, seq, { signal, opened, take }) =>
    readStream({ url: `${at(thread)}/events?after=${seq}`, lastEventId: seq, silenceMs: SILENCE_MS, signal, check, opened, take }),
};
