// Backups: which there are, whether the last one failed, and one now.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { ago, bytes, fullTime } from "../format.js";
import { canChange } from "../me.js";
import { Place, useAnswer, useAttempt } from "./lists.js";
import { Words } from "./words.js";

const POLL_MS = 60_000;

export function Backups() {
  const [answer, problem, reload] = useAnswer(api.backups, POLL_MS);
  const [attempt, failure] = useAttempt(reload);
  const [busy, setBusy] = useState(false);
  const make = async () => {
    setBusy(true);
    await attempt(api.backUp);
    setBusy(false);
  };
  const said = answer?.has_place && !answer.backups.length && "There is none yet.";
  return html`
    <${Place} intro="Each of these was read again and checked when it was made. “shoal restore” says how to go back to the newest." problem=${problem} reload=${reload} loading=${!answer}>
      ${answer && answer.has_place && !answer.scheduled && html`<p class="faint">Backups are made only when somebody asks for one. To have them made regularly, set <code>backup.every_hours</code> in shoal.toml.</p>`}
      ${answer && !answer.has_place && html`<p class="faint">There is no place for backups yet. Set <code>backup.to</code> in shoal.toml to a folder, better on another disk, or to a bucket, and restart Shoal. <code>shoal backup FILE</code> makes one at once.</p>`}
      ${answer && answer.problem && html`<p class="problem breakable" role="alert">The last one failed. ${answer.problem}</p>`}
      <ul class="cards">${((answer && answer.backups) || []).map((one) => html`<${Backup} key=${one.name} backup=${one} />`)}</ul>
      ${said && html`<p class="faint empty">${said}</p>`}
      ${answer?.has_place && canChange() && html`<p class="card-foot"><button type="button" class="primary" disabled=${busy} onClick=${make}>${busy ? "Backing up…" : "Back up now"}</button></p>`}
      ${failure && html`<p class="problem" role="alert"><${Words} text=${failure} /></p>`}
    <//>
  `;
}

function Backup({ backup }) {
  return html`
    <li class="card">
      <p class="card-head"><b class="clamped breakable">${backup.name}</b><span class="tag">checked</span></p>
      <p class="faint"><span title=${fullTime(backup.at)}>${ago(backup.at)}</span> · ${bytes(backup.size_bytes)}</p>
    </li>
  `;
}
