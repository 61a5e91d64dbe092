// The next seven days of schedules, one column per day, stacked on narrow screens.

import { html, useState } from "../dom.js";
import { scheduleName, visible } from "../format.js";

const DAY_MS = 86_400_000;
const DAY_SHOWN = 8; // per day, until the person expands the day
const OFTEN = 4; // a schedule with this many times a day appears once, in words; also the server's limit per day

const dayOf = (ms) => {
  const at = new Date(ms);
  return new Date(at.getFullYear(), at.getMonth(), at.getDate()).getTime();
};
const time = (iso) => new Date(iso).toLocaleTimeString("en-GB", { hour: "numeric", minute: "2-digit" });

/** Return seven days from `nowMs`, each with its schedules by time. Frequent ones appear once. */
export function week(planned, nowMs) {
  const days = Array.from({ length: 7 }, (_, at) => ({ from: dayOf(dayOf(nowMs) + at * DAY_MS + DAY_MS / 2), items: [] }));
  for (const { id, name, words, at } of planned) {
    for (const [place, day] of days.entries()) {
      const until = days[place + 1]?.from ?? dayOf(day.from + DAY_MS * 1.5);
      const times = at.filter((one) => Date.parse(one) >= day.from && Date.parse(one) < until);
      if (times.length >= OFTEN) day.items.push({ id, name, at: times[0], often: words });
      else for (const one of times) day.items.push({ id, name, at: one, often: "" });
    }
  }
  for (const day of days) day.items.sort((one, other) => one.at.localeCompare(other.at));
  return days;
}

export function Week({ planned, nowMs }) {
  const [isWhole, setWhole] = useState(false);
  return html`
    <ol class="week" aria-label="The next seven days">
      ${week(planned, nowMs).map(({ from, items }, at) => html`
        <li key=${from} class=${`${at === 0 ? "is-today" : ""} ${items.length ? "" : "is-free"}`}>
          <h2>${at === 0 ? "Today" : new Date(from).toLocaleDateString("en-GB", { weekday: "short" })} <span class="faint">${new Date(from).toLocaleDateString("en-GB", { day: "numeric", month: "short" })}</span></h2>
          ${items.length
            ? html`<ul>${(isWhole ? items : items.slice(0, DAY_SHOWN)).map((item) => html`<li key=${`${item.id}${item.at}`} title=${visible(scheduleName(item.name))}><b>${item.often ? item.often[0].toUpperCase() + item.often.slice(1) : time(item.at)}</b> <span>${visible(scheduleName(item.name))}</span></li>`)}</ul>${!isWhole && items.length > DAY_SHOWN && html`<button type="button" class="quiet" onClick=${() => setWhole(true)}>Show ${items.length - DAY_SHOWN} more</button>`}`
            : html`<p class="faint">–</p>`}
        </li>
      `)}
    </ol>
  `;
}
