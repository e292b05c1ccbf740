"use strict";
/* Tools: the settings describe them, a model calls them, and the user says what they gave. */
function toolsOf(text) {
  if (!text.trim()) return [];
  const found = [JSON.parse(text)].flat();
  const nameless = found.some((one) => typeof (one?.function ?? one)?.name !== "string");
  if (nameless) throw new Error("each tool needs a `name`, or a `function` that has one");
  return found.map((one) => (one.function ? one : { type: "function", function: one }));
}
/* A call as its name and a row for each argument, or as the text that came where that is not an object. */
function callView({ name, arguments: text }) {
  let values = null;
  try { values = JSON.parse(text); } catch { /* it is still coming, or it is not JSON */ }
  const rows = values && typeof values === "object" && !Array.isArray(values) ? Object.entries(values) : null;
  const inside = !rows ? make("pre", { text })
    : make("dl", {}, ...rows.map(([key, value]) => make("div", {}, make("dt", { text: key }),
      make("dd", { dir: "auto", text: typeof value === "string" ? value : JSON.stringify(value, null, 1) }))));
  return make("section", { class: "call", "aria-label": `Call of ${name}` }, make("div", {}, "Calls ", make("code", { text: name })),
    ...(rows?.length === 0 ? [] : [inside]));
}
/* A field for the result of each call, at the end of a branch whose reply called something. */
function resultForm(message) {
  const fields = message.calls.map(({ name }) =>
    make("textarea", { rows: "2", "aria-label": `Result of ${name}`, placeholder: `What ${name} gave`, dir: "auto" }));
  const send = () => {
    const missing = fields.find((field) => !field.value.trim());
    if (live || missing) { missing?.focus(); return; }
    let last = message;
    message.calls.forEach(({ id, name }, i) => { last = add(chat, last, { role: "tool", call: id, name, content: fields[i].value }); });
    reply(last);
  };
  return make("div", { class: "results" }, ...fields, make("div", { class: "row" }, pressed("Send results", send, "primary")));
}
