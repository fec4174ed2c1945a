// Parts of the page that know nothing of its state: lists of tabs, an error, the latency of a request.

import { ProblemError, UnreachableError, stages } from "./api.js";
import { html, nothing } from "./lit-html.js";
import { millis } from "./shell.js";

const GONE = "It was stopped, or the network is down. This page looks for it every two seconds; the text stays here.";
const STAGES = ["tokenize", "queue", "inference", "decode"];

/** Move along a list of tabs with the arrow keys, Home and End. */
function onTabKey(event, ids, current, choose) {
  const at = ids.indexOf(current);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: ids.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  choose(ids.at(to % ids.length));
  event.currentTarget.querySelector('[aria-selected="true"]').focus();
}

/** Return a list of tabs; `items` are [id, title, note], and the panel has the id `NAME-panel`. */
export function tabList(name, label, items, current, choose) {
  const ids = items.map(([id]) => id);
  return html`
    <div class=${name} role="tablist" aria-label=${label} @keydown=${(event) => onTabKey(event, ids, current, choose)}>
      ${items.map(
        ([id, title, note]) => html`<button
          type="button"
          role="tab"
          id=${`tab-${id}`}
          data-title=${title}
          aria-selected=${id === current}
          aria-controls=${`${name}-panel`}
          tabindex=${id === current ? 0 : -1}
          class=${note ? "empty" : ""}
          @click=${() => choose(id)}
        >${title}${note ? html`<span class="hidden"> (${note})</span>` : nothing}</button>`,
      )}
    </div>
  `;
}

/** Return what is shown instead of a result; `offers` are [words, function] of what may help. */
export function problem(error, offers = []) {
  const { status, problem: body, retryAfterS } = error;
  if (!(error instanceof ProblemError)) {
    return html`<div class="problem" role="alert"><h3>${error.message}</h3><p>${error instanceof UnreachableError ? GONE : nothing}</p></div>`;
  }
  return html`
    <div class="problem" role="alert">
      <h3>${status} ${body.title}</h3>
      <p>${body.detail}</p>
      ${offers.length ? html`<div class="row">${offers.map(([words, act]) => html`<button type="button" class="quiet" @click=${act}>${words}</button>`)}</div>` : nothing}
      ${retryAfterS ? html`<p>Try again in ${retryAfterS} s.</p>` : nothing}
      ${body.request_id ? html`<p class="note">Request <code>${body.request_id}</code></p>` : nothing}
    </div>
  `;
}

/** Remarks of the service on the texts, such as that the tokenizer does not know them. */
export const remarks = (warnings) =>
  warnings.map(({ field, message }) => html`<p class="remark"><strong>${field}</strong>: ${message}.</p>`);

/** Latency by stage: the service's own Server-Timing, and what the way there and back took. */
export function latency({ headers, ms, data }) {
  const found = stages(headers.get("server-timing"));
  const known = STAGES.filter((name) => found[name] !== undefined).map((name) => [name, found[name]]);
  const other = (found.total ?? 0) - known.reduce((sum, [, each]) => sum + each, 0);
  const parts = [...known, ["other", Math.max(0, other)], ["network", Math.max(0, ms - (found.total ?? 0))]];
  return html`
    <div class="latency">
      <h3>Latency <small>${millis(ms)} ms${data.usage ? html`, ${data.usage.tokens} tokens` : nothing}</small></h3>
      <div class="stack" aria-hidden="true">
        ${parts.map(([name, each]) => html`<span class=${`stage-${name}`} .style=${`flex-grow: ${each}`}></span>`)}
      </div>
      <dl>
        ${parts.map(
          ([name, each]) => html`<div><dt><span class=${`dot stage-${name}`}></span>${name}</dt><dd>${millis(each)} ms</dd></div>`,
        )}
      </dl>
    </div>
  `;
}
