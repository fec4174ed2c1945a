// The service counts Unicode code points. A JavaScript string counts UTF-16 units: most emoji are two.

/** Return the text cut at these spans, as [{text, span}]; `span` is undefined between spans. Overlapping spans are left out. */
export function segments(text, spans) {
  const points = Array.from(text);
  const parts = [];
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start || b.end - a.end)) {
    if (span.start < at) continue;
    if (span.start > at) parts.push({ text: points.slice(at, span.start).join("") });
    parts.push({ text: points.slice(span.start, span.end).join(""), span });
    at = span.end;
  }
  if (at < points.length) parts.push({ text: points.slice(at).join("") });
  return parts;
}

/** Return `text[start:end]` as Python cuts it. */
export function slice(text, start, end) {
  return Array.from(text).slice(start, end).join("");
}

/** Return how many code points come before this UTF-16 index. */
export function codePoints(text, index = text.length) {
  return Array.from(text.slice(0, index)).length;
}
