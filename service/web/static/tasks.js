// One entry for each task that the page knows: what is asked, what to try, how the result is shown.
//
// A tab appears for each entry whose task a model has. Where models of several tasks answer, `task` is null and `fits`
// chooses them. `hub` is a model to get for it. The place of a new endpoint is one entry here and one view in results.js.

import * as results from "./results.js";

const WORDS = {
  text: { name: "text", label: "Text", rows: 5 },
  truncate: { name: "truncate", label: "Cut a text that is too long", kind: "check" },
};
/** Asks for a list of texts. The page's own option: the service gets a list. */
const EACH = { name: "each", label: "Each line is a text", kind: "check", isLocal: true };
const WINDOWS = {
  name: "windows",
  label: "Long texts in windows",
  kind: "choice",
  choices: [["", "no"], ["mean", "mean of scores"], ["max", "highest scores"]],
};
/** Return a number to choose: how many results at most. Without a value it is empty, and all are shown. */
const best = (label, value, max) => ({ name: "top_k", label, kind: "number", value, min: 1, max });
const AGGREGATION = {
  name: "aggregation",
  label: "Label of a word",
  kind: "choice",
  choices: [
    ["", "of its first piece"],
    ["average", "mean of its pieces"],
    ["max", "of its surest piece"],
    ["simple", "pieces joined by label"],
    ["none", "each piece alone"],
  ],
};
const MIN_SCORE = { name: "min_score", label: "Scores from", kind: "number", min: 0, max: 1, step: 0.05 };

/** Stands for the empty name, which takes no prompt though the model has a default one. */
const NO_PROMPT = " ";

/** Return the choice of a prompt, for models that have some. */
function prompts(model, name, label) {
  const names = Object.keys(model?.prompts ?? {});
  if (!names.length) return [];
  const none = [NO_PROMPT, "none"];
  const unset = model.default_prompt_name ? [["", `default (${model.default_prompt_name})`], none] : [["", "none"]];
  return [{ name, label, kind: "choice", choices: [...unset, ...names.map((each) => [each, each])] }];
}

const CURIE =
  "Marie Curie was born in Warsaw in 1867 and moved to Paris to study physics. In 1903 she shared the Nobel Prize in " +
  "Physics with her husband Pierre and with Henri Becquerel; in 1911 she won the prize in chemistry by herself.";
const CITIES = "👩‍🔬 Dr. Ada Lovelace 🚀 flew from London to סן פרנסיסקו and met 田中さん from Sony in Tokyo 🇯🇵.";
const HEBREW = "שלום עולם. Angela Merkel ביקרה ב Berlin יחד עם Emmanuel Macron.";

/** Sentiment, or whatever the model classifies. */
const classify = {
  id: "classify",
  title: "Classify",
  path: "classify",
  hub: "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
  task: "classification",
  fields: (model) => (model?.pair ? [WORDS.text, { ...WORDS.text, name: "text_pair", label: "Second text" }] : [WORDS.text]),
  options: (model) => [...(model?.pair ? [] : [EACH, WINDOWS]), WORDS.truncate, best("Labels at most")],
  examples: [], // the service has some for any labels
  view: results.labels,
};

/** Labels that the visitor brings along, by a model of natural language inference. */
const ownLabels = {
  id: "own-labels",
  title: "Own labels",
  path: "classify",
  hub: "MoritzLaurer/deberta-v3-base-zeroshot-v2.0",
  task: null,
  fits: (model) => model.takes_labels && model.task.endsWith("classification"),
  fields: () => [{ ...WORDS.text, rows: 4 }, { name: "labels", label: "Labels, one on each line", rows: 4, kind: "lines" }],
  options: () => [
    EACH,
    { name: "multi_label", label: "Several may hold", kind: "check" },
    WORDS.truncate,
    best("Labels at most"),
  ],
  examples: [
    ["Help desk", { text: "My parcel still has not arrived.", labels: "delivery\npayment\naccount" }],
    ["News", { text: "The central bank left its interest rate at two percent.", labels: "economy\nsport\nweather" }],
  ],
  view: results.labels,
};

/** Tell whether a model finds entities of labels that the visitor brings along. */
const findsAny = (model) => model?.task === "open_ner";

const ner = {
  id: "ner",
  title: "Entities",
  path: "ner",
  hub: "dslim/bert-base-NER",
  task: "ner",
  fits: (model) => model.task === "ner" || findsAny(model),
  // As the service chooses where a request has no labels.
  order: (model) => (findsAny(model) ? 2 : 0) + (model.default ? 0 : 1),
  fields: (model) => [
    WORDS.text,
    ...(findsAny(model) ? [{ name: "labels", label: "Labels, one on each line", rows: 4, kind: "lines" }] : []),
  ],
  options: (model) =>
    findsAny(model)
      ? [
          EACH,
          // The steps count from `min`, and a form with another number is not sent.
          { name: "threshold", label: "Scores over", kind: "number", unset: "0.5", min: 0.01, max: 0.99, step: 0.01 },
          { name: "multi_label", label: "Words may have several labels", kind: "check" },
          { name: "join", label: "Join neighbours of one label", kind: "check" },
        ]
      : [EACH, AGGREGATION, MIN_SCORE],
  examples: [
    ["News", { text: "Angela Merkel met engineers from Siemens in Munich.", labels: "person\ncompany\ncity" }],
    ["Biography", { text: CURIE, labels: "person\ncity\nyear\naward\nfield of study" }],
    ["Emoji and scripts", { text: CITIES, labels: "person\ncity\ncompany" }],
    ["Right to left", { text: HEBREW, labels: "person\ncity" }],
  ],
  view: results.entities,
};

const similarity = {
  id: "similarity",
  title: "Similarity",
  path: "similarity",
  hub: "sentence-transformers/all-MiniLM-L6-v2",
  task: "similarity",
  fields: () => [
    { ...WORDS.text, rows: 2 },
    { name: "candidates", label: "Candidates, one on each line", rows: 6, kind: "lines" },
  ],
  options: (model) => [
    WORDS.truncate,
    ...prompts(model, "prompt_name", "Prompt"),
    ...prompts(model, "candidates_prompt_name", "Prompt of candidates"),
    best("Candidates at most"),
  ],
  examples: [
    [
      "Help desk",
      {
        text: "How do I reset my password?",
        candidates: "Opening hours on Sunday\nI forgot my login\nChange the delivery address\nA recipe for lentil soup",
      },
    ],
    [
      "Duplicates",
      {
        text: "The app crashes when I open a photo.",
        candidates:
          "Crash on opening pictures\nDark mode is hard to read\nThe program stops as soon as an image loads\nAdd export to PDF",
      },
    ],
  ],
  view: results.ranking,
};

/** A classifier with one label that reads pairs, or may do so. */
const isCrossEncoder = (model) => model.task === "classification" && model.pair !== false && model.labels?.length === 1;

const rerank = {
  id: "rerank",
  title: "Rerank",
  path: "rerank",
  hub: "cross-encoder/ms-marco-MiniLM-L6-v2",
  task: null,
  fits: (model) => model.task === "similarity" || isCrossEncoder(model),
  // As the service chooses where a request names none.
  order: (model) => (isCrossEncoder(model) && model.pair ? 0 : 2) + (model.default ? 0 : 1),
  fields: () => [
    { name: "query", label: "Query", kind: "line" },
    { name: "candidates", label: "Passages, one on each line", rows: 7, kind: "lines" },
  ],
  options: () => [WORDS.truncate, best("Passages at most")],
  examples: [
    [
      "Help desk",
      {
        query: "How long do I have to send something back?",
        candidates:
          "Parcels leave our warehouse within two working days.\nYou can return any item within 30 days of delivery.\n" +
          "Our shop is open from nine to six.\nRefunds are paid to the card that you used.",
      },
    ],
    [
      "Facts",
      {
        query: "Who discovered radium?",
        candidates:
          "Radium is a chemical element with the symbol Ra.\nMarie and Pierre Curie discovered radium in 1898.\n" +
          "The Curies met in Paris in 1894.\nUranium was discovered by Martin Klaproth.",
      },
    ],
  ],
  view: results.ranking,
};

const qa = {
  id: "qa",
  title: "Question answering",
  path: "qa",
  hub: "deepset/roberta-base-squad2",
  task: "qa",
  fields: () => [
    { name: "question", label: "Question", kind: "line" },
    { name: "context", label: "Paragraph that may hold the answer", rows: 7 },
  ],
  options: () => [best("Answers at most", 3, 100)],
  examples: [
    ["Place", { question: "Where was Marie Curie born?", context: CURIE }],
    ["Person", { question: "Who shared the prize with her in 1903?", context: CURIE }],
    ["No answer", { question: "What is the capital of Australia?", context: CURIE }],
  ],
  view: results.answer,
};

const fillMask = {
  id: "fill-mask",
  title: "Fill mask",
  path: "fill-mask",
  hub: "google-bert/bert-base-uncased",
  task: "fill_mask",
  fields: () => [{ ...WORDS.text, label: "Text with [MASK] in each place to fill", rows: 3, insert: "[MASK]" }],
  options: () => [EACH, best("Candidates for each mask", 5, 100)],
  examples: [
    ["One", { text: "Paris is the [MASK] of France." }],
    ["Two", { text: "The [MASK] barked at the [MASK] all night." }],
  ],
  view: results.masks,
};

const choice = {
  id: "multiple-choice",
  title: "Multiple choice",
  path: "multiple-choice",
  task: "multiple_choice",
  fields: () => [
    { name: "prompt", label: "Prompt", rows: 2 },
    { name: "choices", label: "Choices, one on each line", rows: 4, kind: "lines" },
  ],
  options: () => [WORDS.truncate, best("Choices at most")],
  examples: [
    [
      "Kettle",
      {
        prompt: "The kettle began to whistle, so",
        choices: "she planted it.\nshe took it off the stove.\nshe read it aloud.",
      },
    ],
  ],
  view: results.choices,
};

const embed = {
  id: "embed",
  title: "Embed",
  path: "embed",
  hub: "sentence-transformers/all-MiniLM-L6-v2",
  task: "similarity",
  fields: () => [WORDS.text],
  options: (model) => [EACH, WORDS.truncate, ...prompts(model, "prompt_name", "Prompt")],
  examples: [["Sentence", { text: "How do I reset my password?" }]],
  view: results.embedding,
};

const tokenize = {
  id: "tokenize",
  title: "Tokenize",
  path: "tokenize",
  task: null,
  fits: () => true,
  fields: () => [WORDS.text],
  options: () => [EACH],
  examples: [
    ["Sentence", { text: "Unbelievably, the tokenizer splits uncommon words." }],
    ["Emoji and scripts", { text: CITIES }],
  ],
  view: results.tokens,
};

export const TASKS = [classify, ownLabels, ner, similarity, rerank, qa, fillMask, choice, embed, tokenize];

/** Return the models that answer a task. */
export const modelsFor = (task, models) => models.filter(task.fits ?? ((model) => model.task === task.task));

/** Return what to try a model with, as [name, values]: its own examples where they have the task's fields, else the task's. */
export function examplesFor(task, model) {
  const fields = task.fields(model);
  const own = task.task ? model.examples.filter((body) => fields.every(({ name }) => name in body)) : [];
  const values = (body) => Object.fromEntries(fields.map(({ name }) => [name, [body[name]].flat().join("\n")]));
  return own.length ? own.map((body) => [beginning(body[fields[0].name]), values(body)]) : task.examples;
}

const beginning = (text) => (text.length > 30 ? `${text.slice(0, 30).replace(/\s+\S*$/, "")} …` : text);

/** Return the one that answers unless another is chosen, or undefined. */
export function defaultFor(task, models) {
  const order = task.order ?? ((model) => (model.default ? 0 : 1));
  return modelsFor(task, models).sort((a, b) => order(a) - order(b))[0];
}

/** Return whether a task's text may be a list of texts, one on each line. */
export const takesList = (task, model) => task.options(model).includes(EACH);

/** Return the view of a reply: the task's own, or a table of many texts. */
export const viewOf = (task, data, asked) => (Array.isArray(asked.body.text) ? results.many : task.view)(data, asked, task.view);

/** Return ways to read a text that is longer than the model reads, as [words, values of options]. */
export function waysToRead(task, model) {
  const names = task.options(model).map((option) => option.name);
  return [
    ["Read all of it in windows", { windows: "mean", truncate: false }, "windows"],
    ["Cut it", { truncate: true, windows: "" }, "truncate"],
  ].filter(([, , option]) => names.includes(option));
}

/** Tell whether a text is missing. */
export const isEmpty = (task, model, values) => task.fields(model).some((field) => !values[field.name]?.trim());

/** Return the body of a request: lists split, options that are unset left out. */
export function bodyOf(task, model, values) {
  const body = {};
  const options = task.options(model);
  const isList = values.each && takesList(task, model);
  for (const field of task.fields(model)) {
    const value = values[field.name] ?? "";
    body[field.name] = isList || field.kind === "lines" ? value.split("\n").filter((line) => line.trim()) : value;
  }
  for (const option of options.filter((each) => !each.isLocal)) {
    const value = values[option.name] ?? option.value;
    if (value) body[option.name] = { number: Number(value), check: true, choice: value === NO_PROMPT ? "" : value }[option.kind];
  }
  // Without a name the task's default answers; /tokenize and /rerank take models of several tasks.
  if (model && !(model.default && task.task)) body.model = model.name;
  return body;
}
