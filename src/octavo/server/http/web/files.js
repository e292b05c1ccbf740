"use strict";
/* Text files that go along with a message: few, small, and shown folded. What is no text, or too large, is refused with a line. */
const MOST_FILES = 10, MOST_BYTES = 250e3, MOST_TOGETHER = 500e3;
let attached = [];

/* A file's name as one line without characters that hide or turn others around. */
const nameOf = (file) => file.name.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}`]+/gu, " ").trim().slice(0, 120) || "file";
/* Raises what is wrong with a file, or gives its text. */
async function textOf(file, together) {
  if (file.size > MOST_BYTES) throw new Error(`has ${sizeOf(file.size)}, and at most ${sizeOf(MOST_BYTES)} can be attached`);
  if (file.size + together > MOST_TOGETHER) throw new Error(`is too much: files of a message may have ${sizeOf(MOST_TOGETHER)} together`);
  const bytes = new Uint8Array(await file.arrayBuffer().catch(() => { throw new Error("can't be read (folders can't be attached)"); }));
  if (!bytes.length) throw new Error("is empty");
  const coding = { "255,254": "utf-16le", "254,255": "utf-16be" }[bytes.slice(0, 2).join()] ?? "utf-8";
  let text;
  try { text = new TextDecoder(coding, { fatal: true }).decode(bytes); } catch { text = "\0"; }
  if (/[\0-\x08\x0e-\x1a\x1c-\x1f]/.test(text)) throw new Error("is not a text in UTF-8 or UTF-16");
  return text;
}
async function attach(files) {
  for (const file of files) {
    const name = nameOf(file);
    try {
      if (attached.length >= MOST_FILES) throw new Error(`is one too many: at most ${MOST_FILES} files go with a message`);
      attached.push({ name, size: file.size, text: await textOf(file, attached.reduce((sum, one) => sum + one.size, 0)) });
      tell(`${name} attached`);
    } catch (error) { notice(`${name} ${error.message}.`); }
  }
  showAttached();
  $("prompt").focus();
}
function showAttached() {
  $("attached").replaceChildren(...chips(attached, showAttached));
  keepDraft();
  buttons();
}
/* Files as a row of names, each with a button that takes it off. */
function chips(files, changed) {
  return files.map((file) => make("span", { class: "chip" }, make("bdi", { text: file.name }), make("small", { text: sizeOf(file.size) }),
    tool("close", `Take off ${file.name}`, () => { files.splice(files.indexOf(file), 1); changed(); })));
}
/* A file of a message: its text becomes nodes when it is unfolded. */
function folded(name, note, text, style = "file") {
  const inside = make("pre", { dir: "auto", tabindex: "0", role: "region", "aria-label": name });
  return make("details", { class: style, ontoggle: () => { if (!inside.firstChild) inside.textContent = text; } },
    make("summary", {}, make("bdi", { text: name }), ...(note ? [make("small", { text: note })] : [])), inside);
}
/* A message as the server gets it: its files first, each between fences longer than those in it. */
function contentOf({ content, files = [] }) {
  const texts = files.map(({ name, text }) => {
    const fence = "`".repeat(Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length)) + 1);
    return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...texts, content].filter(Boolean).join("\n\n");
}

/* What is written and not sent yet is there again after a reload of the window. */
function keepDraft() {
  const text = $("prompt").value;
  try {
    if (text || attached.length) desk.setItem("octavo.draft", JSON.stringify({ text, files: attached }));
    else desk.removeItem("octavo.draft");
  } catch { try { desk.setItem("octavo.draft", JSON.stringify({ text, files: [] })); } catch { /* it is on the page */ } }
}
function restoreDraft() {
  const { text = "", files = [] } = saved("octavo.draft", {}, desk);
  $("prompt").value = text;
  attached = files;
  showAttached();
}
