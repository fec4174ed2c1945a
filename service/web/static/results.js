// One view for each kind of result. Each returns {summary, view}: a sentence for screen readers, and what is shown.

import { html, nothing } from "./lit-html.js";
import { codePoints, segments, slice } from "./offsets.js";
import { percent } from "./shell.js";

const HUES = 8;
const MEASURES = {
  similarity: "The cosine of the two meanings: 1 is the same, 0 unrelated.",
  classification: "A cross-encoder's score: 1 answers the query, 0 does not.",
};
const number = (value) => value.toFixed(Math.abs(value) < 10 ? 3 : 1);

/** Return a row: a name, a bar of this share, a number. */
function bar(name, share, shown, isBest = false) {
  const width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return html`
    <li class=${isBest ? "bar best" : "bar"}>
      <span class="name" dir="auto">${name}</span>
      <span class="track" aria-hidden="true"><span .style=${`width: ${width}`}></span></span>
      <span class="number">${shown}</span>
    </li>
  `;
}

/** Classification: probabilities, or the number that a regression predicts. */
export function labels({ results: [result] }, { model }) {
  if (model?.problem === "regression") {
    return {
      summary: `${result.label}: ${number(result.score)}`,
      view: html`<p class="big">${number(result.score)} <small>${result.label}</small></p>`,
    };
  }
  const isMulti = model?.problem === "multi_label";
  return {
    summary: `${result.label}, ${percent(result.score)}`,
    view: html`
      <p class="big" dir="auto">${result.label} <small>${percent(result.score)}</small></p>
      <ul class="bars">
        ${result.scores.map(({ label, score }, at) => bar(label, score, percent(score), at === 0))}
      </ul>
      ${isMulti ? html`<p class="note">Each label has a probability of its own.</p>` : nothing}
      ${cut(result.truncated)}
    `,
  };
}

const cut = (truncated) =>
  truncated ? html`<p class="note">The text was longer than the model reads and was cut.</p>` : nothing;

/** Many texts: what each one's view says in a sentence. */
export function many({ results }, { body, model }, view) {
  const row = (result, at) => {
    const text = body.text[at];
    return html`<tr><td dir="auto">${text}</td><td dir="auto">${view({ results: [result] }, { body: { ...body, text }, model }).summary}</td></tr>`;
  };
  return {
    summary: `${results.length} texts`,
    view: html`<table>
      <caption class="hidden">Results</caption>
      <thead><tr><th>Text</th><th>Result</th></tr></thead>
      <tbody>${results.map(row)}</tbody>
    </table>`,
  };
}

/** Entities, marked in the text and listed. */
export function entities({ results: [{ entities: found }] }, { body, model }) {
  const own = (model?.labels ?? []).map((label) => label.replace(/^[A-Z]-/, ""));
  // Those of the request keep their order, so that a label which is added changes no other's colour.
  const kinds = body.labels ?? [...new Set(own)].filter((kind) => kind !== "O").sort();
  const hue = (label) => `hue-${Math.max(0, kinds.indexOf(label)) % HUES}`;
  const mark = ({ text, span }) =>
    span
      ? html`<mark class=${hue(span.label)} title=${percent(span.score)}>${text}<span class="tag" dir="ltr">${span.label}</span></mark>`
      : text;
  const row = ({ text, label, start, end, score }) => html`
    <tr>
      <td dir="auto">${text}</td>
      <td><span class="tag ${hue(label)}">${label}</span></td>
      <td class="number">${start}–${end}</td>
      <td class="number">${percent(score)}</td>
    </tr>
  `;
  return {
    summary: found.length
      ? `${found.length} ${found.length === 1 ? "entity" : "entities"}: ${found.map((each) => `${each.text}, ${each.label}`).join("; ")}`
      : "No entities",
    view: html`
      <p class="passage" dir="auto">${segments(body.text, found).map(mark)}</p>
      ${
        found.length
          ? html`
              <div class="wide">
                <table>
                  <caption class="hidden">Entities</caption>
                  <thead>
                    <tr><th>Entity</th><th>Label</th><th class="number">Characters</th><th class="number">Score</th></tr>
                  </thead>
                  <tbody>${found.map(row)}</tbody>
                </table>
              </div>
            `
          : html`<p class="note">No entities in this text.</p>`
      }
    `,
  };
}

/** Similarity and rerank: the candidates, nearest first. */
export function ranking({ results: ranked }, { body, model }) {
  const text = (found) => body.candidates[found.index];
  // A cosine is at most 1; some models are compared by a dot product of any size.
  const most = Math.max(1, ...ranked.map((found) => found.score));
  return {
    summary: ranked.length ? `Nearest: ${text(ranked[0])}, ${number(ranked[0].score)}` : "No candidates",
    view: html`
      <ol class="bars ranked">
        ${ranked.map((found, at) => bar(text(found), found.score / most, number(found.score), at === 0))}
      </ol>
      ${most === 1 ? html`<p class="note">${MEASURES[model?.task] ?? nothing}</p>` : nothing}
      ${cut(ranked.some((found) => found.truncated))}
    `,
  };
}

/** Question answering: the answer marked in its paragraph, or that there is none. */
export function answer({ results: [result] }, { body }) {
  const isNone = result.answer === null;
  const spans = isNone ? result.alternatives : [{ ...result, isBest: true }, ...result.alternatives];
  const none = { answer: html`<em>no answer</em>`, score: result.no_answer_score, isBest: isNone };
  // An alternative that overlaps a better one, or is hardly possible, is listed and not marked.
  const chosen = [];
  for (const span of spans) {
    const isApart = chosen.every((other) => span.end <= other.start || other.end <= span.start);
    if (span.isBest || (isApart && span.score >= 0.01)) chosen.push(span);
  }
  const mark = ({ text, span }) =>
    span ? html`<mark class=${span.isBest ? "answer" : "other"} title=${percent(span.score)}>${text}</mark>` : text;
  const summary = isNone ? `No answer, ${percent(result.score)}` : `${result.answer}, ${percent(result.score)}`;
  return {
    summary,
    view: html`
      <p class=${isNone ? "big none" : "big"} dir="auto">
        ${isNone ? "No answer" : result.answer} <small>${percent(result.score)}</small>
      </p>
      <p class="passage" dir="auto">${segments(body.context, chosen).map(mark)}</p>
      <ul class="bars">
        ${[...spans, none]
          .sort((a, b) => b.score - a.score)
          .map((each) => bar(each.answer, each.score, percent(each.score), each.isBest))}
      </ul>
    `,
  };
}

/** Fill mask: the text with the best candidate in each place, and the candidates. */
export function masks({ results: [{ masks: found }] }, { body }) {
  const filled = found.map((mask) => ({ ...mask, ...replacement(body.text, mask, mask.candidates[0]?.sequence) }));
  const mark = ({ text, span }) => (span ? html`<mark class="answer">${span.filling ?? text}</mark>` : text);
  const list = (mask, at) => html`
    <h3>${found.length > 1 ? `Mask ${at + 1}` : "Candidates"}</h3>
    <ul class="bars">
      ${mask.candidates.map(({ token, score }, place) => bar(token, score, percent(score), place === 0))}
    </ul>
  `;
  return {
    summary: found.map((mask) => mask.candidates[0]?.token).join(", "),
    view: html`<p class="passage" dir="auto">${segments(body.text, filled).map(mark)}</p>
      ${found.map(list)}`,
  };
}

/** Return what a candidate puts in its mask's place, and where that begins: ##ing joins the word before. */
function replacement(text, mask, sequence) {
  if (sequence === undefined) return {};
  const points = Array.from(text);
  const whole = Array.from(sequence);
  let start = 0;
  while (start < mask.start && points[start] === whole[start]) start += 1;
  return { start, filling: whole.slice(start, whole.length - (points.length - mask.end)).join("") };
}

/** Multiple choice: the choices, most probable first. */
export function choices({ results: [result] }) {
  return {
    summary: `${result.choice}, ${percent(result.score)}`,
    view: html`
      <p class="big" dir="auto">${result.choice} <small>${percent(result.score)}</small></p>
      <ol class="bars ranked">
        ${result.scores.map(({ choice, score }, at) => bar(choice, score, percent(score), at === 0))}
      </ol>
      ${cut(result.truncated)}
    `,
  };
}

/** An embedding: its numbers as a strip, each a column that is the darker the further it is from 0. */
export function embedding({ results: [{ embedding: vector, truncated }] }) {
  const most = Math.max(...vector.map(Math.abs));
  const length = Math.hypot(...vector);
  const column = (value, at) => html`<span
    class=${value < 0 ? "low" : "high"}
    title=${`${at}: ${value}`}
    .style=${`opacity: ${Math.abs(value) / most}`}
  ></span>`;
  return {
    summary: `A vector of ${vector.length} numbers`,
    view: html`
      <p class="big">${vector.length} <small>numbers, length ${length.toFixed(2)}</small></p>
      <div class="strip" role="img" aria-label=${`A strip of ${vector.length} numbers`}>${vector.map(column)}</div>
      <pre class="code" tabindex="0" role="region" aria-label="The first numbers">[${vector.slice(0, 8).join(", ")}, …]</pre>
      ${cut(truncated)}
    `,
  };
}

/** Tokens: the pieces that the model reads, special ones apart. */
export function tokens({ results: [{ tokens: found }] }, { body }) {
  const chip = ({ id, text, start, end, special }) => html`<li
    class=${special ? "token special" : "token"}
    title=${special ? `id ${id}` : `id ${id}, characters ${start}–${end}: ${slice(body.text, start, end)}`}
  ><span dir="auto">${text}</span> <small>${id}</small></li>`;
  return {
    summary: `${found.length} tokens`,
    view: html`
      <p class="big">${found.length} <small>tokens of ${codePoints(body.text)} characters</small></p>
      <ul class="tokens">${found.map(chip)}</ul>
    `,
  };
}
