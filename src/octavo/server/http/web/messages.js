"use strict";
/* The conversation on the page: a view of each message of the branch that is shown. */
function open(one) {
  chat = live?.chat.id === one.id ? live.chat : kept(one.id) ?? one;
  remember();
  side(false);
  draw();
  listChats();
  if (models.length) drawModels();
  if (matchMedia("(hover: hover)").matches) $("prompt").focus({ preventScroll: true }); // or a keyboard would cover a phone
}
function draw() {
  const shown = branch();
  $("log").replaceChildren(...shown.map(view));
  if (!shown.length) {
    const ideas = IDEAS.map((text) => pressed(text, () => say(text)));
    const heading = make("h2", { text: "What can I help with?" });
    $("log").append(make("div", { id: "empty" }, heading, make("div", { id: "ideas" }, ...ideas)));
  }
  used();
  $("scroll").scrollTop = $("scroll").scrollHeight;
}
function used() {
  const last = branch().findLast((message) => message.used);
  const most = contextSize?.toLocaleString();
  $("context").textContent = last && contextSize ? `${Math.min(last.used, contextSize).toLocaleString()} of ${most} tokens` : "";
}
const SPEAKERS = { user: "You", assistant: "Reply", tool: "Result" };
function view(message) {
  const element = make("article", { class: `message ${message.role}`, "aria-label": SPEAKERS[message.role] ?? message.role });
  if (live?.message === message) live.element = element;
  drawMessage(element, message);
  return element;
}
function drawMessage(element, message) {
  if (message.role === "user") drawQuestion(element, message);
  else if (message.role === "tool") {
    element.replaceChildren(folded(`Result of ${message.name}`, sizeOf(message.content.length), message.content));
  } else drawReply(element, message);
}
function drawQuestion(element, message) {
  const files = (message.files ?? []).map(({ name, size, text }) => folded(name, sizeOf(size), text));
  const row = make("div", { class: "tools" }, ...branches(message), copier(() => message.content),
    tool("edit", "Edit", () => edit(element, message)));
  element.replaceChildren(...(files.length ? [make("div", { class: "files" }, ...files)] : []),
    ...(message.content ? [make("div", { class: "body", dir: "auto", text: message.content })] : []), row);
}
function drawReply(element, message) {
  const growing = live?.message === message;
  let text = element.querySelector(":scope > .text");
  if (!text) {
    text = make("div", { class: "text" });
    element.replaceChildren(text);
  }
  element.setAttribute("aria-busy", growing);
  show(text, message.content);
  drawThoughts(element, text, message, growing);
  const waits = growing && !message.content && !message.reasoning && !message.calls;
  text.classList.toggle("wait", waits);
  const its = models.find((one) => one.id === message.model);
  if (waits && isBusy(its)) text.dataset.why = `${its.id} is ${wordOf(its.status)}`; else delete text.dataset.why;
  if (growing || !element.querySelector(":scope > .results")) {
    element.querySelectorAll(":scope > .call").forEach((old) => old.remove());
    element.append(...(message.calls ?? []).map(callView));
    if (!growing && message.calls && !message.error && message.id === chat.leaf) element.append(resultForm(message));
  }
  element.querySelectorAll(":scope > .tools, :scope > .error").forEach((old) => old.remove());
  if (message.error) element.append(make("div", { class: "error", role: "alert", text: message.error }));
  const mixed = new Set(chat.messages.map((one) => one.model).filter(Boolean)).size > 1;
  const parts = [mixed && message.model, message.stats].filter(Boolean).join(" · ").split(/(?<=·) /).filter(Boolean);
  const stats = parts.flatMap((text, i) => [i ? " " : "", make("span", { text })]);
  const row = make("div", { class: "tools" }, ...branches(message), make("span", { class: "stats" }, ...stats));
  if (!growing) {
    const own = message.content ? [copier(() => message.content), tool("edit", "Edit", () => edit(element, message))] : [];
    row.append(make("div", {}, ...own, tool("again", "Regenerate", () => again(message))));
  }
  element.append(row);
}
/* Thoughts are folded, with what is going on in the line that unfolds them. */
function drawThoughts(element, text, message, growing) {
  let details = element.querySelector(":scope > details");
  if (!message.reasoning) { details?.remove(); return; }
  if (!details) {
    details = make("details", {}, make("summary"), make("div", { class: "text" }));
    details.addEventListener("toggle", () => { if (details.open) show(details.lastChild, message.reasoning); });
    text.before(details);
  }
  const thinking = growing && !message.content && !message.calls;
  const seconds = message.thought ? ` for ${message.thought < 10 ? message.thought.toFixed(1) : Math.round(message.thought)} s` : "";
  details.firstChild.textContent = thinking ? `Thinking${seconds}…` : seconds ? `Thought${seconds}` : "Thoughts";
  details.firstChild.classList.toggle("thinking", thinking);
  if (details.open) show(details.lastChild, message.reasoning);
}
/* Where a message was edited, or a reply asked for again: which of them is shown, and the way to the others. */
function branches(message) {
  const all = versions(chat, message), at = all.indexOf(message);
  if (all.length < 2) return [];
  const to = (step, name, label) => {
    const button = tool(name, label, () => {
      switchTo(chat, all[at + step]);
      keepChat(chat, chat.updated);
      const top = $("scroll").scrollTop;
      draw();
      $("scroll").scrollTop = top;
      const shown = $("log").children[branch().indexOf(all[at + step])];
      (shown.querySelector(`[aria-label="${label}"]:enabled`) ?? shown.querySelector(".versions button:enabled")).focus();
      tell(`Version ${at + step + 1} of ${all.length}`);
    });
    button.disabled = !all[at + step];
    return button;
  };
  return [make("span", { class: "versions", role: "group", "aria-label": "Versions" }, to(-1, "before", "Previous version"),
    make("span", { text: `${at + 1} of ${all.length}` }), to(1, "after", "Next version"))];
}
/* An edited message is a new version beside the old one, which is kept with all that came after it. */
function edit(element, message) {
  const asks = message.role === "user", area = make("textarea", { class: "edit", "aria-label": "Edit the message", dir: "auto" });
  const files = [...(message.files ?? [])], row = make("div", { class: "chips" });
  const drawFiles = () => row.replaceChildren(...chips(files, drawFiles));
  const cancel = () => { element.replaceChildren(); drawMessage(element, message); element.querySelector('[aria-label="Edit"]')?.focus(); };
  const save = () => {
    if (live || !(area.value.trim() || files.length)) return;
    const parent = chat.messages.find((other) => other.id === message.parent) ?? null;
    if (asks) { ask(parent, area.value, files); return; }
    add(chat, parent, { role: "assistant", content: area.value, model: message.model, stats: "edited" });
    keepChat();
    draw();
    $("prompt").focus();
  };
  area.value = message.content;
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); cancel(); }
    const sends = event.key === "Enter" && !event.isComposing && (asks ? !event.shiftKey : event.ctrlKey || event.metaKey);
    if (sends) { event.preventDefault(); save(); }
  });
  drawFiles();
  const ends = make("div", { class: "row" }, pressed("Cancel", cancel), pressed(asks ? "Send" : "Save", save, "primary"));
  element.replaceChildren(row, area, ends);
  area.style.height = `${Math.min(area.scrollHeight + 4, innerHeight / 2)}px`;
  area.focus();
}
