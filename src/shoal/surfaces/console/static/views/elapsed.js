// A duration in whole seconds that counts up or down while shown.

import { html, useEffect, useState } from "../dom.js";
import { duration } from "../format.js";

/** `before` and the seconds since `sinceMs` or until `untilMs`. Shows nothing during the first second. */
export function Elapsed({ sinceMs, untilMs, before = "" }) {
  const [nowMs, setNowMs] = useState(Date.now());
  useEffect(() => {
    const beat = setInterval(() => setNowMs(Date.now()), 1000);
    return () => clearInterval(beat);
  }, []);
  const seconds = Math.round((untilMs ? untilMs - nowMs : nowMs - sinceMs) / 1000);
  return seconds >= 1 && html`<span class="elapsed">${before}${duration(seconds * 1000).replace(".0", "")}</span>`;
}
