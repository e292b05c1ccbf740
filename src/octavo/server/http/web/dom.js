"use strict";
/* Text of a model or of a user becomes nodes through `make` alone, which sets textContent: none of it is ever read as HTML. */
const $ = (id) => document.getElementById(id);
const ICONS = {
  send: "M12 19V5M6 11l6-6 6 6", stop: "M7 7h10v10H7z", copy: "M9 9h10v10H9zM5 15V5h10", again: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  edit: "M4 20h4L19 9l-4-4L4 16z", remove: "M5 7h14M9 7V5h6v2M7 7l1 12h8l1-12", done: "M5 13l4 4L19 7", close: "M6 6l12 12M18 6L6 18",
  before: "M14 6l-6 6 6 6", after: "M10 6l6 6-6 6",
};

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}
const tool = (name, label, onclick) => make("button", { type: "button", title: label, "aria-label": label, onclick }, icon(name));
const pressed = (label, onclick, style = "") => make("button", { type: "button", class: style, text: label, onclick });
function copier(text) {
  const button = tool("copy", "Copy", async () => {
    if (!await copied(text())) return;
    button.replaceChildren(icon("done"));
    tell("Copied");
    setTimeout(() => button.replaceChildren(icon("copy")), 1200);
  });
  return button;
}
/* Browsers have the clipboard for HTTPS and this machine alone; elsewhere a selection is copied. */
async function copied(text) {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* the other way */ }
  const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
  const before = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  before?.focus({ preventScroll: true });
  return done;
}
const sizeOf = (bytes) => bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} KB`
  : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;

/* A line for screen readers: a reply is read once, when it is whole, not token by token. */
function tell(text) { $("said").textContent = ""; $("said").textContent = text; }
/* A line above the message box, until it is closed; the same one is there once. */
function notice(text) {
  for (const one of $("notices").children) if (one.firstChild.textContent === text) return;
  const line = make("div", { class: "error" }, make("span", { text }), tool("close", "Close", () => line.remove()));
  $("notices").append(line);
}
