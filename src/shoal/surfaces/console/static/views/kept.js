// A thread's files, and the full results of its tool calls.

import { api, artifactAddress, threadFileAddress } from "../api.js";
import { html, useState } from "../dom.js";
import { age, bytes, fullTime, shownPath, visible } from "../format.js";
import { Place, useAnswer } from "./lists.js";
import { TextBlock } from "./textblock.js";
import { Words } from "./words.js";

const SHOWN_BYTES_MAX = 4_194_304; // larger results can only be downloaded

/** A stored result, to show on the page or download as `name`. */
export function Artifact({ thread, artifact, name, sizeBytes = 0 }) {
  const [text, setText] = useState(null);
  const [problem, setProblem] = useState("");
  const toggle = async () => {
    if (text !== null) {
      setText(null);
      return;
    }
    try {
      setText(await api.artifact(thread, artifact));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`
    <p class="card-foot">
      ${sizeBytes <= SHOWN_BYTES_MAX && html`<button type="button" class="plain" aria-expanded=${text !== null} onClick=${toggle}>${text === null ? "Show full output" : "Hide"}</button>`}
      <a class="quiet" href=${artifactAddress(thread, artifact)} download=${`${name}-${artifact.slice(0, 12)}.txt`}>Download</a>
    </p>
    ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
    ${text !== null && html`<${TextBlock} label="Full output" text=${text || "(empty)"} />`}
  `;
}

export function Kept({ thread }) {
  const [found, problem, reload] = useAnswer(() => Promise.all([api.files(thread), api.artifacts(thread)]));
  const [files, artifacts] = found || [[], []];
  return html`
    <${Place} intro="Files sent or created here, and tool results that were too long for the conversation." problem=${problem} reload=${reload} loading=${!found}>
      ${found &&
      html`
        <section class="people" aria-label="Files">
          <h2>Files</h2>
          ${!files.length && html`<p class="faint">No files yet.</p>`}
          <ul class="kept">${files.map((file) => html`<${File} key=${file.path} thread=${thread} file=${file} />`)}</ul>
        </section>
        <section class="people" aria-label="Full results">
          <h2>Full results</h2>
          ${!artifacts.length && html`<p class="faint">No long results yet.</p>`}
          <ul class="kept">${artifacts.map((one) => html`<${Result} key=${`${one.turn}/${one.call_id}`} thread=${thread} result=${one} />`)}</ul>
        </section>
      `}
    <//>
  `;
}

function File({ thread, file }) {
  const shown = shownPath(file.path);
  return html`
    <li>
      <p class="kept-line">
        <a class="breakable" href=${threadFileAddress(thread, file.path)} download=${shown.split("/").pop()}>${shown}</a>
        <span class="faint">${bytes(file.size_bytes)} · <time datetime=${file.modified_at} title=${fullTime(file.modified_at)}>${age(file.modified_at)}</time></span>
      </p>
    </li>
  `;
}

function Result({ thread, result }) {
  return html`
    <li>
      <p class="kept-line">
        <span><code>${result.name}</code> ${result.tainted_by && html`<span class="faint">untrusted content: ${visible(result.tainted_by)}</span>`}</span>
        <span class="faint">${bytes(result.size_bytes)} · <time datetime=${result.created_at} title=${fullTime(result.created_at)}>${age(result.created_at)}</time></span>
      </p>
      <${Artifact} thread=${thread} artifact=${result.artifact} name=${result.name} sizeBytes=${result.size_bytes} />
    </li>
  `;
}
