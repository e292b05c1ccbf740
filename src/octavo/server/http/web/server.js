"use strict";
/* Talking to the server: paths are relative, so that the page works below a proxy's path too. While the server is away the page says so,
   keeps what is written, and asks again. */
const AWAY = "The server can't be reached. Conversations and what you write are kept in this browser; replies have to wait. "
  + "Trying again…";
class AwayError extends Error {}
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let away = false;

function headers() {
  const key = desk.getItem("octavo.key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}
async function request(path, options = {}) {
  for (;;) {
    const response = await fetch(path, { ...options, headers: headers() }).catch(lost);
    isAway(false);
    if (response.ok) return response;
    if (response.status === 401 && await askKey()) continue;
    let message = `The server answered ${response.status}.`;
    try { message = (await response.json()).error.message; } catch { /* not JSON: the status has to do */ }
    const wait = response.headers.get("Retry-After");
    throw new Error(wait ? `${message} (try again in ${wait} s)` : message);
  }
}
const post = (path, value, options = {}) => request(path, { method: "POST", body: JSON.stringify(value), ...options });
function lost(error) {
  if (error.name === "AbortError") throw error;
  isAway(true);
  throw new AwayError("The server can't be reached.");
}
function isAway(now) {
  if (away === now) return;
  away = now;
  $("away").textContent = away ? AWAY : "";
  tell(away ? "" : "The server is there again");
  if (away) comeBack();
}
async function comeBack() {
  for (let i = 0; away; i++) {
    const online = new Promise((resolve) => addEventListener("online", resolve, { once: true }));
    await Promise.race([pause(Math.min(1000 * (i + 1), 10000)), online]);
    await greet();
  }
}
function askKey() {
  desk.removeItem("octavo.key");
  return new Promise((resolve) => {
    const dialog = $("key");
    if (!dialog.open) dialog.showModal();
    dialog.addEventListener("close", () => {
      const field = dialog.querySelector("input");
      const given = dialog.returnValue === "save" && field.value;
      if (given) desk.setItem("octavo.key", given);
      field.value = "";
      resolve(Boolean(given));
    }, { once: true });
  });
}
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(lost);
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
