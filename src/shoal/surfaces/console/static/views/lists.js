// What the plain places share: loading a list, saying that it is empty or failed, reloading it, and asking twice.

import { html, useCallback, useEffect, useState } from "../dom.js";
import { Words } from "./words.js";

/** `[value, problem, reload]` of an asynchronous question, asked when the view appears, and every `everyMs` unless 0. */
export function useAnswer(ask, everyMs = 0) {
  const [value, setValue] = useState(null);
  const [problem, setProblem] = useState("");
  const reload = useCallback(async () => {
    try {
      setValue(await ask());
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  }, []);
  useEffect(() => {
    reload();
  }, []);
  useEffect(() => {
    if (!everyMs) return undefined;
    const timer = setInterval(() => !document.hidden && reload(), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return [value, problem, reload];
}

/** `[attempt, problem]`: do something, then ask for the list anew; `problem` is what went wrong the last time. */
export function useAttempt(reload) {
  const [problem, setProblem] = useState("");
  const attempt = async (action) => {
    try {
      await action();
      setProblem("");
      await reload();
      return true;
    } catch (error) {
      setProblem(error.message);
      return false;
    }
  };
  return [attempt, problem];
}

/** `isWide`: what is shown is a table, which uses the room that there is. */
export function Place({ intro, problem, reload, loading, isWide, children }) {
  return html`
    <div class=${`place${isWide ? " is-wide" : ""}`}>
      <p class="intro">${intro}</p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /> <button type="button" class="quiet" onClick=${reload}>Try again</button></p>`}
      ${loading ? !problem && html`<p class="faint loading">Loading…</p>` : children}
    </div>
  `;
}

/** A button that asks once more before it acts. `what` is read to those who do not see what it stands beside. */
export function Sure({ label, what = "", yes, no = "Keep", kind = "quiet", act }) {
  const [asking, setAsking] = useState(false);
  const done = () => {
    setAsking(false);
    act();
  };
  // The first button stays where it is and takes the question back, so that a second click there does no harm.
  return html`<span class="sure">
    ${asking && html`<button type="button" class="plain danger" onClick=${done}>${yes}</button>`}
    <button type="button" class=${kind} aria-label=${what && !asking ? `${label} ${what}` : null} onClick=${() => setAsking(!asking)}>
      <span class=${asking ? "is-hidden" : ""} aria-hidden=${asking}>${label}</span><span class=${asking ? "" : "is-hidden"} aria-hidden=${!asking}>${no}</span>
    </button>
  </span>`;
}
