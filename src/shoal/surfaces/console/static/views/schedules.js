// Schedules: messages to agents at set times.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { BRIEF, ago, clockTime, fullTime, scheduleName, threadName } from "../format.js";
import { canChange, me } from "../me.js";
import { newId } from "../outgoing.js";
import { ThreadPicker, useChats } from "./chats.js";
import { Filtered } from "./filtered.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { Week } from "./week.js";
import { Words } from "./words.js";

const POLL_MS = 15_000;
const BRIEF_WORDS = "Finished and failed work, pending approvals, and upcoming schedules.";
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

export function Schedules({ state, session }) {
  const [triggers, problem, again] = useAnswer(api.triggers, POLL_MS);
  const [planned, , plan] = useAnswer(api.calendar, POLL_MS);
  const reload = () => Promise.all([again(), plan()]);
  return html`
    <${Place} intro="Messages sent to agents at set times." problem=${problem} reload=${reload} loading=${!triggers}>
      ${!planned && triggers?.some((one) => one.state === "active") && html`<p class="week-awaited faint loading">Loading the calendar…</p>`}
      ${planned?.length > 0 && html`<${Week} planned=${planned} nowMs=${Date.now()} />`}
      ${planned?.length > 0 && triggers?.some((one) => one.kind === "periodic" && one.timezone !== zone) && html`<p class="faint above">The calendar and the next times are in your time zone, ${zone}.</p>`}
      ${triggers && html`<${Filtered} items=${triggers} noun="schedules" text=${(one) => `${one.name} ${one.text} ${one.agent} ${one.state} ${one.words}`}
        row=${(trigger) => html`<${Schedule} key=${trigger.id} trigger=${trigger} reload=${reload} />`} />`}
      ${triggers && !triggers.length && html`<p class="faint empty">Nothing is scheduled. Add a schedule below, or ask an agent: “Remind me on Friday at 9.”</p>`}
      ${canChange() && triggers && html`<${Brief} triggers=${triggers} reload=${reload} />`}
      ${canChange() && html`<${NewSchedule} reload=${reload} state=${state} session=${session} />`}
    <//>
  `;
}

export function trouble({ state, failures, error }) {
  const words = {
    missed: "This run was missed because Shoal was not running.",
    failed: "This schedule failed too often, so Shoal switched it off.",
  }[state];
  const times = state === "active" && failures > 0 && `This schedule failed ${failures === 1 ? "once" : `${failures} times in a row`}. Shoal will retry.`;
  return [words || times, error].filter(Boolean).join(" ");
}

function Schedule({ trigger, reload }) {
  const [attempt, problem] = useAttempt(reload);
  const where = trigger.thread ? threadName({ title: trigger.title }, trigger.thread) : [trigger.platform, trigger.channel].filter(Boolean).join(" ");
  const said = trouble(trigger);
  const due = trigger.state === "active" && trigger.next_at;
  const next = trigger.state === "paused" ? "Paused" : due ? `Next ${clockTime(due)}, ${ago(due)}` : "Ended";
  return html`
    <li class="card">
      <p class="card-head">
        <b class="clamped">${scheduleName(trigger.name) || trigger.text}</b>
        <span class=${`tag is-${trigger.state}`}>${trigger.state}</span>
      </p>
      ${trigger.name && html`<p class="clamped">${trigger.name === BRIEF ? BRIEF_WORDS : trigger.text}</p>`}
      <p class="faint">
        ${trigger.kind === "periodic" ? html`<span title=${trigger.schedule}>${sentence(trigger.words || trigger.schedule)}</span>${trigger.timezone !== zone && ` (${trigger.timezone})`}` : html`Once, <time datetime=${trigger.schedule}>${clockTime(trigger.schedule) || trigger.schedule}</time>`}${where && html`, in ${trigger.thread ? html`<a class="breakable" href=${`#/t/${encodeURIComponent(trigger.thread)}`}>${where}</a>` : html`<span class="breakable">${where}</span>`}`}
      </p>
      ${said && html`<p class="problem"><${Words} text=${said} /></p>`}
      <p class="card-foot">
        <span class="faint">
          <span title=${fullTime(trigger.next_at)}>${next}</span>${trigger.last_at && html`<span title=${fullTime(trigger.last_at)}> · last ${ago(trigger.last_at)}</span>`}
        </span>
        ${canChange() && html`<${Choices} trigger=${trigger} attempt=${attempt} />`}
      </p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </li>
  `;
}

function Choices({ trigger, attempt }) {
  return html`
        ${trigger.state === "active" && html`<button type="button" class="quiet" onClick=${() => attempt(() => api.pauseTrigger(trigger.id))}>Pause</button>`}
        ${["paused", "failed"].includes(trigger.state) && html`<button type="button" class="plain" onClick=${() => attempt(() => api.resumeTrigger(trigger.id))}>Resume</button>`}
        <${Sure} label="Remove" yes="Remove it" act=${() => attempt(() => api.removeTrigger(trigger.id))} />
  `;
}

const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);
const WEEKDAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const REPEATS = [["day", "Every day"], ["weekday", "Every weekday"], ["week", "Every week"], ["month", "Every month"], ["cron", "Cron expression"]];

/** Convert the form's fields to a cron expression. */
export function cronOf(repeat, { time = "", weekday = "1", day = "1", cron = "" }) {
  if (repeat === "cron") return cron.trim();
  const [hour, minute] = time.split(":").map(Number);
  const days = { day: "* * *", weekday: "* * 1-5", week: `* * ${weekday}`, month: `${day} * *` };
  return `${minute} ${hour} ${days[repeat]}`;
}

function Repeat() {
  const [repeat, setRepeat] = useState("day");
  return html`
    <div class="pair">
      <label>How often <select name="repeat" value=${repeat} onChange=${(event) => setRepeat(event.target.value)}>${REPEATS.map(([value, words]) => html`<option value=${value}>${words}</option>`)}</select></label>
      ${repeat === "cron"
        ? html`<label key="cron">Cron expression <input name="cron" required placeholder="0 9 * * 1-5" spellcheck="false" /></label>`
        : html`<label key="time">At <input type="time" name="time" required value="09:00" /></label>`}
      ${repeat === "week" && html`<label>On <select name="weekday">${WEEKDAYS.map((name, at) => html`<option value=${at} selected=${at === 1}>${name}</option>`)}</select></label>`}
      ${repeat === "month" && html`<label>On day <input type="number" name="day" min="1" max="31" value="1" required /></label>`}
      <label>Time zone <input name="timezone" value=${zone} spellcheck="false" /></label>
    </div>
  `;
}

function Brief({ triggers, reload }) {
  const [attempt, problem] = useAttempt(reload);
  const set = triggers.find((one) => one.name === BRIEF);
  const submit = (event) => {
    event.preventDefault();
    const { at, days } = Object.fromEntries(new FormData(event.target));
    attempt(() => api.setBrief({ at, days, timezone: zone }));
  };
  return html`
    <form class="card form" onSubmit=${submit}>
      <h2>Daily brief</h2>
      <p class="faint">${set ? `Sent ${set.words}. Saving replaces this schedule.` : `${BRIEF_WORDS} Sent once a day, in your own chat with the agent.`}</p>
      <div class="pair">
        <label>Sent at <input type="time" name="at" required value="08:00" /></label>
        <label>Sent on <select name="days"><option value="all">every day</option><option value="working">weekdays</option></select></label>
      </div>
      <p class="card-foot"><button type="submit" class="plain">${set ? "Save" : "Send me a brief"}</button>${set && html`<${Sure} label="Turn off the brief" yes="Turn it off" act=${() => attempt(api.endBrief)} />`}</p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}

const ONE = "one"; // an existing thread
const OWN = new Set(["web", "terminal", "openai"]);

function NewSchedule({ reload, state, session }) {
  const [chats] = useChats();
  const [into, setInto] = useState("");
  const [thread, setThread] = useState("");
  const [agents] = useAnswer(api.agents);
  const [fresh, setFresh] = useState(() => me.thread_prefix + newId());
  const [kind, setKind] = useState("one-shot");
  const [problem, setProblem] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    const given = Object.fromEntries(new FormData(form));
    const schedule = kind === "one-shot" ? new Date(given.at).toISOString() : cronOf(given.repeat, given);
    try {
      await api.addTrigger({ kind, schedule, text: given.text, thread: into === ONE ? thread : into || fresh, ...(given.agent && { agent: given.agent }), timezone: given.timezone || zone });
      form.reset();
      setInto("");
      setFresh(me.thread_prefix + newId());
      setProblem("");
      await reload();
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`
    <form class="card form" onSubmit=${submit}>
      <h2>New schedule</h2>
      <label>Message <textarea name="text" required rows="2" placeholder="Summarize what happened today"></textarea></label>
      <fieldset>
        <legend class="offscreen">When</legend>
        <label class="choice"><input type="radio" name="kind" checked=${kind === "one-shot"} onChange=${() => setKind("one-shot")} /> Once</label>
        <label class="choice"><input type="radio" name="kind" checked=${kind === "periodic"} onChange=${() => setKind("periodic")} /> Repeatedly</label>
      </fieldset>
      ${kind === "one-shot"
        ? html`<label key="at">At <input type="datetime-local" name="at" required /></label>`
        : html`<${Repeat} key=${fresh} />`}
      <div class="pair">
        <label>Send to <select name="into" value=${into} onChange=${(event) => setInto(event.target.value)}>
          <option value="">A new conversation on this page</option>
          ${(chats || []).filter(({ platform }) => !OWN.has(platform)).map((chat) => html`<option key=${chat.thread} value=${chat.thread}>${chat.name}</option>`)}
          <option value=${ONE}>An existing conversation…</option>
        </select></label>
        ${agents?.length > 1 && html`<label>Answered by <select name="agent"><option value="">the conversation's agent</option>${agents.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`}
      </div>
      ${into === ONE && html`<${ThreadPicker} state=${state} session=${session} value=${thread} change=${setThread} />`}
      <p class="card-foot"><button type="submit" class="primary">Add schedule</button></p>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    </form>
  `;
}
