// Save a turn as a case of its agent, with expectations for the answer.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { Dialog } from "./dialog.js";
import { Words } from "./words.js";

const KINDS = [
  ["contains", "The answer contains", "Text"],
  ["lacks", "The answer does not contain", "Text"],
  ["matches", "The answer matches", "Regular expression"],
  ["calls", "It calls", "Tool"],
  ["never_calls", "It never calls", "Tool"],
  ["judged", "A model judges that", "Sentence"],
];

/** Suggest a case name from the first words of a message; empty without Latin letters. */
export const nameOf = (text) => (text.toLowerCase().match(/[a-z0-9]+/g) || []).slice(0, 6).join("-").slice(0, 64);

export function SaveCase({ thread, turn, session, close }) {
  const items = session.state.views[thread].state.items.filter((item) => item.turn === turn.id);
  const recorded = items.filter((item) => item.kind === "tool");
  const tools = [...new Set(recorded.map((call) => call.name))];
  const [fields, setFields] = useState({ name: nameOf(items.find((item) => item.kind === "user")?.text || ""), about: "", sandbox: false });
  const [rows, setRows] = useState([tools.length ? { kind: "calls", text: tools[0], args: "" } : { kind: "contains", text: "", args: "" }]);
  const [problem, setProblem] = useState("");
  const [saved, setSaved] = useState(null);
  const argumentsOf = (name) => recorded.find((call) => call.name === name)?.arguments || "";
  const change = (at, part) => setRows(rows.map((row, place) => (place === at ? { ...row, ...part } : row)));
  const save = async (event) => {
    event.preventDefault();
    setProblem("");
    try {
      const expect = rows.map(({ kind, text, args }) => ({ [kind]: text, ...(kind.endsWith("calls") && args.trim() ? { arguments: JSON.parse(args) } : {}) }));
      const failed = await session.attempt(async () => setSaved(await api.saveCase(thread, { ...fields, turn: turn.id, expect })));
      setProblem(failed);
    } catch (error) {
      setProblem(`The arguments are not a JSON object: ${error.message}`);
    }
  };
  if (saved) {
    return html`
      <${Dialog} label="Save as test case" close=${close}>
        <p>Saved as <code class="breakable">agents/${saved.agent}/${saved.file}</code>. <code>shoal check --agent ${saved.agent}</code> runs it. Shoal also runs it before the agent changes itself.</p>
        <p class="sheet-line is-end"><button type="button" class="primary" onClick=${close}>Done</button></p>
      <//>
    `;
  }
  return html`
    <${Dialog} label="Save as test case" close=${close}>
      <form class="form" onSubmit=${save}>
        <p class="faint">A test case contains the conversation up to this turn and its tool results. What should the answer contain next time?</p>
        <label>Name <input value=${fields.name} required maxlength="64" pattern="[a-z0-9][a-z0-9\\-]*" title="Lower-case letters, digits and hyphens" placeholder="looks-before-it-answers" onInput=${(event) => setFields({ ...fields, name: event.target.value })} /></label>
        <label>Purpose (optional) <input value=${fields.about} maxlength="300" onInput=${(event) => setFields({ ...fields, about: event.target.value })} /></label>
        ${rows.map(
          (row, at) => html`
            <fieldset class="expectation" key=${at}>
              <label>${at ? "And" : "Expect"} <select value=${row.kind} onChange=${(event) => change(at, { kind: event.target.value })}>${KINDS.map(([kind, label]) => html`<option value=${kind}>${label}</option>`)}</select></label>
              <label>${KINDS.find(([kind]) => kind === row.kind)[2]} <input value=${row.text} required list=${row.kind.endsWith("calls") ? "case-tools" : null} onInput=${(event) => change(at, { text: event.target.value })} /></label>
              ${row.kind.endsWith("calls") && html`<label>With at least these arguments, as JSON (empty: any) <input value=${row.args} spellcheck="false" onInput=${(event) => change(at, { args: event.target.value })} /></label>`}
              ${row.kind === "calls" && !row.args && argumentsOf(row.text) && html`<button type="button" class="quiet" onClick=${() => change(at, { args: argumentsOf(row.text) })}>Use this turn's arguments</button>`}
              ${rows.length > 1 && html`<button type="button" class="quiet" onClick=${() => setRows(rows.filter((_, place) => place !== at))}>Remove</button>`}
            </fieldset>
          `,
        )}
        <datalist id="case-tools">${tools.map((name) => html`<option value=${name} />`)}</datalist>
        <button type="button" class="quiet" onClick=${() => setRows([...rows, { kind: "contains", text: "", args: "" }])}>Add another</button>
        <label class="only"><input type="checkbox" checked=${fields.sandbox} onChange=${(event) => setFields({ ...fields, sandbox: event.target.checked })} /> Run the tools in a temporary workspace instead</label>
        ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
        <p class="sheet-line is-end"><button type="submit" class="primary">Save</button><button type="button" class="quiet" onClick=${close}>Cancel</button></p>
      </form>
    <//>
  `;
}
