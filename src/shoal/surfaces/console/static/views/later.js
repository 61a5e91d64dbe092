import { html, useEffect, useState } from "../dom.js";

export function Later({ load, ...rest }) {
  const [view, setView] = useState(null);
  const [problem, setProblem] = useState(false);
  const read = () => load().then((found) => setView(() => found), () => setProblem(true));
  useEffect(() => {
    read();
  }, []);
  if (view) return html`<${view} ...${rest} />`;
  if (!problem) return html`<p class="faint loading">Loading…</p>`;
  const again = () => (setProblem(false), read());
  return html`<p class="problem loading">Cannot load this part of the page. <button type="button" class="quiet" onClick=${again}>Try again</button></p>`;
}
