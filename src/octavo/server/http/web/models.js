"use strict";
/* The models of the server. Of several each has a status; it is loaded by the first message to it, or by its button in the list. */
let models = [];
let contextSize = null;
let listening = false;
const rowsOf = new Map();

const several = () => models.some((one) => one.status);
const chosen = () => [chat.model, settings.model].map((name) => models.find((one) => one.id === name)).find(Boolean) ?? models[0];
const isBusy = (one) => ["loading", "downloading"].includes(one?.status?.value);
/* How far a load or a download is, from 0 to 1; undefined before that is known. */
function partOf({ value, progress }) {
  if (value !== "downloading") return progress?.value;
  const files = Object.values(progress ?? {}), total = files.reduce((sum, file) => sum + file.total, 0);
  return total ? files.reduce((sum, file) => sum + file.done, 0) / total : undefined;
}
const percent = (status) => { const part = partOf(status); return part === undefined ? "" : ` ${Math.round(100 * part)}%`; };
const wordOf = (status) => status.value === "unloaded" ? (status.failed ? "failed" : "not loaded") : status.value + percent(status);

async function greet() {
  try {
    const known = await (await request("v1/models")).json();
    models = known.data;
    $("pull").hidden = known.can_pull === false;
    drawModels();
    if (several() || !models.length) listen();
    const one = chosen();
    if (!one || (one.status && one.status.value !== "loaded")) return;
    const path = one.status ? `props?model=${encodeURIComponent(one.id)}` : "props";
    const { params } = (await (await request(path)).json()).default_generation_settings;
    for (const name of ["temperature", "top_p", "top_k", "min_p"]) $("options").querySelector(`[name=${name}]`).placeholder = params[name];
  } catch (error) {
    if (!models.length) { $("model").hidden = false; $("model").textContent = error.message.replace(/\.$/, ""); }
  }
}
function drawModels() {
  const one = chosen(), many = several();
  $("model").hidden = many || !models.length;
  $("choice").hidden = !$("model").hidden;
  $("model").textContent = one?.id ?? "";
  document.title = one ? `${one.id} · Octavo` : "Octavo";
  contextSize = one?.meta?.n_ctx ?? one?.max_model_len ?? null;
  used();
  if (many || !models.length) {
    const word = one ? wordOf(one.status) : "";
    $("choice").querySelector("bdi").textContent = one?.id ?? "No model yet";
    $("choice").querySelector("small").textContent = word === "loaded" ? "" : word;
    drawRows();
  }
  bar($("progress"), one);
  strayed();
  if (live?.chat === chat) refresh(live);
}
function bar(element, one) {
  element.hidden = !isBusy(one);
  const part = isBusy(one) ? partOf(one.status) : undefined;
  if (part === undefined) element.removeAttribute("value"); else element.value = part;
}
/* A conversation stays with the model that it was with, for as long as the server has that. */
function strayed() {
  const gone = chat.model && models.length && !models.some((one) => one.id === chat.model);
  $("strayed").textContent = !gone ? ""
    : `This conversation was with ${chat.model}, which this server does not have: ${chosen().id} goes on with it.`;
}
/* Rows stay where they are while what they say changes, so that the focus does. */
function drawRows() {
  models.forEach((one, i) => {
    if (!rowsOf.has(one.id)) rowsOf.set(one.id, newRow(one.id));
    const row = rowsOf.get(one.id), { value, why = "", progress } = one.status;
    const bytes = Object.values(one.memory ?? {}).reduce((sum, part) => sum + part, 0);
    row.choice.setAttribute("aria-current", one === chosen());
    const more = [isBusy(one) && progress?.what, value === "loaded" && bytes && sizeOf(bytes)];
    row.state.textContent = [wordOf(one.status), ...more].filter(Boolean).join(" · ");
    row.why.textContent = why;
    bar(row.bar, one);
    row.act.textContent = { loaded: "Unload", loading: "Cancel", downloading: "Cancel" }[value] ?? "Load";
    row.act.setAttribute("aria-label", `${row.act.textContent} ${one.id}`);
    if ($("known").children[i] !== row.element) $("known").insertBefore(row.element, $("known").children[i] ?? null);
  });
  while ($("known").children.length > models.length) $("known").lastChild.remove();
}
function newRow(name) {
  const state = make("small"), why = make("small", { class: "why" }), act = pressed("Load", () => loadOrUnload(name, act.textContent));
  const bar = make("progress", { "aria-label": `Progress of ${name}` });
  const choice = make("button", { type: "button", class: "pick", onclick: () => choose(name) }, make("bdi", { text: name }), state, why);
  return { element: make("li", {}, choice, act, bar), choice, state, why, act, bar };
}
function choose(name) {
  settings.model = chat.model = name;
  keep("octavo.settings", settings);
  if (chat.messages.length) keepChat(chat, chat.updated);
  $("models").close();
  $("prompt").focus();
  drawModels();
  greet();
}
async function loadOrUnload(name, word) {
  try { await post(`models/${word === "Load" ? "load" : "unload"}`, { model: name }); } catch (error) { refused(error.message); }
}
async function pull() {
  const field = $("pull").querySelector("input"), button = $("pull").querySelector("button");
  if (!field.value.trim() || button.disabled) return;
  refused("");
  button.disabled = true; // the server asks the hub first
  try { await post("models", { model: field.value.trim() }); field.value = ""; await greet(); } catch (error) { refused(error.message); }
  button.disabled = false;
}
const refused = (text) => { $("refused").textContent = text; };

/* What happens to models, as the server tells it. */
async function listen() {
  if (listening) return;
  listening = true;
  while (!away) {
    const hidden = new AbortController(); // browsers have few connections to a server for all its windows
    document.addEventListener("visibilitychange", () => hidden.abort(), { once: true });
    try {
      if (document.hidden) await new Promise((resolve) => hidden.signal.addEventListener("abort", resolve));
      else for await (const event of events((await request("models/sse", { signal: hidden.signal })).body)) await hear(event);
    } catch { /* it is asked again */ }
    if (!hidden.signal.aborted) await pause(2000);
    await greet();
  }
  listening = false;
}
async function hear({ model, event, data }) {
  const one = models.find((known) => known.id === model);
  if (event === "download_failed") notice(`${model} was not downloaded: ${data.why}`);
  if (event === "download_finished") tell(`${model} is downloaded`);
  if (event === "model_status" && one === chosen()) tell(`${model} is ${wordOf({ ...data, value: data.status })}`);
  if (event === "model_status" && one && data.status !== "loaded") {
    const { status: value, ...more } = data;
    one.status = { value, ...more };
    if (more.why) notice(`${model}: ${more.why}`);
  } else if (event === "download_progress" && one) one.status = { value: "downloading", progress: data };
  else { await greet(); return; }
  drawModels();
}
