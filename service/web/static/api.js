// Requests to the service. Addresses are relative, so that the page works behind a proxy's path.

const KEY = "bert-api-key";
let key = stored();

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** Tell whether a key is sent. */
export const hasKey = () => key !== "";

/** Keep the key until this browser tab is closed; an empty one is forgotten. */
export function setKey(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // It stays in memory.
  }
}

/** An answer that is no 200; `problem` is its application/problem+json. */
export class ProblemError extends Error {
  constructor(response, problem) {
    super(problem.detail ?? problem.title ?? `status ${response.status}`);
    this.status = response.status;
    this.problem = problem;
    this.retryAfterS = Number(response.headers.get("retry-after")) || 0;
  }
}

/** No response came, or not all of it: the service is gone, or the way to it. */
export class UnreachableError extends Error {
  constructor() {
    super("The service cannot be reached");
  }
}

/** Send a request and return {data, text, headers, ms}. Raises ProblemError, or UnreachableError if no response came. */
export async function request(path, { body, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const began = performance.now();
  let response;
  let text;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      body: body === undefined ? undefined : JSON.stringify(body),
      headers,
      signal,
      cache: "no-store",
    });
    text = await response.text();
  } catch (error) {
    throw signal?.aborted ? error : new UnreachableError();
  }
  const ms = performance.now() - began;
  const isJson = /[/+]json/.test(response.headers.get("content-type") ?? "");
  let data;
  try {
    data = isJson ? JSON.parse(text) : undefined;
  } catch {
    data = undefined; // cut off on the way, or a proxy's own words
  }
  if (!response.ok) throw new ProblemError(response, data ?? { title: response.statusText });
  return { data, text, headers: response.headers, ms };
}

/** Return the stages of a Server-Timing header as {name: milliseconds}. */
export function stages(header) {
  const found = {};
  for (const part of (header ?? "").split(",")) {
    const [, name, ms] = part.match(/^\s*([\w-]+);dur=([\d.]+)/) ?? [];
    if (name) found[name] = Number(ms);
  }
  return found;
}
