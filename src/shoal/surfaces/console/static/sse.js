// Server-sent events over fetch.

import { pageKey } from "./key.js";

/** Create a parser of streamed text that calls `take({id, event, data})` for each complete message. */
export function eventParser(take) {
  let rest = "";
  let message = { id: "", event: "", data: [] };
  const line = (text) => {
    if (text === "") {
      if (message.data.length) take({ ...message, data: message.data.join("\n") });
      message = { id: "", event: "", data: [] };
      return;
    }
    const colon = text.indexOf(":");
    const field = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(colon + 1).replace(/^ /, "");
    if (field === "data") message.data.push(value);
    else if (field === "id" || field === "event") message[field] = value;
  };
  return (chunk) => {
    rest += chunk;
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const text of lines) line(text);
  };
}

/**
 * Read `url` as an event stream until it ends, fails or `signal` aborts. Calls `opened` when the server answers and
 * `take` with each message's JSON. A stream that is silent for `silenceMs` counts as lost. With `method` POST, the server
 * works only while the stream is read. Throws the errors of `check(response)`.
 */
export async function readStream({ url, method = "GET", lastEventId = 0, signal, silenceMs, check, opened = () => {}, take }) {
  const quiet = new AbortController();
  const stop = () => quiet.abort();
  signal.addEventListener("abort", stop, { once: true });
  let timer = setTimeout(stop, silenceMs);
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(stop, silenceMs);
  };
  try {
    const headers = { Accept: "text/event-stream", "Last-Event-ID": String(lastEventId), "X-Shoal": pageKey() };
    const response = await fetch(url, { method, headers, signal: quiet.signal, cache: "no-store" });
    await check(response);
    opened();
    const push = eventParser((message) => take(JSON.parse(message.data)));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      push(value);
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
  }
}

/** Return the pause before retry `attempt` (from 0): 0.4 s, doubling to 10 s, with up to 25 % jitter. */
export function backoffMs(attempt, random = Math.random()) {
  return Math.min(10_000, 400 * 2 ** attempt) * (1 - random / 4);
}
