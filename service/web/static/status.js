// The page at /status: the running service, from /metrics and /models.

import { hasKey, request, setKey } from "./api.js";
import { html, nothing, render, svg } from "./lit-html.js";
import * as prometheus from "./prometheus.js";
import { header, keyForm, millis } from "./shell.js";

const EVERY_MS = 2000;
/** Scrapes that are kept: five minutes. */
const KEPT = 150;
/** Scrapes that fill the width of a curve, at least. */
const LEAST = 30;
/** Scrapes from one look at /models to the next. */
const MODELS_EVERY = 5;
const WINDOWS = { "60": "last minute", "300": "last 5 minutes", "0": "since the start" };
const REQUESTS = "bert_request_duration_seconds";

const state = {
  scrapes: [],
  models: null,
  leftOut: [],
  needsKey: false,
  wasWrong: false,
  paused: false,
  trouble: null,
  windowS: 60,
};
let timer;
let looks = 0;

const update = () => render(page(), document.body);

// ------------------------------------------------------------------ looking

async function look() {
  clearTimeout(timer);
  try {
    const { text, headers } = await request("metrics");
    const at = Date.parse(headers.get("date")) / 1000 || Date.now() / 1000;
    state.scrapes.push({ at: performance.now() / 1000, clock: at, samples: prometheus.parse(text) });
    state.scrapes.splice(0, state.scrapes.length - KEPT);
    if (looks % MODELS_EVERY === 0) await lookAtModels();
    looks += 1;
    state.trouble = null;
  } catch (error) {
    state.trouble = error;
    looks = 0;
  }
  update();
  if (!state.paused && !document.hidden && !state.needsKey) timer = setTimeout(look, EVERY_MS);
}

async function lookAtModels() {
  try {
    const { data } = await request("models");
    Object.assign(state, { models: data.models, leftOut: data.left_out, needsKey: false });
  } catch (error) {
    if (error.status !== 401) throw error;
    Object.assign(state, { needsKey: true, wasWrong: hasKey() });
    setKey("");
  }
}

function again() {
  looks = 0;
  state.needsKey = false;
  look();
}

function pause() {
  state.paused = !state.paused;
  if (state.paused) clearTimeout(timer);
  else look();
  update();
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !state.paused) look();
});

// ------------------------------------------------------------------ numbers

const isTask = (labels) => labels.model !== "";
const latest = () => state.scrapes.at(-1);

/** Return the scrape that a window begins with: undefined for "since the start". */
function baseline() {
  if (state.windowS === 0) return undefined;
  const from = latest().at - state.windowS;
  return state.scrapes.find((scrape) => scrape.at >= from) ?? state.scrapes[0];
}

/** Return the seconds from the first scrape, if a window begins before it, else undefined. */
function youngerThanWindow() {
  const seconds = latest().at - state.scrapes[0].at;
  return seconds < state.windowS - (2 * EVERY_MS) / 1000 ? seconds : undefined;
}

/** Return one number for each pair of neighbouring scrapes. */
const history = (number) => state.scrapes.slice(1).map((scrape, at) => number(scrape, state.scrapes[at]));

const rate = (name, passes) => (after, before) =>
  prometheus.growth(after.samples, before.samples, name, passes) / Math.max(0.1, after.at - before.at);

const gauge = (name) => ({ samples }) => prometheus.sum(samples, name);

const isNumber = (value) => value !== undefined && Number.isFinite(value);
const shown = (value, digits = 0) => (isNumber(value) ? value.toFixed(digits) : "–");
const shownMs = (seconds) => (isNumber(seconds) ? millis(1000 * seconds) : "–");
const totalText = (value) => value.toLocaleString("en");
const rateText = (value) => (isNumber(value) ? value.toFixed(value < 10 ? 1 : 0) : "–");

function duration(seconds) {
  if (seconds < 120) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

// ------------------------------------------------------------------ views

function page() {
  if (state.needsKey) {
    return html`${header("Status")}<main id="main" tabindex="-1">${keyForm(state.wasWrong, again)}</main>`;
  }
  return html`${header("Status", readiness())}
    <main id="main" tabindex="-1">${latest() ? dashboard() : waiting()}</main>`;
}

function readiness() {
  if (state.trouble) return { kind: "bad", text: "no answer" };
  if (!latest()) return { kind: "", text: "connecting" };
  return gauge("bert_ready")(latest()) ? { kind: "good", text: "ready" } : { kind: "bad", text: "not ready" };
}

const waiting = () => html`<p class="card">${state.trouble ? state.trouble.message : "Asking for the numbers …"}</p>`;

function dashboard() {
  const { samples, clock } = latest();
  const started = prometheus.sum(samples, "process_start_time_seconds");
  const restarts = samples.bert_engine_restarts_total ? prometheus.sum(samples, "bert_engine_restarts_total") : null;
  const facts = [
    started ? `up ${duration(clock - started)}` : null,
    restarts === null ? null : `engine generation ${restarts + 1}`,
    `${prometheus.sum(samples, "bert_open_connections")} connections`,
  ];
  return html`
    <div class="row between heading">
      <h1>Running service</h1>
      <p class="note">${facts.filter(Boolean).join(" · ")}</p>
      <button class="quiet" aria-pressed=${state.paused} @click=${pause}>${state.paused ? "Resume" : "Pause"}</button>
    </div>
    ${state.trouble ? html`<p class="card bad" role="alert">No answer: ${state.trouble.message}. Trying again.</p>` : nothing}
    <div class="tiles">${tiles()}</div>
    ${byModel()} ${models()} ${refusals(samples)}
  `;
}

function tiles() {
  const batchTokens = (after, before) => prometheus.mean(after.samples, before.samples, "bert_batch_tokens");
  const p95 = (after, before) => prometheus.quantile(0.95, after.samples, before.samples, REQUESTS, isTask);
  const waitingTokens = history(gauge("bert_queue_tokens"));
  const memory = history(gauge("process_resident_memory_bytes")).map((bytes) => bytes / 2 ** 20);
  return [
    tile("Requests", history(rate(`${REQUESTS}_count`, isTask)), rateText, "per s", total(`${REQUESTS}_count`, isTask)),
    tile("Latency, 95%", history(p95), shownMs, "ms"),
    tile("Queue", waitingTokens, shown, "tokens"),
    tile("Batch", history(batchTokens), shown, "tokens"),
    tile("Batches", history(rate("bert_batch_tokens_count")), rateText, "per s"),
    tile("Tokens", history(rate("bert_tokens_total")), rateText, "per s", total("bert_tokens_total")),
    tile("Processor", history(rate("process_cpu_seconds_total")), (value) => shown(value, 2), "cores"),
    tile("Memory", memory, shown, "MiB", "resident, all processes"),
  ];
}

/** Return the words for the whole of a counter. */
const total = (name, passes) => `${totalText(prometheus.sum(latest().samples, name, passes))} since the start`;

function tile(name, values, text, unit, note) {
  return html`
    <section class="tile" aria-label=${name}>
      <h2>${name}${note ? html` <small>${note}</small>` : nothing}</h2>
      <p class="big">${text(values.at(-1))} <small>${unit}</small></p>
      ${spark(values)}
    </section>
  `;
}

/** Return a curve of the last values; a gap where there is no number. */
function spark(values) {
  const most = Math.max(...values.filter(isNumber), 0) || 1;
  const points = values.map((value, at) => [100 - (100 * (values.length - 1 - at)) / Math.max(LEAST - 1, values.length - 1), value]);
  const runs = [[]];
  for (const [x, value] of points) {
    if (isNumber(value)) runs.at(-1).push([x.toFixed(2), (27 - 25 * (value / most)).toFixed(2)]);
    else if (runs.at(-1).length) runs.push([]);
  }
  return html`<svg class="spark" viewBox="0 0 100 28" preserveAspectRatio="none" aria-hidden="true">
    ${runs.map((run) => (run.length > 1 ? curve(run) : nothing))}
  </svg>`;
}

const curve = (run) => svg`
  <polygon points=${[[run[0][0], 28], ...run, [run.at(-1)[0], 28]].join(" ")} />
  <polyline points=${run.join(" ")} />
`;

function byModel() {
  const after = latest();
  const before = baseline();
  const young = youngerThanWindow();
  const start = prometheus.sum(after.samples, "process_start_time_seconds");
  const seconds = before ? after.at - before.at : after.clock - start;
  const names = [...new Set((after.samples.bert_model_info ?? []).filter(({ value }) => value).map(({ labels }) => labels.model))];
  const row = (model) => {
    const own = (labels) => labels.model === model;
    const count = prometheus.growth(after.samples, before?.samples, `${REQUESTS}_count`, own);
    // Without a request, what was measured is the warm-up.
    const average = (name) => (count ? prometheus.mean(after.samples, before?.samples, name, own) : undefined);
    const at = (share) => prometheus.quantile(share, after.samples, before?.samples, REQUESTS, own);
    return html`<tr>
      <th scope="row">${model}</th>
      <td>${seconds > 0 ? rateText(count / seconds) : "–"}</td>
      <td>${totalText(prometheus.sum(after.samples, `${REQUESTS}_count`, own))}</td>
      <td class="first">${shownMs(at(0.5))}</td>
      <td>${shownMs(at(0.95))}</td>
      <td>${shownMs(at(0.99))}</td>
      <td class="first">${shownMs(average("bert_tokenize_duration_seconds"))}</td>
      <td>${shownMs(average("bert_queue_duration_seconds"))}</td>
      <td>${shownMs(average("bert_inference_duration_seconds"))}</td>
      <td class="first">${shown(average("bert_batch_texts"), 1)}</td>
      <td>${shown(average("bert_batch_tokens"))}</td>
      <td>${isNumber(average("bert_batch_padding_ratio")) ? `${(100 * average("bert_batch_padding_ratio")).toFixed(0)}%` : "–"}</td>
      <td class="first">${prometheus.sum(after.samples, "bert_queue_texts", own)}</td>
    </tr>`;
  };
  return html`
    <div class="card">
      <div class="row between">
        <h2>Traffic by model</h2>
        <div class="row">
        ${young === undefined ? nothing : html`<p class="note">since this page was opened, ${duration(young)}</p>`}
        <label class="option">Over
          <select @change=${(event) => { state.windowS = Number(event.target.value); update(); }}>
            ${Object.entries(WINDOWS).map(([value, name]) => html`<option value=${value} ?selected=${Number(value) === state.windowS}>${name}</option>`)}
          </select>
        </label>
        </div>
      </div>
      <div class="wide" tabindex="0" role="region" aria-label="Traffic by model">
        <table class="numbers">
          <thead>
            <tr>
              <td></td><th scope="colgroup" colspan="2">Requests</th><th class="first" scope="colgroup" colspan="3">Latency, ms</th>
              <th class="first" scope="colgroup" colspan="3">Mean of stages, ms</th>
              <th class="first" scope="colgroup" colspan="3">Mean batch</th><th class="first" scope="col">Queue</th>
            </tr>
            <tr class="second">
              <td></td><th>per s</th><th>since the start</th><th class="first">50%</th><th>95%</th><th>99%</th><th class="first">tokenize</th><th>queue</th>
              <th>inference</th><th class="first">texts</th><th>tokens</th><th>padding</th><th class="first">texts</th>
            </tr>
          </thead>
          <tbody>${names.map(row)}</tbody>
        </table>
      </div>
    </div>
  `;
}

function models() {
  const hasScores = state.models?.some((model) => Object.keys(model.dev_score).length);
  const row = (model) => html`<tr>
    <th scope="row">${model.name}${model.default ? html` <span class="chip small">default</span>` : nothing}</th>
    <td>${model.task.replaceAll("_", " ")}</td>
    <td><code title=${model.version}>${model.version.slice(0, 12)}</code></td>
    <td>${model.precision}${model.why_fallback ? html` <span class="bad" title=${model.why_fallback}>fallback</span>` : nothing}</td>
    <td>${model.provider.replace("ExecutionProvider", "")}</td>
    <td class="number">${model.max_tokens}</td>
    <td class="number">${model.batch_tokens}</td>
    ${hasScores ? html`<td>${score(model.dev_score)}</td>` : nothing}
    <td>${model.ready ? html`<span class="good">ready</span>` : html`<span class="bad">${model.why_not_ready}</span>`}</td>
  </tr>`;
  const out = (each) => html`<li class="bad"><strong>${each.name}</strong> (${each.task || "unknown task"}) was left out: ${each.reason}</li>`;
  return html`
    <div class="card">
      <h2>Models</h2>
      <div class="wide" tabindex="0" role="region" aria-label="Models">
        <table>
          <thead>
            <tr>
              <th>Name</th><th>Task</th><th>Version</th><th>Precision</th><th>Runs on</th>
              <th class="number">Reads tokens</th><th class="number">Batch tokens</th>${hasScores ? html`<th>Dev score</th>` : nothing}<th>State</th>
            </tr>
          </thead>
          <tbody>${(state.models ?? []).map(row)}</tbody>
        </table>
      </div>
      ${state.leftOut.length ? html`<ul>${state.leftOut.map(out)}</ul>` : nothing}
    </div>
  `;
}

/** Return the first number of a score, with its name. */
function score(scores) {
  if (typeof scores.metric === "string" && isNumber(scores.after)) {
    return html`${scores.after.toFixed(3)} <small>${scores.metric.replaceAll("_", " ")}</small>`;
  }
  const [name, value] = Object.entries(scores).find(([, each]) => typeof each === "number") ?? [];
  return name ? html`${value.toFixed(3)} <small>${name.replaceAll("_", " ")}</small>` : "–";
}

function refusals(samples) {
  const found = (samples.bert_requests_rejected_total ?? []).filter(({ value }) => value > 0);
  const name = (reason) => reason.replaceAll("_", " ");
  return html`
    <div class="card">
      <h2>Refused since the start</h2>
      ${
        found.length
          ? html`<dl class="counts">${found.map(({ labels, value }) => html`<div><dt>${name(labels.reason)}</dt><dd>${value}</dd></div>`)}</dl>`
          : html`<p class="note">No request was refused.</p>`
      }
    </div>
  `;
}

update();
look();
