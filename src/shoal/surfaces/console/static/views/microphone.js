// Record a voice note, sent as a file and transcribed for the agent.

import { html, useEffect, useRef, useState } from "../dom.js";
import { Elapsed } from "./elapsed.js";
import { icon } from "./icons.js";

const TYPES = ["audio/webm;codecs=opus", "audio/mp4", "audio/ogg;codecs=opus"];
const BITS_A_SECOND = 32_000;
const PROBLEMS = {
  NotAllowedError: "The browser blocks the microphone on this page. Allow it in the site's settings.",
  NotFoundError: "This device has no microphone.",
};

/** The record button. `send` gets the recording as a file. Without TLS, browsers allow the microphone only on localhost. */
export function Microphone({ send, report, word }) {
  const recorder = useRef(null);
  const [since, setSince] = useState(0);
  const end = (keep) => {
    const current = recorder.current;
    if (!current) return;
    recorder.current = null;
    current.onstop = () => {
      for (const track of current.stream.getTracks()) track.stop();
      const type = current.mimeType.split(";")[0];
      if (keep && current.pieces.length) latest.current(new File(current.pieces, `voice.${type === "audio/mp4" ? "m4a" : type.split("/")[1]}`, { type }));
    };
    current.stop();
    setSince(0);
  };
  const latest = useRef(send);
  latest.current = send;
  useEffect(() => () => end(false), []);
  if (!navigator.mediaDevices?.getUserMedia || typeof MediaRecorder === "undefined") return null;

  const begin = async () => {
    report("");
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      const mimeType = TYPES.find((type) => MediaRecorder.isTypeSupported(type));
      const current = new MediaRecorder(stream, { mimeType, audioBitsPerSecond: BITS_A_SECOND });
      current.pieces = [];
      current.ondataavailable = (event) => event.data.size && current.pieces.push(event.data);
      current.start();
      recorder.current = current;
      setSince(Date.now());
    } catch (error) {
      report(PROBLEMS[error.name] || `The microphone failed: ${error.message}`);
    }
  };
  if (!since) return html`<button type="button" class="quiet" aria-label="Record a voice note" title="Record a voice note" onClick=${begin}>${icon("mic")}${word && html`<span class="if-wide" aria-hidden="true">${word}</span>`}</button>`;
  return html`
    <span class="recording" role="status">Recording<${Elapsed} sinceMs=${since} before=" " /></span>
    <button type="button" class="plain stop" onClick=${() => end(false)}>Discard</button>
    <button type="button" class="primary" onClick=${() => end(true)}>${icon("send")} Send recording</button>
  `;
}
