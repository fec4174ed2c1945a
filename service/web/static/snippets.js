// The same request in other words: curl, Python, JSON.

/** Return an endpoint's address as other programs need it. */
export const address = (path) => new URL(path, document.baseURI).href;

export const json = (value) => JSON.stringify(value, null, 2);

/** Return the command for a POSIX shell. */
export function curl(path, body, withKey) {
  const data = JSON.stringify(body).replaceAll("'", "'\\''");
  const lines = [`curl ${address(path)}`, "-H 'Content-Type: application/json'"];
  if (withKey) lines.push('-H "Authorization: Bearer $BERT_API_KEY"');
  return [...lines, `-d '${data}'`].join(" \\\n  ");
}

/** Return a program that needs nothing but Python. */
export function python(path, body, withKey) {
  const header = withKey ? ', "Authorization": "Bearer " + os.environ["BERT_API_KEY"]' : "";
  return `import json
${withKey ? "import os\n" : ""}import urllib.request

request = urllib.request.Request(
    "${address(path)}",
    data=json.dumps(${literal(body, 1)}).encode(),
    headers={"Content-Type": "application/json"${header}},
)
with urllib.request.urlopen(request) as response:
    print(json.load(response)["results"])
`;
}

/** Return a value as Python writes it. A string of JSON is one of Python too. */
function literal(value, depth) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const items = Array.isArray(value)
    ? value.map((item) => literal(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, depth + 1)}`);
  const line = `${open}${items.join(", ")}${close}`;
  if (line.length <= 70 && !line.includes("\n")) return line;
  const indent = "    ".repeat(depth + 1);
  return `${open}\n${items.map((item) => `${indent}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
