// Save a turn as a test case of its agent.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { Dialog } from "./dialog.js";
import { Words } from "./words.js";

const KINDS = [
  ["contains", "The reply contains", "Text"],
  ["lacks", "The reply does not contain", "Text"],
  ["matches", "The reply matches", "Regular expression"],
  ["calls", "The agent calls", "Tool"],
  ["never_calls", "The agent never calls", "Tool"],
  ["judged", "A model confirms that", "Statement"],
];

/** Suggest a case name from the first words of a message. Empty without Latin letters and digits. */
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
      setProblem(`Enter the arguments as a JSON object: ${error.message}`);
    }
  };
  if (saved) {
    return html`
      <${Dialog} label="Save as test case" close=${close}>
        <p>Saved as <code class="breakable">agents/${saved.agent}/${saved.file}</code>. Shoal runs the case before the agent changes itself, and when you run <code>shoal check --agent ${saved.agent}</code>.</p>
        <p class="sheet-line is-end"><button type="button" class="primary" onClick=${close}>Done</button></p>
      <//>
    `;
  }
  return html`
    <${Dialog} label="Save as test case" close=${close}>
      <form class="form" onSubmit=${save}>
        <p class="faint">A test case contains the conversation up to this turn, and the turn's tool results. Choose what to expect from the next run.</p>
        <label>Name <input value=${fields.name} required maxlength="64" pattern="[a-z0-9][a-z0-9\\-]*" title="Lowercase letters, digits and hyphens" placeholder="looks-before-it-answers" onInput=${(event) => setFields({ ...fields, name: event.target.value })} /></label>
        <label>Purpose (optional) <input value=${fields.about} maxlength="300" onInput=${(event) => setFields({ ...fields, about: event.target.value })} /></label>
        ${rows.map(
          (row, at) => html`
            <fieldset class="expectation" key=${at}>
              <label>${at ? "And" : "Expect"} <select value=${row.kind} onChange=${(event) => change(at, { kind: event.target.value })}>${KINDS.map(([kind, label]) => html`<option value=${kind}>${label}</option>`)}</select></label>
              <label>${KINDS.find(([kind]) => kind === row.kind)[2]} <input value=${row.text} required list=${row.kind.endsWith("calls") ? "case-tools" : null} onInput=${(event) => change(at, { text: event.target.value })} /></label>
              ${row.kind.endsWith("calls") && html`<label>With at least these arguments, as JSON (optional) <input value=${row.args} spellcheck="false" onInput=${(event) => change(at, { args: event.target.value })} /></label>`}
              ${row.kind === "calls" && !row.args && argumentsOf(row.text) && html`<button type="button" class="quiet" onClick=${() => change(at, { args: argumentsOf(row.text) })}>Use this turn's arguments</button>`}
              ${rows.length > 1 && html`<button type="button" class="quiet" onClick=${() => setRows(rows.filter((_, place) => place !== at))}>Remove</button>`}
            </fieldset>
          `,
        )}
        <datalist id="case-tools">${tools.map((name) => html`<option value=${name} />`)}</datalist>
        <button type="button" class="quiet" onClick=${() => setRows([...rows, { kind: "contains", text: "", args: "" }])}>Add expectation</button>
        <label class="only"><input type="checkbox" checked=${fields.sandbox} onChange=${(event) => setFields({ ...fields, sandbox: event.target.checked })} /> Run the tools in a temporary workspace instead of replaying their results</label>
        ${problem && html`<p class="problem" role="alert"><${Words} text=${problem} /></p>`}
        <p class="sheet-line is-end"><button type="submit" class="primary">Save</button><button type="button" class="quiet" onClick=${close}>Cancel</button></p>
      </form>
    <//>
  `;
}
