// What the plain places share: loading a list, saying that it is empty or failed, and reloading it.

import { html, useCallback, useEffect, useState } from "../dom.js";

/** `[value, problem, reload]` of an asynchronous question, asked when the view appears. */
export function useAnswer(ask) {
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
  return [value, problem, reload];
}

export function Place({ intro, problem, reload, loading, children }) {
  return html`
    <div class="place">
      <p class="intro">${intro}</p>
      ${problem && html`<p class="problem" role="alert">${problem} <button type="button" class="quiet" onClick=${reload}>Try again</button></p>`}
      ${loading && !problem && html`<p class="faint">Loading…</p>`} ${children}
    </div>
  `;
}
