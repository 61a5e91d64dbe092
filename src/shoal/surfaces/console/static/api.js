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

async function call(method, path, body) {
  const options = { method, headers: { Accept: "application/json" }, cache: "no-store" };
  if (body !== undefined) {
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
  try {
    return response.status === 204 ? null : await response.json();
  } catch {
    throw new ApiError(0, "unreachable", "The connection broke before the answer was whole.");
  }
}

const at = (thread) => `/api/threads/${encodeURIComponent(thread)}`;

/** Lists come bare or under their name. */
const list = (body, name) => (Array.isArray(body) ? body : body?.[name] || []);

export const api = {
  threads: async () => list(await call("GET", "/api/threads"), "threads"),
  thread: (thread) => call("GET", at(thread)),
  events: async (thread, after, limit) => list(await call("GET", `${at(thread)}/events?after=${after}&limit=${limit}`), "events"),
  send: (thread, message) => call("POST", `${at(thread)}/messages`, message),
  steer: (thread, text, messageId) => call("POST", `${at(thread)}/steer`, { text, message_id: messageId }),
  abort: (thread) => call("POST", `${at(thread)}/abort`, {}),
  approvals: async () => list(await call("GET", "/api/approvals"), "approvals"),
  decide: (id, decision, scope) => call("POST", `/api/approvals/${encodeURIComponent(id)}`, { decision, scope }),
  triggers: async () => list(await call("GET", "/api/triggers"), "triggers"),
  addTrigger: (trigger) => call("POST", "/api/triggers", trigger),
  removeTrigger: (id) => call("DELETE", `/api/triggers/${encodeURIComponent(id)}`),
  agents: async () => list(await call("GET", "/api/agents"), "agents"),
  usage: () => call("GET", "/api/usage"),
  audit: async () => list(await call("GET", "/api/audit?limit=200"), "audit"),

  /** Follow a thread's events after `seq` until the stream ends; throws ApiError when it is refused. */
  follow: (thread, seq, { signal, opened, take }) =>
    readStream({ url: `${at(thread)}/events?after=${seq}`, lastEventId: seq, silenceMs: SILENCE_MS, signal, check, opened, take }),
};
