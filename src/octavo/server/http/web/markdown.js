"use strict";
/* Markdown: blocks first, then what is within a line. */
const INLINE = new RegExp([
  /(`+)(?<code>.+?)\1(?!`)/, /\*\*(?<bold>(?=\S).+?(?<=\S))\*\*/, /(?<![\w*])\*(?<italic>(?=[^\s*]).+?(?<=[^\s*]))\*(?![\w*])/,
  /(?<!\w)_(?<slanted>(?=[^\s_]).+?(?<=[^\s_]))_(?!\w)/, /~~(?<struck>(?=\S).+?(?<=\S))~~/, /!?\[(?<label>[^\]]*)\]\((?<link>[^\s()]+(?:\([^\s()]*\)[^\s()]*)*)(?:\s+"[^"]*")?\)/,
  /(?<bare>https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])/, /\\(?<escaped>[\\`*_{}\[\]()#+\-.!~|>])/,
].map((part) => part.source).join("|"), "s");
const TAGS = { bold: "strong", italic: "em", slanted: "em", struck: "s" };

function link(target, children) {
  let url;
  try { url = new URL(target); } catch { url = null; }
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol)) return make("span", {}, ...children);
  return make("a", { href: url.href, target: "_blank", rel: "noopener noreferrer", title: url.href }, ...children);
}
function inline(text, depth = 0) {
  const nodes = [];
  while (text) {
    const found = depth < 6 && INLINE.exec(text);
    if (!found) { nodes.push(text); break; }
    if (found.index) nodes.push(text.slice(0, found.index));
    const g = found.groups;
    const kind = Object.keys(TAGS).find((name) => g[name] !== undefined);
    if (g.code !== undefined) nodes.push(make("code", { text: g.code.replace(/^ (.+) $/s, "$1") }));
    else if (kind) nodes.push(make(TAGS[kind], {}, ...inline(g[kind], depth + 1)));
    else if (g.link !== undefined) nodes.push(link(g.link, inline(g.label || g.link, depth + 1)));
    else if (g.bare !== undefined) nodes.push(link(g.bare, [g.bare]));
    else nodes.push(g.escaped);
    text = text.slice(found.index + found[0].length);
  }
  return nodes;
}

const WORDS = ("and as async await break case catch class const continue def default do elif else enum except export extends false finally fn for from func "
  + "function go if impl import in interface is lambda let match new nil none not null or package pass private pub public raise return self static struct super switch "
  + "this throw true try type typeof use var void while with yield select where insert update delete create table join echo fi then done").split(" ");
const CODE = /(?<comment>\/\*.*?\*\/|(?<![:\w])\/\/[^\n]*|(?<!\S)#(?!\[)[^\n]*|(?<=^|\s)--\s[^\n]*)|(?<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|(?<number>\b\d[\w.]*)|(?<name>[A-Za-z_]\w*)/gs;
function coloured(code) {
  const nodes = [];
  let end = 0;
  for (const found of code.matchAll(CODE)) {
    const kind = found.groups.name === undefined ? Object.keys(found.groups).find((name) => found.groups[name] !== undefined)
      : WORDS.includes(found[0].toLowerCase()) ? "word" : null;
    if (!kind) continue;
    nodes.push(code.slice(end, found.index), make("span", { class: kind, text: found[0] }));
    end = found.index + found[0].length;
  }
  return [...nodes, code.slice(end)];
}
function codeBlock(language, code) {
  const bar = make("div", {}, make("span", { text: language || "text" }), copier(() => code));
  return make("div", { class: "code" }, bar, make("pre", { tabindex: "0", dir: "ltr" }, make("code", {}, ...coloured(code))));
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ROW = /^\s*\|?.*\|.*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());

/* The text as blocks, [kind, lines]: while a reply grows, only its last blocks change. */
function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let i = 0;
  const until = (stop) => { const start = i; while (i < lines.length && !stop(lines[i])) i++; return lines.slice(start, i); };
  const begins = (line) => FENCE.test(line) || RULE.test(line) || /^#{1,6}\s|^\s{0,3}>/.test(line) || ITEM.test(line);
  while (i < lines.length) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    if (!line.trim()) i++;
    else if (fence) {
      i++;
      const close = new RegExp(`^\\s{0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
      found.push(["code", [fence[2], ...until((next) => close.test(next))]]);
      i++;
    } else if (RULE.test(line)) { found.push(["rule", []]); i++; }
    else if (/^#{1,6}\s/.test(line)) { found.push(["heading", [line]]); i++; }
    else if (/^\s{0,3}>/.test(line)) found.push(["quote", until((next) => !/^\s{0,3}>/.test(next))]);
    else if (ITEM.test(line)) found.push(["list", until((next) => next.trim() && !ITEM.test(next) && !/^\s{2,}/.test(next))]);
    else if (ROW.test(line) && DIVIDER.test(lines[i + 1] ?? "")) found.push(["table", until((next) => !ROW.test(next))]);
    else { i++; found.push(["paragraph", [line, ...until((next) => !next.trim() || begins(next))]]); }
  }
  return found;
}
function list(lines) {
  const first = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const element = make(ordered ? "ol" : "ul", ordered && parseInt(first[2]) !== 1 ? { start: parseInt(first[2]) } : {});
  for (let i = 0; i < lines.length;) {
    const item = ITEM.exec(lines[i]);
    const own = item ? [item[3]] : [lines[i]];
    for (i++; i < lines.length; i++) {
      const next = ITEM.exec(lines[i]);
      if (next && next[1].length <= first[1].length + 1) break;
      own.push(lines[i]);
    }
    const least = Math.min(...own.slice(1).filter((line) => line.trim()).map((line) => line.search(/\S/)));
    const text = [own[0], ...own.slice(1).map((line) => line.slice(Number.isFinite(least) ? least : 0))].join("\n").trimEnd();
    const parts = blocks(text);
    const node = make("li", { dir: "auto" });
    for (const [kind, inner] of parts) node.append(...(kind === "paragraph" && parts[0][1] === inner ? inline(inner.join("\n")) : [block(kind, inner)]));
    element.append(node);
  }
  return element;
}
function table(lines) {
  const row = (line, tag) => make("tr", {}, ...cells(line).map((cell) => make(tag, { dir: "auto" }, ...inline(cell.replaceAll("\\|", "|")))));
  const body = lines.slice(2).map((line) => row(line, "td"));
  return make("div", { class: "table" }, make("table", {}, make("thead", {}, row(lines[0], "th")), make("tbody", {}, ...body)));
}
function block(kind, lines) {
  if (kind === "code") return codeBlock(lines[0], lines.slice(1).join("\n"));
  if (kind === "rule") return make("hr");
  if (kind === "heading") {
    const level = /^#+/.exec(lines[0])[0].length;
    return make(`h${Math.min(level, 4) + 1}`, { dir: "auto" }, ...inline(lines[0].slice(level).replace(/\s#+\s*$/, "").trim()));
  }
  if (kind === "quote") return make("blockquote", {}, ...blocks(lines.map((line) => line.replace(/^\s{0,3}> ?/, "")).join("\n")).map((b) => block(...b)));
  if (kind === "list") return list(lines);
  if (kind === "table") return table(lines);
  return make("p", { dir: "auto" }, ...inline(lines.join("\n")));
}
/* Show `text` in `element`: blocks that are there already stay, so that a selection in them does. */
function show(element, text) {
  const now = blocks(text).map(([kind, lines]) => ({ key: JSON.stringify([kind, lines]), kind, lines }));
  const before = element.shown ?? [];
  let same = 0;
  while (same < now.length && same < before.length && now[same].key === before[same]) same++;
  while (element.childNodes.length > same) element.lastChild.remove();
  element.append(...now.slice(same).map(({ kind, lines }) => block(kind, lines)));
  element.shown = now.map(({ key }) => key);
}
