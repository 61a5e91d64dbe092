// An agent's persona files and documents: read, edit, add, remove, undo.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { ago, bytes, fullTime, visible } from "../format.js";
import { canChange } from "../me.js";
import { Sure, useAnswer, useAttempt } from "./lists.js";
import { Prose } from "./prose.js";
import { Words } from "./words.js";

const PERSONA = { "AGENTS.md": "instructions", "SOUL.md": "personality", "IDENTITY.md": "identity", "USER.md": "user" };
const POLL_MS = 15_000;

export function AgentFiles({ agent }) {
  const [files, problem, reload] = useAnswer(() => api.agentFiles(agent), POLL_MS);
  const [attempt, failure] = useAttempt(reload);
  const [said, setSaid] = useState("");
  const [open, setOpen] = useState("");
  const documents = (files || []).filter((one) => one.kind === "document");
  const add = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file && (await attempt(() => api.uploadAgentFile(agent, `docs/${file.name}`, file)))) setSaid(`Added ${file.name}.`);
  };
  const takeBack = () => attempt(async () => setSaid((await api.undoAgent(agent)).said));
  const row = (path, file) => html`<${File} key=${path} agent=${agent} path=${path} file=${file} open=${open === path} toggle=${() => setOpen(open === path ? "" : path)} reload=${reload} />`;
  return html`
    <section class="inner" aria-label=${`Files of ${agent}`}>
      ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
      ${!files && !problem && html`<p class="faint">Loading…</p>`}
      ${files && html`
        <h3>Persona</h3>
        <ul class="entries">${Object.keys(PERSONA).map((path) => row(path, files.find((one) => one.path === path)))}</ul>
        <h3>Documents</h3>
        <p class="faint">The agent can search and read these documents.</p>
        ${!documents.length && html`<p class="faint">No documents yet.</p>`}
        <ul class="entries">${documents.map((one) => row(one.path, one))}</ul>
        ${canChange() && html`<p class="card-foot">
          <label class="plain file-button">Add a document <input class="offscreen" type="file" onChange=${add} /></label>
          <${Sure} label="Undo the last change" yes="Undo" act=${takeBack} />
        </p>`}
        ${said && html`<p role="status" class="faint breakable">${visible(said)}</p>`}
        ${failure && html`<p class="problem breakable" role="alert"><${Words} text=${failure} /></p>`}`}
    </section>
  `;
}

/** Return the details that appear next to a file's name. */
export function factsOf(path, file) {
  if (!file) return `${PERSONA[path]}, empty`;
  if (file.kind === "persona") return PERSONA[path];
  return [bytes(file.size_bytes), file.problem ? `not indexed: ${file.problem}` : file.searched ? "indexed" : "indexing…"].join(" · ");
}

function File({ agent, path, file, open, toggle, reload }) {
  return html`
    <li class="file-row">
      <span><span class="breakable">${visible(path.replace(/^docs\//, ""))}</span> <span class="faint">${visible(factsOf(path, file))}</span></span>
      <button type="button" class="quiet" aria-expanded=${open} onClick=${toggle}>${open ? "Close" : "Open"}<span class="offscreen"> ${path}</span></button>
      ${open && html`<${Opened} key=${path} agent=${agent} path=${path} toggle=${toggle} reload=${reload} />`}
    </li>
  `;
}

function Opened({ agent, path, toggle, reload }) {
  const [file, problem, again] = useAnswer(() => api.agentFile(agent, path));
  const [draft, setDraft] = useState(null);
  const [attempt, failure] = useAttempt(async () => (await again(), await reload()));
  if (!file) return html`<p class=${problem ? "problem" : "faint"}>${problem || "Loading…"}</p>`;
  const save = async (event) => {
    event.preventDefault();
    if (await attempt(() => api.writeAgentFile(agent, path, draft, file.digest))) setDraft(null);
  };
  const remove = async () => (await attempt(() => api.deleteAgentFile(agent, path))) && toggle();
  return html`
    <div class="file-open">
      ${draft !== null
        ? html`<form class="form" aria-label=${`Edit ${path}`} onSubmit=${save}>
            <label><span class="offscreen">Text of ${path}</span><textarea rows="14" spellcheck=${false} value=${draft} onInput=${(event) => setDraft(event.target.value)}></textarea></label>
            <p class="card-foot"><span class="faint">Takes effect on the next turn.</span><button type="submit" class="primary">Save</button><button type="button" class="quiet" onClick=${() => setDraft(null)}>Cancel</button></p>
          </form>`
        : html`
          ${file.is_text ? file.text.trim() && html`<div class="skill-text"><${Prose} text=${file.text} thread="" /></div>` : html`<p class="faint">This file has no preview because it is not text.</p>`}
          ${canChange() && html`<p class="card-foot">
            ${file.is_text && html`<button type="button" class="plain" onClick=${() => setDraft(file.text)}>${file.digest ? "Edit" : "Create"}<span class="offscreen"> ${path}</span></button>`}
            ${file.digest && html`<${Sure} label="Remove" what=${path} yes="Remove it" act=${remove} />`}
          </p>`}`}
      ${file.changes.length > 0 && html`<details><summary>History</summary>
        <ul class="entries">${file.changes.map((one) => html`<li key=${one.at + one.subject}><span class="breakable">${visible(one.subject)}</span><span class="faint">${visible(one.author)} <time datetime=${one.at} title=${fullTime(one.at)}>${ago(one.at)}</time></span></li>`)}</ul>
      </details>`}
      ${failure && html`<p class="problem breakable" role="alert"><${Words} text=${failure} /></p>`}
    </div>
  `;
}
