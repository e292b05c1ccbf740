"use strict";
/* Controls: the message box, settings, the list on a phone, and the keys for them. */
const IDEAS = ["What is 12 * 7?", "Explain how a hash table works", "Write a haiku about rain", "Show quicksort in Python"];
const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
/* Keys, what they do, and as what they are heard here; those without that are heard where they act. */
const KEYS = [
  ["Enter", "Send the message"], ["Shift+Enter", "Start a new line"], ["Escape", "Stop the reply, or close what is open"],
  ["↑ in an empty box", "Edit the last message"], ["Ctrl+Enter", "Save a reply that is edited"],
  ["Page Up, Page Down", "Scroll through the conversation"],
  ["Ctrl+Shift+O", "New conversation", "c s o", () => open(fresh())],
  ["Alt+↑", "Conversation above in the list", "a arrowup", () => neighbour(-1)],
  ["Alt+↓", "Conversation below in the list", "a arrowdown", () => neighbour(1)],
  ["Ctrl+Shift+L", "Choose, load or unload a model", "c s l", () => { if (!$("choice").hidden) $("choice").click(); }],
  ["Ctrl+Shift+A", "Attach files", "c s a", () => $("attach").click()],
  ["Ctrl+Shift+G", "Another version of the last reply", "c s g", () => anotherReply()],
  ["Ctrl+/", "This list", "c /", () => $("keys").showModal()],
];

function buttons() {
  const send = $("send"), name = live ? "Stop" : "Send";
  if (send.getAttribute("aria-label") !== name) send.replaceChildren(icon(live ? "stop" : "send"));
  send.setAttribute("aria-label", name);
  send.disabled = !live && !$("prompt").value.trim() && !attached.length;
  document.body.classList.toggle("live", Boolean(live));
}
function grow() {
  const area = $("prompt");
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
  buttons();
}
function theme() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme; else delete document.documentElement.dataset.theme;
}
/* The list of conversations where it lies over the page. */
function side(shown) {
  const was = document.body.classList.contains("side-open");
  document.body.classList.toggle("side-open", shown);
  $("menu").setAttribute("aria-expanded", shown);
  document.querySelector("main").inert = shown;
  if (shown) $("new").focus(); else if (was) $("menu").focus();
}
function anotherReply() {
  const last = branch().at(-1);
  if (last?.role === "assistant") again(last);
}
function neighbour(step) {
  const titles = [...document.querySelectorAll("#chats .title")];
  const at = titles.findIndex((one) => one.hasAttribute("aria-current"));
  titles[at < 0 ? 0 : at + step]?.click();
}
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (live) { live.controller.abort(); return; }
  const text = $("prompt").value, files = attached;
  if (!text.trim() && !files.length) return;
  $("prompt").value = "";
  attached = [];
  showAttached();
  grow();
  say(text, files);
});
$("prompt").addEventListener("input", () => { grow(); keepDraft(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (!live) $("ask").requestSubmit(); }
  if (event.key.startsWith("Page") && $("prompt").scrollHeight <= $("prompt").clientHeight) {
    event.preventDefault();
    $("scroll").scrollBy(0, (event.key === "PageUp" ? -0.9 : 0.9) * $("scroll").clientHeight);
  }
  if (event.key === "ArrowUp" && !$("prompt").value && !event.altKey) {
    const last = [...document.querySelectorAll(".message.user")].at(-1);
    if (last && !live) { event.preventDefault(); last.querySelector('[aria-label="Edit"]')?.click(); }
  }
});
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (document.body.classList.contains("side-open")) side(false); else live?.controller.abort();
    return;
  }
  const { key, ctrlKey, metaKey, altKey, shiftKey } = event;
  const held = [(ctrlKey || (MAC && metaKey)) && "c", altKey && "a", shiftKey && key !== "/" && "s"].filter(Boolean);
  const pressed = [...held, key.toLowerCase()].join(" ");
  const found = KEYS.find(([, , keys]) => keys === pressed);
  if (found) { event.preventDefault(); found[3](); }
});
$("attach").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { attach([...$("file").files]); $("file").value = ""; });
$("prompt").addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (files.length && !event.clipboardData.getData("text/plain")) { event.preventDefault(); attach(files); }
});
const brings = (event) => event.dataTransfer?.types.includes("Files") && !document.querySelector("dialog[open]");
for (const type of ["dragenter", "dragover"]) {
  document.addEventListener(type, (event) => { if (brings(event)) { event.preventDefault(); document.body.classList.add("dropping"); } });
}
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
document.addEventListener("drop", (event) => {
  document.body.classList.remove("dropping");
  if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); // or the browser would leave the page for the file
  if (brings(event)) attach([...event.dataTransfer.files]);
});
$("new").addEventListener("click", () => open(fresh()));
$("filter").addEventListener("change", listChats);
$("menu").addEventListener("click", () => side(true));
$("shade").addEventListener("click", () => side(false));
$("choice").addEventListener("click", () => { refused(""); $("models").showModal(); });
$("pull").addEventListener("submit", (event) => { event.preventDefault(); pull(); });
for (const button of document.querySelectorAll("dialog .shut")) button.addEventListener("click", () => button.closest("dialog").close());
const fields = () => $("options").querySelectorAll("[name]");
$("settings").addEventListener("click", () => {
  for (const field of fields()) field.value = (field.name === "system" ? chat.system : settings[field.name]) ?? "";
  $("options").returnValue = "";
  $("options").showModal();
});
$("options").querySelector("[name=tools]").addEventListener("input", ({ target }) => {
  target.setCustomValidity("");
  try { toolsOf(target.value); } catch (error) { target.setCustomValidity(`Tools are a list in JSON: ${error.message}`); }
});
$("options").addEventListener("close", () => {
  if ($("options").returnValue !== "save") return;
  for (const field of fields()) {
    settings[field.name] = field.type === "number" ? (field.value === "" ? null : Number(field.value)) : field.value;
  }
  chat.system = settings.system;
  keep("octavo.settings", settings);
  if (chat.messages.length) keepChat();
  theme();
});
$("show-keys").addEventListener("click", () => { $("options").close("cancel"); $("keys").showModal(); });
for (const [keys, what] of KEYS) {
  const text = MAC ? keys.replace("Ctrl", "⌘").replace("Alt", "⌥") : keys;
  $("keys").querySelector("dl").append(make("div", {}, make("dt", {}, make("kbd", { text })), make("dd", { text: what })));
}
/* Another window has added to the conversation that is open here, or removed one. */
window.addEventListener("storage", ({ key }) => {
  const free = live?.chat !== chat && !document.querySelector("textarea.edit");
  if (key === PREFIX + chat.id && free && kept(chat.id)) { chat = kept(chat.id); draw(); }
  listChats();
});
window.addEventListener("beforeunload", (event) => { if (unkept.size) event.preventDefault(); });
window.addEventListener("pagehide", () => {
  if (!live) return;
  live.message.stopped = true;
  finish(live.message, live.clock);
  keepChat(live.chat);
});
window.addEventListener("online", greet);
theme();
open(remembered());
restoreDraft();
grow();
greet();
