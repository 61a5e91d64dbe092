// Shared parts of views: loading, errors and confirmation buttons.

import { html, useCallback, useEffect, useState } from "../dom.js";
import { Words } from "./words.js";

/** Return `[value, problem, reload]` of a request. It runs when the view appears, and every `everyMs` unless that is 0. */
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

/** Return `[attempt, problem]`. `attempt` runs an action and reloads the list. `problem` is the last error. */
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

/** `isWide`: the content is a table and uses the full width. */
export function Place({ intro, problem, reload, loading, isWide, children }) {
  return html`
    <div class=${`place${isWide ? " is-wide" : ""}`}>
      <p class="intro">${intro}</p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /> <button type="button" class="quiet" onClick=${reload}>Try again</button></p>`}
      ${loading ? !problem && html`<p class="faint loading">Loading…</p>` : children}
    </div>
  `;
}

/** A button that asks for confirmation. `what` names its object for screen readers. */
export function Sure({ label, what = "", yes, no = "Keep", kind = "quiet", act }) {
  const [asking, setAsking] = useState(false);
  const done = () => {
    setAsking(false);
    act();
  };
  // The first button becomes the cancel button, which makes a double-click harmless.
  return html`<span class="sure">
    ${asking && html`<button type="button" class="plain danger" onClick=${done}>${yes}</button>`}
    <button type="button" class=${kind} aria-label=${what && !asking ? `${label} ${what}` : null} onClick=${() => setAsking(!asking)}>
      <span class=${asking ? "is-hidden" : ""} aria-hidden=${asking}>${label}</span><span class=${asking ? "" : "is-hidden"} aria-hidden=${!asking}>${no}</span>
    </button>
  </span>`;
}
