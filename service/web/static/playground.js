// The page at /: choose a task and a model, ask, see the result, take the request along.

import { UnreachableError, hasKey, request, setKey } from "./api.js";
import { html, nothing, render } from "./lit-html.js";
import { latency, problem, remarks, tabList } from "./parts.js";
import { header, keyForm } from "./shell.js";
import * as snippets from "./snippets.js";
import { TASKS, bodyOf, defaultFor, examplesFor, isEmpty, modelsFor, takesList, viewOf, waysToRead } from "./tasks.js";

const CODES = [
  ["curl", "curl"],
  ["python", "Python"],
  ["json", "JSON"],
  ["response", "Response"],
];

/** Largest file that is read into a field; the service takes bodies of 2 MiB unless it is told otherwise. */
const MAX_FILE_BYTES = 2e6;
const COPIED_MS = 2000;
/** Time between two looks at an export that is going on. */
const EXPORT_MS = 5000;
/** Time after the last sign of an export in which its bundle is opened and takes its place. */
const SWAP_MS = 120_000;
/** Name under which the texts are kept in this tab of the browser, for a reload. */
const TEXTS = "bert-texts";
const TOO_LONG = /the model reads at most \d+/;

const kept = keptTexts();
const state = {
  models: null,
  leftOut: [],
  trouble: null,
  needsKey: false,
  wasWrong: false,
  open: "",
  code: "curl",
  copied: "",
  tabs: new Map(TASKS.map((task) => [task.id, { model: null, values: {}, busy: false, shown: null, error: null, abort: null, ...kept[task.id] }])),
};
let retry;
let lookUntil = 0;
let forget;
followLink();

const update = () => render(page(), document.body);

function keptTexts() {
  try {
    return JSON.parse(sessionStorage.getItem(TEXTS)) ?? {};
  } catch {
    return {};
  }
}

addEventListener("pagehide", () => {
  const texts = [...state.tabs].map(([id, { model, values }]) => [id, { model, values }]);
  try {
    sessionStorage.setItem(TEXTS, JSON.stringify(Object.fromEntries(texts)));
  } catch {
    // Storage is forbidden or full: a reload begins with the examples.
  }
});

// ------------------------------------------------------------------ links

/** Return the address that opens this task with this model, these texts and options. A fragment is not sent to any server. */
function linkTo(task, tab) {
  const values = Object.entries({ model: tab.model, ...tab.values }).filter(([, value]) => value);
  return new URL(`#${task.id}?${new URLSearchParams(values)}`, location.href).href;
}

/** Open the task that the address names, with what else is in it; that then leaves the address, as it may be edited. */
function followLink() {
  const [id, ...rest] = location.hash.slice(1).split("?");
  const tab = state.tabs.get(id);
  state.open = id;
  if (!tab || !rest.length) return;
  const { model = null, ...values } = Object.fromEntries(new URLSearchParams(rest.join("?")));
  Object.assign(tab, { model, values, shown: null, error: null, asked: null });
  history.replaceState(null, "", `#${id}`);
}

// ------------------------------------------------------------------ models

async function loadModels() {
  clearTimeout(retry);
  try {
    const { data } = await request("models");
    Object.assign(state, { models: data.models, leftOut: data.left_out, trouble: null, needsKey: false });
    for (const task of TASKS) prepare(task);
    if (data.models.some((model) => model.export && !model.export.error)) lookUntil = Date.now() + SWAP_MS;
    if (Date.now() < lookUntil) retry = setTimeout(loadModels, EXPORT_MS);
    if (!visible().some((task) => task.id === state.open)) Object.assign(state, { missed: state.open, open: firstWithModel().id });
  } catch (error) {
    if (error.status === 401) {
      Object.assign(state, { needsKey: true, wasWrong: hasKey() });
      setKey("");
    } else {
      state.trouble = error;
      retry = setTimeout(loadModels, 1000 * (error.retryAfterS || 2));
    }
  }
  update();
  runUnseen();
}

/** Run what is in the open tab if it has no result yet, so that no one looks at an empty page. */
function runUnseen() {
  const task = TASKS.find((each) => each.id === state.open);
  const tab = state.tabs.get(state.open);
  if (!state.models || state.needsKey || !tab?.model || tab.busy || tab.shown || tab.error) return;
  if (modelOf(tab).ready && !isEmpty(task, modelOf(tab), tab.values)) ask(task);
}

/** Choose the task's default model, if the one before is gone, and fill in its first example where nothing was typed. */
function prepare(task) {
  const tab = state.tabs.get(task.id);
  const models = modelsFor(task, state.models);
  if (!models.some((model) => model.name === tab.model)) {
    const chosen = defaultFor(task, models);
    tab.model = chosen?.name ?? null;
    if (!chosen) return;
    const typed = task.fields(chosen).filter((field) => tab.values[field.name]);
    const texts = Object.fromEntries(typed.map((field) => [field.name, tab.values[field.name]]));
    tab.values = { ...examplesFor(task, chosen)[0][1], ...texts };
  }
}

const hasModel = (task) => modelsFor(task, state.models).length > 0;
const visible = () => TASKS.filter((task) => hasModel(task) || (task.task && modelsFor(task, state.leftOut).length));
const firstWithModel = () => visible().find(hasModel) ?? visible()[0] ?? TASKS[0];
const modelOf = (tab) => state.models.find((model) => model.name === tab.model);

// ------------------------------------------------------------------ asking

async function ask(task) {
  const tab = state.tabs.get(task.id);
  tab.abort?.abort(); // the service drops work whose client has left
  const abort = (tab.abort = new AbortController());
  const asked = { body: bodyOf(task, modelOf(tab), tab.values), model: modelOf(tab) };
  Object.assign(tab, { busy: true, asked });
  update();
  try {
    const reply = await request(task.path, { body: asked.body, signal: abort.signal });
    const { summary, view } = viewOf(task, reply.data, asked);
    const said = [summary, ...(reply.data.warnings ?? []).map((each) => each.message)].join(". ");
    Object.assign(tab, { shown: { summary: said, view, reply }, error: null });
  } catch (error) {
    if (abort.signal.aborted) return;
    Object.assign(tab, { shown: null, error });
    if (error.status === 401) Object.assign(state, { needsKey: true, wasWrong: hasKey() });
    if (error instanceof UnreachableError) {
      state.trouble = error;
      loadModels(); // asks until the service is back
    }
  }
  tab.busy = false;
  update();
}

function submit(event, task) {
  event.preventDefault();
  const tab = state.tabs.get(task.id);
  if (!isEmpty(task, modelOf(tab), tab.values)) ask(task);
}

function onKey(event, task) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event, task);
}

/** Note what was typed or chosen; the code beside it follows. */
function keep(tab, name, value) {
  tab.values[name] = value;
  update();
}

function tryExample(task, values) {
  const tab = state.tabs.get(task.id);
  Object.assign(tab.values, values);
  ask(task);
}

function chooseModel(task, name) {
  const tab = state.tabs.get(task.id);
  const before = modelOf(tab);
  const isExample = examplesFor(task, before).some(([, values]) => Object.entries(values).every(([field, text]) => tab.values[field] === text));
  tab.model = name;
  // A model of pairs and one of single texts have other fields.
  for (const option of task.options(before)) delete tab.values[option.name];
  if (isExample || before.pair !== modelOf(tab).pair) tab.values = { ...examplesFor(task, modelOf(tab))[0][1] };
  tab.abort?.abort();
  Object.assign(tab, { shown: null, error: null, asked: null, busy: false });
  update();
  runUnseen();
}

function insert(task, field) {
  const area = document.getElementById(`${task.id}-${field.name}`);
  area.setRangeText(field.insert, area.selectionStart, area.selectionEnd, "end");
  keep(state.tabs.get(task.id), field.name, area.value);
  area.focus();
}

/** Read a file of texts into a field; one of several lines becomes a list where the task takes one. */
async function take(task, field, file) {
  const tab = state.tabs.get(task.id);
  const text = file.size > MAX_FILE_BYTES ? "\0" : await file.text();
  if (text.includes("\0")) {
    tab.error = new Error(`${file.name} is not a text of at most ${MAX_FILE_BYTES / 1e6} MB`);
  } else {
    tab.values[field.name] = text.replace(/\r\n?/g, "\n").trim();
    if (takesList(task, modelOf(tab))) tab.values.each = tab.values[field.name].includes("\n");
  }
  update();
}

/** Take a file that is dropped on a field; elsewhere on the page nothing may open it in the page's place. */
function onDrop(event, task, field) {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  if (field && file) take(task, field, file);
}

for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => onDrop(event));

// ------------------------------------------------------------------ tabs

function open(id) {
  state.open = id;
  history.replaceState(null, "", `#${id}`);
  update();
  document.getElementById(`tab-${id}`).scrollIntoView({ block: "nearest", inline: "nearest" });
  runUnseen();
}

// ------------------------------------------------------------------ views

function page() {
  if (state.needsKey) {
    return html`${header("Try")}<main id="main" tabindex="-1">${keyForm(state.wasWrong, loadModels)}</main>`;
  }
  return html`
    ${header("Try", readiness())}
    <main id="main" tabindex="-1">${state.models ? playground() : waiting()}</main>
  `;
}

function readiness() {
  if (state.trouble) return { kind: "bad", text: state.models ? "no answer" : "not ready" };
  if (!state.models) return { kind: "", text: "connecting" };
  const ready = state.models.filter((model) => model.ready).length;
  const count = state.models.length;
  if (ready < count) return { kind: "bad", text: `${ready} of ${count} models ready` };
  return { kind: "good", text: `${count} ${count === 1 ? "model" : "models"} ready` };
}

function waiting() {
  if (!state.trouble) return html`<p class="card">Asking which models are loaded …</p>`;
  return html`<div class="card" role="status">
    <h1>The service does not answer yet</h1>
    <p>${state.trouble.message}. This page tries again by itself.</p>
  </div>`;
}

function playground() {
  const task = TASKS.find((each) => each.id === state.open);
  const items = visible().map((each) => [each.id, each.title, hasModel(each) ? "" : "no model"]);
  return html`
    <h1 class="hidden">Try the models</h1>
    ${tabList("tabs", "Tasks", items, task.id, open)}
    <div id="tabs-panel" role="tabpanel" aria-labelledby=${`tab-${task.id}`}>${hasModel(task) ? panel(task) : noModel(task)}</div>
    ${otherTasks(TASKS.filter((each) => !visible().includes(each)))}
  `;
}

function noModel(task) {
  const leftOut = modelsFor(task, state.leftOut);
  return html`
    <div class="card">
      <h2>No model for this task is loaded</h2>
      ${leftOut.map((each) => html`<p class="bad"><strong>${each.name}</strong> was left out: ${each.reason}</p>`)}
    </div>
  `;
}

/** Return how to get models for tasks that have none, folded; open if the page's address names one. */
function otherTasks(tasks) {
  if (!tasks.length) return nothing;
  const row = ({ title, hub }) => html`<tr><th scope="row">${title}</th><td><code>${hub ? `--model ${hub}` : "--bundles FOLDER"}</code></td></tr>`;
  return html`
    <details class="card others" ?open=${tasks.some((task) => task.id === state.missed)}>
      <summary>${tasks.length} more ${tasks.length === 1 ? "task" : "tasks"} without a model: ${tasks.map((task) => task.title).join(", ")}</summary>
      <p>Add a model of the hub, or the folder of a bundle of your own, to the command that starts the service. It is served beside the others.</p>
      <table><caption class="hidden">Models to add</caption><tbody>${tasks.map(row)}</tbody></table>
      <p class="note">With <code>--model</code>, name the folder of the bundles too: <code>bert-serve --bundles bundles --model ORG/NAME</code>.</p>
    </details>
  `;
}

function panel(task) {
  const tab = state.tabs.get(task.id);
  return html`
    <div class="columns">
      ${form(task, tab)}
      <section class="card result" aria-label="Result" aria-busy=${tab.busy}>
        <h2>Result</h2>
        ${outcome(task, tab)}
        <p class="hidden" role="status">${tab.shown?.summary ?? nothing}</p>
      </section>
    </div>
    ${code(task, tab)}
  `;
}

function form(task, tab) {
  const model = modelOf(tab);
  return html`
    <form class="card" @submit=${(event) => submit(event, task)} @keydown=${(event) => onKey(event, task)}>
      ${picker(task, tab, model)}
      <div class="examples" role="group" aria-label="Examples">
        <span aria-hidden="true">Examples</span>
        ${examplesFor(task, model).map(
          ([name, values]) =>
            html`<button type="button" class="chip" dir="auto" @click=${() => tryExample(task, values)}>${name}</button>`,
        )}
      </div>
      ${task.fields(model).map((field) => input(task, tab, field))}
      <div class="options">${task.options(model).map((option) => optionInput(task, tab, option))}</div>
      <div class="actions">
        <button class="primary" ?disabled=${isEmpty(task, model, tab.values)} aria-keyshortcuts="Control+Enter">${tab.busy ? "Running …" : "Run"}</button>
        <kbd aria-hidden="true">Ctrl ↵</kbd>
      </div>
    </form>
  `;
}

function picker(task, tab, model) {
  const models = modelsFor(task, state.models);
  const id = `${task.id}-model`;
  const facts = [
    model.precision,
    ...progress(model.export),
    `reads ${model.max_tokens} tokens${model.stride ? ", longer texts in windows" : ""}`,
    model.provider.replace("ExecutionProvider", ""),
  ];
  return html`
    <div class="field">
      <label for=${id}>Model</label>
      <select id=${id} aria-describedby=${`${id}-facts`} @change=${(event) => chooseModel(task, event.target.value)}>
        ${models.map(
          ({ name, default: isDefault }) =>
            html`<option value=${name} ?selected=${name === tab.model}>${name}${isDefault ? " (default)" : ""}</option>`,
        )}
      </select>
      <p class="note" id=${`${id}-facts`}>${facts.join(" · ")}</p>
      ${model.ready ? nothing : html`<p class="bad">${model.why_not_ready}</p>`}
    </div>
  `;
}

/** Return what is being done to serve a model in 8 bits, as `export` of /models says. */
function progress(made) {
  if (!made) return [];
  if (made.error) return [`8 bits could not be made: ${made.error}`];
  const done = made.done == null ? "" : `, ${Math.round(100 * made.done)}%`;
  return [`8 bits are being made${done}${made.seconds_left == null ? "" : `, ${Math.ceil(made.seconds_left)} s left`}`];
}

function input(task, tab, field) {
  // An error names a field (text), a place in it (text[3]), or a pair of them (text with text_pair).
  const id = `${task.id}-${field.name}`;
  const errors = hasChanged(task, tab) ? [] : (tab.error?.problem?.errors ?? []);
  const mistake = errors.find((each) => each.field.match(/^\w*/)[0] === field.name);
  const onInput = (event) => keep(tab, field.name, event.target.value);
  const value = tab.values[field.name] ?? "";
  const described = mistake ? `${id}-mistake` : nothing;
  const control =
    field.kind === "line"
      ? html`<input id=${id} dir="auto" .value=${value} @input=${onInput} aria-invalid=${mistake ? "true" : nothing} aria-describedby=${described} />`
      : html`<textarea id=${id} dir="auto" rows=${field.rows} .value=${value} @input=${onInput} aria-invalid=${mistake ? "true" : nothing} aria-describedby=${described}></textarea>`;
  return html`
    <div class="field" @drop=${(event) => onDrop(event, task, field)}>
      <div class="row between">
        <label for=${id}>${field.label}</label>
        ${field.kind === "line" ? nothing : fileChip(task, field)}
        ${field.insert ? html`<button type="button" class="chip" @click=${() => insert(task, field)}>Insert ${field.insert}</button>` : nothing}
      </div>
      ${control}
      ${mistake ? html`<p class="bad" id=${described}>${mistake.message}</p>` : nothing}
    </div>
  `;
}

/** Return what opens a file for a field, as dropping one on it does. */
function fileChip(task, field) {
  const onChange = ({ target }) => {
    if (target.files[0]) take(task, field, target.files[0]);
    target.value = ""; // the same file may be chosen again
  };
  return html`<label class="chip file">Open a file<input type="file" class="hidden" aria-label=${`Open a file as ${field.label}`} @change=${onChange} /></label>`;
}

function optionInput(task, tab, option) {
  const id = `${task.id}-${option.name}`;
  if (option.kind === "check") {
    const onChange = (event) => keep(tab, option.name, event.target.checked);
    return html`<label class="option"><input type="checkbox" id=${id} .checked=${tab.values[option.name] ?? false} @change=${onChange} />${option.label}</label>`;
  }
  const onChange = (event) => keep(tab, option.name, event.target.value);
  if (option.kind === "choice") {
    const choice = ([value, name]) =>
      html`<option value=${value} ?selected=${value === (tab.values[option.name] ?? "")}>${name}</option>`;
    return html`<span class="option"><label for=${id}>${option.label}</label>
      <select id=${id} @change=${onChange}>${option.choices.map(choice)}</select></span>`;
  }
  return html`<span class="option"><label for=${id}>${option.label}</label>
    <input type="number" id=${id} min=${option.min} max=${option.max ?? nothing} step=${option.step ?? 1} placeholder=${option.unset ?? (option.min === 0 ? "0" : "all")} .value=${String(tab.values[option.name] ?? option.value ?? "")} @input=${onChange} /></span>`;
}

function outcome(task, tab) {
  const old = hasChanged(task, tab)
    ? html`<p class="note">The request has changed since this result. Run it again.</p>`
    : nothing;
  if (tab.error) return html`${old}${problem(tab.error, offers(task, tab))}`;
  if (!tab.shown) return html`<p class="note">Run the text, or choose an example.</p>`;
  const { view, reply } = tab.shown;
  return html`
    ${old}
    ${remarks(reply.data.warnings ?? [])}
    <div class="view" tabindex="0" role="group" aria-label="Answer">${view}</div>
    ${latency(reply)}
  `;
}

/** Tell whether what would be asked now is no longer what was asked. */
const hasChanged = (task, tab) =>
  Boolean(tab.asked) && JSON.stringify(tab.asked.body) !== JSON.stringify(bodyOf(task, modelOf(tab), tab.values));

/** Return what the page offers where a text is too long: to run it again as the endpoint can read it. */
function offers(task, tab) {
  if (!tab.error.problem?.errors?.some((each) => TOO_LONG.test(each.message))) return [];
  return waysToRead(task, modelOf(tab)).map(([words, options]) => [words, () => tryExample(task, options)]);
}

// ------------------------------------------------------------------ the request in other words

function code(task, tab) {
  const body = bodyOf(task, modelOf(tab), tab.values);
  const text = {
    curl: () => snippets.curl(task.path, body, hasKey()),
    python: () => snippets.python(task.path, body, hasKey()),
    json: () => snippets.json(body),
    response: () => (tab.shown ? shortened(tab.shown.reply) : "Run it first."),
  }[state.code]();
  const choose = (id) => {
    Object.assign(state, { code: id, copied: "" });
    update();
  };
  return html`
    <section class="card" aria-label="Request">
      <div class="row between">
        ${tabList("codes", "Request as", CODES, state.code, choose)}
        <div class="row">
          ${copyButton("Copy link", linkTo(task, tab))}
          ${copyButton("Copy", text)}
        </div>
      </div>
      <div id="codes-panel" role="tabpanel" aria-labelledby=${`tab-${state.code}`}>
        <pre class="code" tabindex="0" role="region" aria-label="Code">${text}</pre>
      </div>
    </section>
  `;
}

/** Return the response as it is read best: long lists of numbers would fill the page. */
function shortened({ data, text }) {
  return text.length > 20_000 ? `${text.slice(0, 20_000)} …` : snippets.json(data).replace(/(?:\n\s+-?[\d.e-]+,?){12,}/g, (numbers) => numbers.replace(/\s+/g, " "));
}

const copyButton = (name, text) =>
  html`<button type="button" class="quiet" @click=${() => copy(name, text)}>${state.copied === name ? "Copied" : name}</button>`;

async function copy(name, text) {
  try {
    await navigator.clipboard.writeText(text);
    state.copied = name;
    clearTimeout(forget);
    forget = setTimeout(() => {
      state.copied = "";
      update();
    }, COPIED_MS);
  } catch {
    // Over plain HTTP only localhost may write to the clipboard: show the link in the address bar, select the code.
    if (name === "Copy") getSelection().selectAllChildren(document.querySelector("#codes-panel pre"));
    else history.replaceState(null, "", text);
  }
  update();
}

addEventListener("hashchange", () => {
  const before = state.open;
  followLink();
  const task = TASKS.find((each) => each.id === state.open);
  if (!state.models || !visible().includes(task)) {
    state.open = before;
    return;
  }
  prepare(task);
  open(task.id);
});

update();
loadModels();
