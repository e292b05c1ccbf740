"use strict";
/* What is said, and the reply to it as it comes. */
function bodyOf(one, asked) {
  const all = branch(one);
  const messages = all.slice(0, all.indexOf(asked)).map((message) => {
    if (message.role === "tool") return { role: "tool", tool_call_id: message.call, content: message.content };
    const calls = message.calls?.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
    return { role: message.role, content: contentOf(message), ...(calls ? { tool_calls: calls } : {}) };
  });
  if (one.system) messages.unshift({ role: "system", content: one.system });
  const sampling = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    if (Number.isFinite(settings[name])) sampling[name] = settings[name];
  }
  if (settings.thinking) sampling.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  const tools = toolsOf(settings.tools ?? "");
  const named = several() ? { model: asked.model } : {}, calls = tools.length ? { tools } : {};
  return { ...named, messages, stream: true, stream_options: { include_usage: true }, ...sampling, ...calls };
}
function ask(parent, text, files = []) {
  reply(add(chat, parent, { role: "user", content: text, ...(files.length ? { files } : {}) }));
}
function say(text, files = []) {
  if (live || !(text.trim() || files.length)) return;
  ask(branch().at(-1), text, files);
}
/* Another version of a reply; one of which nothing came is asked for once more. */
function again(message) {
  if (live) return;
  if (message.content || message.reasoning || message.calls) reply(chat.messages.find((other) => other.id === message.parent));
  else reply(null, message);
}
async function reply(parent, message = null) {
  if (message) for (const name of ["error", "stopped", "stats"]) delete message[name];
  else message = add(chat, parent, { role: "assistant", content: "", reasoning: "" });
  const clock = { sent: performance.now(), first: 0, pieces: 0, usage: null, timings: null, whole: false };
  message.model = chat.model = chosen()?.id ?? chat.model;
  live = { chat, message, clock, controller: new AbortController(), element: null };
  const mine = live;
  buttons();
  keepChat(mine.chat);
  draw();
  strayed();
  tell("Waiting for the reply");
  try {
    if (!models.length) { // they could not be asked for before
      await greet();
      message.model = mine.chat.model = chosen()?.id ?? mine.chat.model;
    }
    const response = await post("v1/chat/completions", bodyOf(mine.chat, message), { signal: mine.controller.signal });
    for await (const event of events(response.body)) take(event, message, clock);
    if (!clock.whole) message.error = "The reply broke off: the server ended it early.";
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else message.error = error.message;
  }
  live = null;
  finish(message, clock);
  buttons();
  if (shelf.getItem(PREFIX + mine.chat.id) || unkept.has(mine.chat.id)) keepChat(mine.chat);
  if (mine.chat === chat) { refresh(mine); used(); }
  const calls = message.calls?.map((call) => call.name).join(", ");
  tell(message.error ? "" : `Reply${message.stopped ? ", stopped" : ""}: ${message.content || (calls ? `calls ${calls}` : "empty")}`);
}
function take(event, message, clock) {
  if (event.error) throw new Error(event.error.message);
  clock.usage = event.usage ?? clock.usage;
  clock.timings = event.timings ?? clock.timings;
  const { delta, finish_reason: finished } = event.choices?.[0] ?? {};
  if (finished) clock.whole = true;
  if (finished === "length") message.cut = true;
  if (!delta?.content && !delta?.reasoning_content && !delta?.tool_calls?.length) return;
  const now = performance.now();
  clock.first ||= now;
  clock.pieces++;
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? "";
  if (delta.reasoning_content) message.thought = (now - clock.first) / 1000;
  for (const { index, id, function: part } of delta.tool_calls ?? []) {
    message.calls ??= [];
    const call = message.calls[index] ??= { id: "", name: "", arguments: "" };
    call.id ||= id ?? "";
    call.name += part?.name ?? "";
    call.arguments += part?.arguments ?? "";
  }
  const seconds = (now - clock.first) / 1000;
  if (seconds > 0.3) message.stats = `${(clock.pieces / seconds).toFixed(1)} tokens a second`;
  if (!live.frame) live.frame = requestAnimationFrame(() => { if (live) { live.frame = 0; refresh(live); } });
}
function refresh(one) {
  const scroll = $("scroll");
  const follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  if (one.element?.isConnected) drawMessage(one.element, one.message);
  if (follows) scroll.scrollTop = scroll.scrollHeight;
}
function finish(message, clock) {
  const { usage, timings } = clock, tokens = usage?.completion_tokens ?? clock.pieces;
  if (usage) message.used = usage.prompt_tokens + tokens;
  const seconds = (performance.now() - clock.first) / 1000, cached = usage?.prompt_tokens_details?.cached_tokens;
  const rate = timings?.predicted_per_second ?? (tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : 0);
  const speed = [`${tokens} token${tokens === 1 ? "" : "s"}`, rate && `${rate.toFixed(1)} a second`,
    `first after ${((clock.first - clock.sent) / 1000).toFixed(2)} s`,
    cached !== undefined && `${cached.toLocaleString()} of ${usage.prompt_tokens.toLocaleString()} cached`];
  const ends = [message.cut && "cut at the limit", message.stopped && "stopped"];
  message.stats = [...(clock.first ? speed : []), ...ends].filter(Boolean).join(" · ");
}
