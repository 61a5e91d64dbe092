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
  try {
    return response.status === 204 ? null : await response.json();
  } catch {
    throw new ApiError(0, "unreachable", "The connection broke before the answer was whole.");
  }
}

const at = (thread) => `/api/threads/${encodeURIComponent(thread)}`;

/** Where one of a thread's files can be fetched, by the path the journal has for it; empty for any other file. */
export function fileAddress(thread, path) {
  const name = /\/(attachments\/[^/]+|scratch\/.+)$/.exec(path || "")?.[1];
  return name ? `${at(thread)}/files/${name.split("/").map(encodeURIComponent).join("/")}` : "";
}

export const api = {
  threads: () => call("GET", "/api/threads"),
  thread: (thread) => call("GET", at(thread)),
  events: (thread, after, limit) => call("GET", `${at(thread)}/events?after=${after}&limit=${limit}`),
  send: (thread, message) => call("POST", `${at(thread)}/messages`, message),
  upload: (thread, file) => call("POST", `${at(thread)}/attachments?name=${encodeURIComponent(file.name)}`, file),
  steer: (thread, text, messageId) => call("POST", `${at(thread)}/steer`, { text, message_id: messageId }),
  abort: (thread) => call("POST", `${at(thread)}/abort`, {}),
  approvals: () => call("GET", "/api/approvals"),
  decide: (id, decision, scope) => call("POST", `/api/approvals/${encodeURIComponent(id)}`, { decision, scope }),
  triggers: () => call("GET", "/api/triggers"),
  addTrigger: (trigger) => call("POST", "/api/triggers", trigger),
  removeTrigger: (id) => call("DELETE", `/api/triggers/${encodeURIComponent(id)}`),
  agents: () => call("GET", "/api/agents"),
  usage: () => call("GET", "/api/usage"),
  audit: async () => (await call("GET", "/api/audit?limit=200")).reverse(),

  /** Follow a thread's events after `seq` until the stream ends; throws ApiError when it is refused. */
  follow: (thread, seq, { signal, opened, take }) =>
    readStream({ url: `${at(thread)}/events?after=${seq}`, lastEventId: seq, silenceMs: SILENCE_MS, signal, check, opened, take }),
};
