"use strict";
/* What this browser keeps: each conversation under a name of its own. Its messages are a tree, of which `leaf` ends the branch that is
   shown; edits and new replies only add to it, and what two windows add to the same one is joined. */
const PREFIX = "octavo.chat.";
const FULL = "This browser has no room left: what is new is kept only until this window is closed. Remove conversations to make room.";
const shelf = storage("localStorage"), desk = storage("sessionStorage");
const unkept = new Map(); // conversations for which there was no room

function storage(name) {
  try { if (window[name]) return window[name]; } catch { /* it is forbidden */ }
  const methods = {
    getItem(key) { return this[key] ?? null; }, setItem(key, value) { this[key] = value; }, removeItem(key) { delete this[key]; },
  };
  return Object.create(methods);
}
function saved(name, otherwise, where = shelf) {
  try { return JSON.parse(where.getItem(name)) ?? otherwise; } catch { return otherwise; }
}
function keep(name, value) {
  try { shelf.setItem(name, JSON.stringify(value)); return true; } catch { notice(FULL); return false; } // what was there is there still
}
const newId = () => `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;
const settings = saved("octavo.settings", {});
let chat = fresh();
let live = null; // the reply under way: its conversation, message, view, and what stops it

function fresh() {
  return { id: newId(), title: "", updated: 0, system: settings.system ?? "", messages: [], leaf: null };
}
const isMessage = (message) => typeof message?.role === "string" && typeof message.content === "string";
/* A conversation that was kept, or null for what is none; before there were branches, messages had neither ids nor parents. */
function adopted(one) {
  if (typeof one?.id !== "string" || !Array.isArray(one.messages) || !one.messages.every(isMessage)) return null;
  one.messages.forEach((message, i) => {
    message.id ??= `m${i}`;
    if (message.parent === undefined) message.parent = one.messages[i - 1]?.id ?? null;
  });
  one.leaf ??= one.messages.at(-1)?.id ?? null;
  return one;
}
const kept = (id) => unkept.get(id) ?? adopted(saved(PREFIX + id, null));

/* The branch that is shown, from its first message on. */
function branch(one = chat) {
  const all = new Map(one.messages.map((message) => [message.id, message]));
  const found = [];
  for (let message = all.get(one.leaf); message && found.length < all.size; message = all.get(message.parent)) found.unshift(message);
  return found;
}
const versions = (one, message) => one.messages.filter((other) => other.parent === message.parent);
function add(one, parent, message) {
  one.messages.push({ id: newId(), parent: parent?.id ?? null, ...message });
  return switchTo(one, one.messages.at(-1));
}
/* Show the branch that goes through `message`, down to where it was left. */
function switchTo(one, message) {
  for (let next = message; next;) {
    one.leaf = next.id;
    const children = one.messages.filter((other) => other.parent === one.leaf);
    next = children.find((other) => other.id === next.next) ?? children.at(-1);
  }
  branch(one).reduce((before, after) => { before.next = after.id; return after; }, {});
  return message;
}

function keepChat(one = chat, updated = Date.now()) {
  const known = new Set(one.messages.map((message) => message.id));
  one.messages.push(...(adopted(saved(PREFIX + one.id, null))?.messages ?? []).filter((message) => !known.has(message.id)));
  one.updated = updated;
  const first = branch(one)[0];
  one.title = (first?.content || first?.files?.[0]?.name || "").trim().split("\n")[0].slice(0, 60);
  if (keep(PREFIX + one.id, one)) unkept.delete(one.id); else unkept.set(one.id, one);
  if (one === chat) remember();
  listChats();
}
function forget(one) {
  shelf.removeItem(PREFIX + one.id);
  unkept.delete(one.id);
  if (live?.chat.id === one.id) live.controller.abort();
  for (const other of [...unkept.values()]) keepChat(other);
  if (!unkept.size) for (const line of [...$("notices").children]) if (line.firstChild.textContent === FULL) line.remove();
  if (one.id === chat.id) open(fresh()); else listChats();
}
/* Which conversation a reload of this window opens again. */
function remember() { try { desk.setItem("octavo.open", chat.id); } catch { /* it opens a new one */ } }
const remembered = () => kept(desk.getItem("octavo.open")) ?? fresh();
function allChats() {
  const found = Object.keys(shelf).filter((name) => name.startsWith(PREFIX)).map((name) => kept(name.slice(PREFIX.length)));
  const more = [...unkept.values()].filter((one) => !found.some((other) => other?.id === one.id));
  return [...found, ...more].filter(Boolean).sort((a, b) => b.updated - a.updated);
}
function listChats() {
  const all = allChats(), names = [...new Set(all.map((one) => one.model).filter(Boolean))].sort();
  const chosen = names.includes($("filter").value) ? $("filter").value : "";
  $("filter").hidden = names.length < 2;
  const choices = names.length < 2 ? [] : ["", ...names];
  $("filter").replaceChildren(...choices.map((name) => make("option", { value: name, text: name || "All models" })));
  $("filter").value = chosen;
  const rows = [];
  let day = "";
  for (const one of all.filter((each) => !chosen || each.model === chosen)) {
    const then = dayOf(one.updated);
    if (then !== day) rows.push(make("li", { class: "day", text: day = then }));
    const here = one.id === chat.id;
    const name = make("span", { text: one.title || "Untitled", dir: "auto" });
    const model = names.length > 1 && !chosen && one.model ? [make("small", { text: one.model })] : [];
    const title = make("button", { class: "title", title: one.title, onclick: () => open(one) }, name, ...model);
    if (here) title.setAttribute("aria-current", "true");
    rows.push(make("li", here ? { class: "open" } : {}, title, remover(one)));
  }
  $("chats").replaceChildren(...rows);
}
function dayOf(time) {
  const days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 864e5);
  return days < 1 ? "Today" : days < 2 ? "Yesterday" : days < 8 ? "Last week"
    : new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}
function remover(one) {
  const button = make("button", { class: "remove icon", "aria-label": `Remove ${one.title}`, title: "Remove", onclick: () => {
    if (button.textContent) { forget(one); return; }
    button.replaceChildren("Remove?");
    setTimeout(() => button.replaceChildren(icon("remove")), 2500);
  } }, icon("remove"));
  return button;
}
