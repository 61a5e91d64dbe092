// Files attached to a message: chosen, pasted or dropped.

import { html, useEffect, useRef, useState } from "../dom.js";
import { bytes } from "../format.js";
import { icon } from "./icons.js";
import { Words } from "./words.js";

const BYTES_MAX = 26_214_400;
const FILES_MAX = 10;

function Thumbnail({ file }) {
  const [address, setAddress] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(file);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  return address && html`<img class="thumbnail" src=${address} alt="" onError=${() => setAddress("")} />`;
}

/** The attach button with the chosen files. `word` is shown next to the icon if it fits. */
export function Files({ files, change, box, word }) {
  const input = useRef(null);
  const [problem, setProblem] = useState("");
  const [over, setOver] = useState(false);
  const latest = useRef(files);
  latest.current = files;

  const take = (list) => {
    const taken = [...list];
    const large = taken.filter((file) => file.size > BYTES_MAX);
    const all = [...latest.current, ...taken.filter((file) => file.size <= BYTES_MAX)];
    if (large.length) setProblem(`Files can be at most 25 MB. Not attached: ${large.map((file) => file.name).join(", ")}`);
    else setProblem(all.length > FILES_MAX ? `A message can have at most ${FILES_MAX} files. The others were not attached.` : "");
    change(all.slice(0, FILES_MAX));
  };

  useEffect(() => {
    const pasted = (event) => {
      if (!event.clipboardData?.files.length) return;
      event.preventDefault();
      take(event.clipboardData.files);
    };
    const dragged = (event) => {
      if (![...(event.dataTransfer?.types || [])].includes("Files")) return;
      event.preventDefault();
      setOver(event.type === "dragover");
      if (event.type === "drop") take(event.dataTransfer.files);
    };
    const area = box.current;
    area.addEventListener("paste", pasted);
    for (const type of ["dragover", "dragleave", "drop"]) document.addEventListener(type, dragged);
    return () => {
      area.removeEventListener("paste", pasted);
      for (const type of ["dragover", "dragleave", "drop"]) document.removeEventListener(type, dragged);
    };
  }, []);

  const chosen = (event) => {
    take(event.target.files);
    event.target.value = "";
    box.current.focus();
  };
  return html`
    <button type="button" class="quiet" aria-label="Attach a file" title="Attach a file" onClick=${() => input.current.click()}>${icon("clip")}${word && html`<span class="if-wide" aria-hidden="true">${word}</span>`}</button>
    <input ref=${input} type="file" multiple hidden onChange=${chosen} />
    ${files.length > 0 &&
    html`
      <ul class="files">
        ${files.map(
          (file) => html`
            <li key=${file}>
              ${file.type.startsWith("image/") && html`<${Thumbnail} file=${file} />`} ${file.name} <span class="faint">${bytes(file.size)}</span>
              <button type="button" class="quiet" aria-label=${`Remove ${file.name}`} onClick=${() => change(files.filter((other) => other !== file))}>
                ${icon("close")}
              </button>
            </li>
          `,
        )}
      </ul>
    `}
    ${problem && html`<span class="problem" role="alert"><${Words} text=${problem} /></span>`}
    ${over && html`<div class="drop" aria-hidden="true">Drop files to attach them</div>`}
  `;
}
