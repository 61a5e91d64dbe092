import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { ago, bytes, fullTime } from "../format.js";
import { canChange, isOwner } from "../me.js";
import { Place, useAnswer, useAttempt } from "./lists.js";
import { Words } from "./words.js";

const POLL_MS = 60_000;
const RHYTHMS = [[24, "Every day"], [6, "Every 6 hours"], [1, "Every hour"], [168, "Every week"], [0, "Only manually"]];

export function Backups() {
  const [answer, problem, reload] = useAnswer(api.backups, POLL_MS);
  const [attempt, failure] = useAttempt(reload);
  const [busy, setBusy] = useState(false);
  const make = async () => {
    setBusy(true);
    await attempt(api.backUp);
    setBusy(false);
  };
  const said = answer?.has_place && !answer.backups.length && "No backups yet.";
  return html`
    <${Place} intro="Shoal verifies each backup after making it. To restore one, run “shoal restore”." problem=${problem} reload=${reload} loading=${!answer}>
      ${answer && answer.has_place && !answer.scheduled && html`<p class="faint">Automatic backups are off. Choose a schedule below.</p>`}
      ${answer && !answer.has_place && html`<p class="faint above">No backups yet. Choose a location below, preferably a folder on another disk or a bucket.</p>`}
      ${answer && answer.problem && html`<p class="problem breakable" role="alert">The last backup failed. ${answer.problem}</p>`}
      <ul class="cards">${((answer && answer.backups) || []).map((one) => html`<${Backup} key=${one.name} backup=${one} />`)}</ul>
      ${said && html`<p class="faint empty">${said}</p>`}
      ${answer?.has_place && canChange() && html`<p class="card-foot"><button type="button" class="primary" disabled=${busy} onClick=${make}>${busy ? "Backing up…" : "Back up now"}</button></p>`}
      ${answer && isOwner() && html`<${Target} answer=${answer} reload=${reload} />`}
      ${failure && html`<p class="problem" role="alert"><${Words} text=${failure} /></p>`}
    <//>
  `;
}

/** The location and schedule of backups. Saving tests the location with a backup. */
function Target({ answer, reload }) {
  const [attempt, problem] = useAttempt(reload);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const { to, hours } = Object.fromEntries(new FormData(event.target));
    setBusy(true);
    await attempt(() => api.moveBackups({ to: to.trim(), every_hours: Number(hours) }));
    setBusy(false);
  };
  return html`
    <form class="card form" onSubmit=${submit}>
      <h2>${answer.has_place ? "Change location" : "Set up backups"}</h2>
      <div class="pair">
        <label>Folder on the server, or S3 bucket <input name="to" required defaultValue=${answer.to} placeholder="/mnt/disk/shoal or s3://bucket/shoal" spellcheck="false" /></label>
        <label>How often <select name="hours" defaultValue=${String(answer.every_hours)}>${RHYTHMS.map(([hours, words]) => html`<option key=${hours} value=${hours} selected=${hours === answer.every_hours}>${words}</option>`)}</select></label>
      </div>
      <p class="card-foot"><span class="faint">Saving makes a backup there immediately and verifies it.</span><button type="submit" class="primary" disabled=${busy}>${busy ? "Backing up…" : "Save"}</button></p>
      <${Problem} text=${problem} />
    </form>
  `;
}

const Problem = ({ text }) => text && html`<p class="problem breakable" role="alert"><${Words} text=${text} /></p>`;

function Backup({ backup }) {
  return html`
    <li class="card">
      <p class="card-head"><b class="clamped breakable">${backup.name}</b><span class="tag">verified</span></p>
      <p class="faint"><span title=${fullTime(backup.at)}>${ago(backup.at)}</span> · ${bytes(backup.size_bytes)}</p>
    </li>
  `;
}
