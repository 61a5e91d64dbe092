// Setup: models and chats, each tested before it takes effect, without a restart.

import { api } from "../api.js";
import { html, useState } from "../dom.js";
import { visible } from "../format.js";
import { Place, Sure, useAnswer, useAttempt } from "./lists.js";
import { Words } from "./words.js";

const POLL_MS = 5_000;
const STATES = { connected: "connected", connecting: "connecting…", failing: "failing", off: "switched off" };

export function Setup() {
  const [setup, problem, reload] = useAnswer(api.setup, POLL_MS);
  return html`
    <${Place} intro="Models, and the chats where people reach your agents. Shoal tests each change, which then takes effect on the next message." problem=${problem} reload=${reload} loading=${!setup}>
      ${setup && html`<${Model} setup=${setup} reload=${reload} /><${Chats} setup=${setup} reload=${reload} /><${Titles} setup=${setup} reload=${reload} /><${Prices} /><${Commands} />`}
    <//>
  `;
}

const TITLES = { auto: "the model, if it costs under 0.05 cents", words: "the first words", model: "the model, after the first turn" };

function Titles({ setup, reload }) {
  const [attempt, problem] = useAttempt(reload);
  return html`
    <section class="panel" aria-labelledby="setup-titles">
      <div class="panel-head"><h2 id="setup-titles">Conversation titles</h2></div>
      <label>Titles come from <select value=${setup.titles} onChange=${(event) => attempt(() => api.changeSetup({ titles: event.target.value }))}>${Object.entries(TITLES).map(([value, words]) => html`<option value=${value}>${words}</option>`)}</select></label>
      <p class="faint">${{ auto: "Shoal makes one short model call per new conversation, if the call costs less than 0.05 cents.", model: "Shoal makes one short model call per new conversation.", words: "Shoal makes no model call for titles." }[setup.titles]} It never replaces titles that people chose.</p>
      <${Problem} text=${problem} />
    </section>
  `;
}

/** Prices of models that no public price list contains. */
function Prices() {
  const [models, , reload] = useAnswer(api.models);
  const [attempt, problem] = useAttempt(reload);
  const unknown = (models || []).filter((one) => one.input_usd === null);
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    const { model, input, output } = Object.fromEntries(new FormData(form));
    if (await attempt(() => api.changeSetup({ price: { model: model.trim(), input: Number(input), output: Number(output) } }))) form.reset();
  };
  if (!models?.length) return null;
  return html`
    <section class="panel" aria-labelledby="setup-prices">
      <div class="panel-head"><h2 id="setup-prices">Model prices</h2></div>
      <p class="faint breakable">${unknown.length ? `Prices are unknown for ${unknown.slice(0, 5).map((one) => visible(one.name)).join(", ")}${unknown.length > 5 ? ` and ${unknown.length - 5} more` : ""}. With a dollar limit, Shoal does not call models without a price, unless budget.unpriced is “allow”.` : "Shoal knows the price of every model. A price that you set here replaces the known price of that model."}</p>
      <form class="form" onSubmit=${submit}>
        <div class="pair">
          <label>Model <input name="model" required list="priced" placeholder="provider/model" spellcheck="false" /></label>
          <label>Input, $ per million tokens <input name="input" type="number" min="0" step="any" required /></label>
          <label>Output, $ per million tokens <input name="output" type="number" min="0" step="any" required /></label>
        </div>
        <datalist id="priced">${models.map((one) => html`<option key=${one.name} value=${one.name}></option>`)}</datalist>
        <p class="card-foot"><button type="submit" class="plain">Set price</button></p>
      </form>
      <${Problem} text=${problem} />
    </section>
  `;
}

function Commands() {
  const [info] = useAnswer(api.info);
  if (!info?.notes) return null;
  return html`
    <section class="panel" aria-labelledby="setup-commands">
      <div class="panel-head"><h2 id="setup-commands">Commands</h2><span class=${`tag ${info.isolated ? "is-connected" : "is-ask"}`}>${info.isolated ? "in a sandbox" : "no sandbox"}</span></div>
      <p>${info.isolated ? `Agents' commands run in ${info.sandbox}, isolated from your files.` : "Agents' commands run with your permissions and can access all your files."}</p>
      <p>${info.asks}</p>
      ${info.notes.map((note) => html`<p key=${note} class="faint breakable"><${Words} text=${note} /></p>`)}
      ${!info.isolated && html`<p class="faint"><code>shoal doctor</code> shows what this machine needs for a sandbox.</p>`}
    </section>
  `;
}

const Problem = ({ text }) => text && html`<p class="problem breakable" role="alert"><${Words} text=${text} /></p>`;

// ---- a model ----

function Model({ setup, reload }) {
  const [open, setOpen] = useState(false);
  const [said, setSaid] = useState("");
  const [note, setNote] = useState("");
  const done = async (answered) => {
    setOpen(false);
    setSaid(answered.said);
    setNote(answered.note);
    await reload();
  };
  return html`
    <section class="panel" aria-labelledby="setup-model">
      <div class="panel-head"><h2 id="setup-model">Model</h2>${!setup.is_demo && html`<span class="tag">set up</span>`}</div>
      <p>${setup.is_demo ? "No model is set up yet. The built-in demo answers with a few fixed sentences." : html`Agents use <code class="breakable">${visible(setup.model)}</code> by default.`}</p>
      ${said && html`<p role="status">The model answered: “${visible(said)}” <a href="#/new">Start a conversation</a></p>`}
      ${note && html`<p class="problem breakable"><${Words} text=${note} /></p>`}
      ${open || setup.is_demo
        ? html`<${ModelForm} setup=${setup} done=${done} />`
        : html`<p class="card-foot"><button type="button" class="plain" onClick=${() => setOpen(true)}>Choose another model</button></p>`}
    </section>
  `;
}

function ModelForm({ setup, done }) {
  const [choice, setChoice] = useState(setup.models.find((one) => one.is_set) || setup.models[0]);
  const [entered, setEntered] = useState({});
  const [offer, setOffer] = useState(null);
  const [model, setModel] = useState("");
  const [busy, setBusy] = useState("");
  const [problem, setProblem] = useState("");
  const attempt = async (what, action) => {
    setBusy(what);
    setProblem("");
    try {
      await action();
    } catch (error) {
      setProblem(error.message);
    }
    setBusy("");
  };
  const test = () =>
    attempt("test", async () => {
      setOffer(null);
      const found = await api.tryProvider(choice.name, entered);
      setOffer(found);
      setModel(found.usual);
    });
  const submit = (event) => {
    event.preventDefault();
    if (offer) attempt("use", async () => done(await api.useModel(choice.name, { ...entered, model })));
    else test();
  };
  const choose = (event) => {
    setChoice(setup.models.find((one) => one.name === event.target.value));
    setEntered({});
    setOffer(null);
    setProblem("");
  };
  const enter = (field) => (event) => {
    setEntered({ ...entered, [field]: event.target.value.trim() });
    setOffer(null);
  };
  return html`
    <form class="form" aria-label="Set up a model" onSubmit=${submit}>
      <label>Provider <select value=${choice.name} onChange=${choose}>${setup.models.map((one) => html`<option key=${one.name} value=${one.name}>${one.title}</option>`)}</select></label>
      ${choice.wants.includes("address") && html`<label key=${`${choice.name}address`}>URL <input type="url" placeholder=${choice.address || "http://127.0.0.1:8080/v1"} value=${entered.address || ""} required=${!choice.address} spellcheck=${false} onInput=${enter("address")} /></label>`}
      ${choice.wants.includes("key") && html`<label key=${`${choice.name}key`}>API key <input type="password" autocomplete="off" spellcheck=${false} placeholder=${choice.has_key ? "the stored key" : choice.name === "server" ? "if required" : ""} value=${entered.key || ""} required=${Boolean(choice.key_kind) && !choice.has_key} onInput=${enter("key")} /></label>`}
      ${choice.wants.includes("model_file") && html`<label key="file">Model file on the server <input placeholder="/home/you/models/model.gguf" value=${entered.model_file || ""} required spellcheck=${false} onInput=${enter("model_file")} /></label>`}
      ${offer && html`
        <p role="status">The connection works. ${offer.models.length === 1 ? "One model is" : `${offer.models.length} models are`} available.</p>
        <label>Model <input list="offered" value=${model} required spellcheck=${false} onInput=${(event) => setModel(event.target.value.trim())} /></label>
        <datalist id="offered">${offer.models.map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>`}
      ${choice.install && html`<p class="problem breakable">Install the package that this provider needs, then restart Shoal. ${visible(choice.install)}</p>`}
      <${Problem} text=${problem} />
      <p class="card-foot">
        <span class="faint">Keys are stored in separate files and never shown again.</span>
        <button type="button" class=${offer ? "plain" : "primary"} disabled=${Boolean(busy)} onClick=${(event) => event.target.form.reportValidity() && test()}>${busy === "test" ? "Testing…" : "Test"}</button>
        ${offer && html`<button type="submit" class="primary" disabled=${Boolean(busy) || !model}>${busy === "use" ? "Testing…" : "Use this model"}</button>`}
      </p>
    </form>
  `;
}

// ---- chats ----

function Chats({ setup, reload }) {
  const [adding, setAdding] = useState(false);
  return html`
    <section class="panel" aria-labelledby="setup-chats">
      <div class="panel-head"><h2 id="setup-chats">Chats</h2></div>
      ${!setup.accounts.length && html`<p>Connect a chat to write to your agents from there. The page and the terminal work without one.</p>`}
      <ul class="cards">${setup.accounts.map((one) => html`<${Account} key=${one.name} account=${one} setup=${setup} reload=${reload} />`)}</ul>
      ${adding
        ? html`<${ChatForm} setup=${setup} done=${() => (setAdding(false), reload())} cancel=${() => setAdding(false)} />`
        : html`<p class="card-foot"><button type="button" class=${setup.accounts.length ? "plain" : "primary"} onClick=${() => setAdding(true)}>Connect a chat</button></p>`}
    </section>
  `;
}

function Account({ account, setup, reload }) {
  const [attempt, problem] = useAttempt(reload);
  const [changing, setChanging] = useState(false);
  const isOff = account.state === "off";
  const chat = setup.chats.find((one) => one.name === account.platform && account.name === one.name);
  const own = async (event) => {
    event.preventDefault();
    const form = event.target;
    if (await attempt(() => api.ownPlatform(account.name, new FormData(form).get("code").trim()))) form.reset();
  };
  return html`
    <li class="card">
      <p class="card-head"><b>${account.title}${account.name !== account.platform && html` <span class="faint breakable">${account.name}</span>`}</b><span class=${`tag is-${account.state}`}>${STATES[account.state]}</span></p>
      ${account.failure && html`<p class="problem breakable">${visible(account.failure)}</p>`}
      <p class="faint breakable">${account.owner ? `Owner: user ${visible(account.owner)}, who always has access.` : "No owner yet."}</p>
      ${!account.owner && chat && account.state === "connected" && html`
        <form class="form inner" aria-label=${`Become the owner of ${account.title}`} onSubmit=${own}>
          <p>To become the owner, send your bot a direct message. Then enter the code from its reply here.</p>
          <div class="line">
            <label>Code <input name="code" required maxlength="40" autocomplete="off" autocapitalize="characters" spellcheck=${false} placeholder="ABCD-EFGH" /></label>
            <button type="submit" class="primary">Become owner</button>
          </div>
        </form>`}
      ${changing && html`<${ChatForm} setup=${setup} only=${chat} done=${() => (setChanging(false), reload())} cancel=${() => setChanging(false)} />`}
      <${Problem} text=${problem} />
      ${!changing && html`<p class="card-foot">
        ${chat && html`<button type="button" class="quiet" onClick=${() => setChanging(true)}>Replace token<span class="offscreen"> for ${account.title}</span></button>`}
        ${isOff
          ? html`<button type="button" class="plain" onClick=${() => attempt(() => api.switchPlatform(account.name, true))}>Switch on<span class="offscreen"> ${account.title}</span></button>`
          : html`<${Sure} label="Switch off" what=${account.title} yes="Switch it off" act=${() => attempt(() => api.switchPlatform(account.name, false))} />`}
      </p>`}
    </li>
  `;
}

function ChatForm({ setup, only, done, cancel }) {
  const free = setup.chats.filter((chat) => !setup.accounts.some((one) => one.platform === chat.name && one.state !== "off"));
  const [chat, setChat] = useState(only || free[0]);
  const [busy, setBusy] = useState("");
  const [told, setTold] = useState("");
  const [problem, setProblem] = useState("");
  const attempt = async (what, form) => {
    if (!form.reportValidity()) return;
    const values = Object.fromEntries([...new FormData(form)].filter(([name]) => name !== "platform"));
    setBusy(what);
    setTold("");
    setProblem("");
    try {
      await (what === "test" ? api.tryPlatform : api.connectPlatform)(chat.name, values);
      if (what === "test") setTold(`${chat.title} accepted the connection.`);
      else await done();
    } catch (error) {
      setProblem(error.message);
    }
    setBusy("");
  };
  const submit = (event) => {
    event.preventDefault();
    attempt("connect", event.target);
  };
  return html`
    <form class="form inner" aria-label="Connect a chat" onSubmit=${submit}>
      ${!only && html`<label>Platform <select name="platform" value=${chat.name} onChange=${(event) => setChat(free.find((one) => one.name === event.target.value))}>${free.map((one) => html`<option key=${one.name} value=${one.name}>${one.title}</option>`)}</select></label>`}
      ${chat.install ? html`<p class="problem breakable">Install the package that this platform needs, then restart Shoal. ${visible(chat.install)}</p>` : chat.fields.map((field) => html`
        <label key=${`${chat.name}${field.name}`}>${field.question}
          <input name=${field.name} type=${field.secret ? "password" : "text"} autocomplete="off" spellcheck=${false} defaultValue=${field.value} placeholder=${field.is_set && field.secret && !only ? "the stored value" : ""} required=${(!field.is_set || only) && !field.optional} />
        </label>`)}
      ${told && html`<p role="status">${told}</p>`}
      <${Problem} text=${problem} />
      <p class="card-foot">
        <button type="button" class="quiet" onClick=${cancel}>Cancel</button>
        <button type="button" class="plain" disabled=${Boolean(busy) || Boolean(chat.install)} onClick=${(event) => attempt("test", event.target.form)}>${busy === "test" ? "Testing…" : "Test"}</button>
        <button type="submit" class="primary" disabled=${Boolean(busy) || Boolean(chat.install)}>${busy === "connect" ? "Connecting…" : "Connect"}</button>
      </p>
    </form>
  `;
}
