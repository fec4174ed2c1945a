// What the pages share: the header, the theme, and the dialog that asks for the API key. On /docs it is all there is.

import { hasKey, setKey } from "./api.js";
import { html, nothing, render } from "./lit-html.js";

const PAGES = [
  ["./", "Try"],
  ["status", "Status"],
  ["docs", "API"],
];
const THEMES = { "": "System", light: "Light", dark: "Dark" };

const theme = () => document.documentElement.dataset.theme ?? "";
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Swagger UI has dark colours under a class of its own. */
const followTheme = () => document.documentElement.classList.toggle("dark-mode", theme() ? theme() === "dark" : dark.matches);

function chooseTheme(event) {
  const chosen = event.target.value;
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  followTheme();
  try {
    localStorage.setItem("bert-theme", chosen);
  } catch {
    // It holds until the page is left.
  }
}

/** Return the header of a page; `current` is its name, `state` a short text on the service. */
export function header(current, state) {
  return html`
    <a class="skip" href=${current === "API" ? "#swagger-ui" : "#main"}>Skip to content</a>
    <header class="top">
      <a class="brand" href="./"><img src="web/icon.svg" alt="" width="28" height="28" />bert-serve</a>
      <nav aria-label="Pages">
        ${PAGES.map(
          ([href, name]) =>
            html`<a href=${href} aria-current=${name === current ? "page" : nothing}>${name}</a>`,
        )}
      </nav>
      ${state ? html`<span class="pill ${state.kind}">${state.text}</span>` : nothing}
      ${hasKey() ? html`<button class="quiet" @click=${forget}>Forget key</button>` : nothing}
      <label class="theme">
        <span class="hidden">Theme</span>
        <select @change=${chooseTheme}>
          ${Object.entries(THEMES).map(
            ([value, name]) => html`<option value=${value} ?selected=${value === theme()}>${name}</option>`,
          )}
        </select>
      </label>
    </header>
  `;
}

dark.addEventListener("change", followTheme);
followTheme();
if (document.body.classList.contains("docs")) render(header("API"), document.getElementById("header"));

function forget() {
  setKey("");
  location.reload();
}

/** Return the form that asks for the API key; calls `again` with it set. */
export function keyForm(wasWrong, again) {
  const submit = (event) => {
    event.preventDefault();
    const value = new FormData(event.target).get("key").trim();
    if (!value) return;
    setKey(value);
    again();
  };
  return html`
    <form class="card key" @submit=${submit}>
      <h1>This service needs a key</h1>
      <p id="key-help">
        It is kept in this browser tab until the tab is closed, and sent to this service only.
      </p>
      <label for="key">API key</label>
      <div class="row">
        <input id="key" name="key" type="password" autocomplete="off" required aria-describedby="key-help" />
        <button class="primary">Continue</button>
      </div>
      <p class="bad" role="alert">${wasWrong ? "The service refused that key." : nothing}</p>
    </form>
  `;
}

/** Return a share as a percentage that never rounds to a certainty. */
export function percent(share) {
  if (share > 0.9995 && share < 1) return ">99.9%";
  if (share < 0.0005 && share > 0) return "<0.1%";
  return `${(100 * share).toFixed(1)}%`;
}

/** Return milliseconds with three digits at most. */
export const millis = (ms) => (ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2));
