// Prometheus' text format, and what can be said from two scrapes of it.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const UNESCAPED = { n: "\n", '"': '"', "\\": "\\" };

/** Return the samples as {name: [{labels, value}]}. */
export function parse(text) {
  const samples = {};
  for (const line of text.split("\n")) {
    const [, name, pairs, value] = line.match(SAMPLE) ?? [];
    if (!name) continue;
    const labels = {};
    for (const [, label, raw] of (pairs ?? "").matchAll(LABEL)) {
      labels[label] = raw.replace(/\\(.)/g, (_, char) => UNESCAPED[char] ?? char);
    }
    (samples[name] ??= []).push({ labels, value: value === "+Inf" ? Infinity : Number(value) });
  }
  return samples;
}

/** Return the sum of a name's samples whose labels pass. */
export function sum(samples, name, passes = () => true) {
  return (samples[name] ?? []).reduce((total, each) => total + (passes(each.labels) ? each.value : 0), 0);
}

/** Return how much a counter grew. `before` is undefined for "since the start"; a counter that fell was started anew. */
export function growth(after, before, name, passes) {
  const now = sum(after, name, passes);
  const then = before ? sum(before, name, passes) : 0;
  return now >= then ? now - then : now;
}

/** Return the mean of a histogram's values between two scrapes, undefined if there were none. */
export function mean(after, before, name, passes) {
  const count = growth(after, before, `${name}_count`, passes);
  return count > 0 ? growth(after, before, `${name}_sum`, passes) / count : undefined;
}

/** Return a quantile as Prometheus' histogram_quantile does: straight between the bounds of a bucket. */
export function quantile(share, after, before, name, passes = () => true) {
  const bounds = [...new Set((after[`${name}_bucket`] ?? []).map(({ labels }) => labels.le))]
    .map((le) => ({ le, bound: le === "+Inf" ? Infinity : Number(le) }))
    .sort((a, b) => a.bound - b.bound);
  const counts = bounds.map(({ le }) =>
    growth(after, before, `${name}_bucket`, (labels) => labels.le === le && passes(labels)),
  );
  const total = counts.at(-1);
  if (!total) return undefined;
  const at = counts.findIndex((count) => count >= share * total);
  const below = at > 0 ? bounds[at - 1].bound : 0;
  if (bounds[at].bound === Infinity) return below;
  const under = at > 0 ? counts[at - 1] : 0;
  return below + (bounds[at].bound - below) * ((share * total - under) / (counts[at] - under));
}
