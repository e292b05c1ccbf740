"""Grammars drawn at random in Lark, GBNF, regular expressions and JSON Schema: right ones, broken ones, hostile ones.

    python bench/hostile_grammars.py 17 [--seed 0]

prints one of them as the request that asks for it. Which one a number is depends on it and the seed only.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

LETTERS = "abcdefghij0123 _-.,:"
UNICODE = "äßçñ€→中文字한글ابجहिं😀🏳️‍🌈e\u0301\u200b\ufeff\U0010ffff"
CLASSES = (
    *("[a-z]", "[^\\n]", "[0-9A-Fa-f]", "[а-яё]", "[一-龥]", "[😀-🙏]", "\\d", "\\w", "\\s", "\\p{L}", "\\p{Greek}"),
    *("[\\p{L}\\p{N}]", "[^\\p{Lu}]", "\\PL", ".", "[\\x00-\\x1f]", "[\\u{10000}-\\u{10ffff}]"),
)
FORMATS = ("date-time", "date", "time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname", "duration", "no-such-one")
MOST = 190_000
"""Characters of the longest ones; a little more than 200,000 is refused without a look."""


@dataclass(frozen=True)
class Case:
    """A grammar in a request: which kind of grammar it is, and the fields that say so."""

    family: str
    fields: dict[str, Any]


def case(seed: int, number: int) -> Case:
    """The grammar of a number: four in ten drawn by the rules of its language, two of these broken, others hostile."""
    draw = Random(f"{seed} {number}")
    language = draw.choice([*WRITTEN])
    share = draw.random()
    if share < 0.4:
        return Case(f"{language}: random", asked(language, WRITTEN[language](draw)))
    if share < 0.6:
        text = WRITTEN[language](draw)
        return Case(f"{language}: broken", asked(language, broken(draw, text)))
    name = draw.choice([*HOSTILE])
    language, make = HOSTILE[name]
    return Case(f"{language}: {name}", asked(language, make(draw)[: MOST + 20_000]))


def asked(language: str, text: str) -> dict[str, Any]:
    """The fields of a request for a grammar. A schema that is not valid JSON any more goes as a text."""
    if language == "regex":
        return {"structured_outputs": {"regex": text}}
    if language != "schema":
        return {"grammar": text}
    try:
        form = {"name": "form", "schema": json.loads(text)}
        json.dumps(form, allow_nan=False)
        return {"response_format": {"type": "json_schema", "json_schema": form}}
    except ValueError:
        return {"guided_json": text}


def size(draw: Random, most: float) -> int:
    """A number up to `most`, as likely of each length."""
    return round(math.exp(draw.uniform(0.0, math.log(most))))


def word(draw: Random) -> str:
    """A short text, one in five of them of other scripts."""
    return "".join(draw.choice(UNICODE if draw.random() < 0.2 else LETTERS) for _ in range(draw.randint(1, 6)))


def literal(draw: Random) -> str:
    return json.dumps(word(draw), ensure_ascii=False)


def counted(draw: Random, least: bool = True) -> str:
    """How often something comes."""
    a = draw.randint(0, 5)
    return draw.choice(["*", "+", "?", f"{{{a}}}", f"{{{a},{a + draw.randint(0, 20)}}}", f"{{{a},}}"])


def regex(draw: Random, depth: int = 0) -> str:
    """A regular expression."""
    kind = draw.random()
    if depth > 4 or kind < 0.35:
        return "".join(c if c.isalnum() or ord(c) > 127 else "\\" + c for c in word(draw).replace("_", "x"))
    if kind < 0.55:
        return draw.choice(CLASSES) + draw.choice(["", counted(draw)])
    parts = [regex(draw, depth + 1) for _ in range(draw.randint(1, 4))]
    if kind < 0.7:
        return "(" + draw.choice(["", "?:", "?i:"]) + "|".join(parts) + ")"
    return f"({''.join(parts)}){counted(draw)}" if kind < 0.85 else "".join(parts)


def rules(draw: Random, define: str, term: Callable[[Random, list[str]], str], first: str) -> str:
    """Rules that use those after them, and now and then those before."""
    names = [first, *(f"r{i}" for i in range(size(draw, 20)))]
    out = []
    for i, name in enumerate(names):
        usable = names if draw.random() < 0.1 else names[i + 1 :]
        ways = [" ".join(expression(draw, usable, term) for _ in range(draw.randint(1, 4)))
                for _ in range(draw.randint(1, 4))]
        out.append(f"{name}{define}{' | '.join(ways)}")
    return "\n".join(out)


def expression(draw: Random, names: list[str], term: Callable[[Random, list[str]], str], depth: int = 0) -> str:
    if depth > 2 or draw.random() < 0.7:
        return term(draw, names)
    parts = [expression(draw, names, term, depth + 1) for _ in range(draw.randint(1, 3))]
    return f"({draw.choice([' ', ' | ']).join(parts)}){draw.choice(['', counted(draw)])}"


def lark_term(draw: Random, names: list[str]) -> str:
    kind = draw.random()
    if names and kind < 0.4:
        return draw.choice(names)
    if kind < 0.6:
        return f"/{regex(draw, 2) or 'x'}/"
    if kind < 0.65:
        return f"%json {schema(draw, 2)}"
    return literal(draw) + draw.choice(["", "", "i"])


def gbnf_term(draw: Random, names: list[str]) -> str:
    if names and draw.random() < 0.4:
        return draw.choice(names)
    return draw.choice([literal(draw), draw.choice(["[a-z]", "[^x]", "[0-9а-я]", "[😀-🙏]", "[ \\t\\n]", "."])])


def lark(draw: Random) -> str:
    ignored = draw.choice(["", "", "", "\n%ignore /[ \\t]+/"])
    return rules(draw, ": ", lark_term, "start") + ignored


def gbnf(draw: Random) -> str:
    return rules(draw, " ::= ", gbnf_term, "root")


def schema(draw: Random, depth: int = 0) -> str:
    """A JSON schema."""
    return json.dumps(schema_of(draw, depth), ensure_ascii=False)


def schema_of(draw: Random, depth: int) -> Any:
    kinds = ["string", "number", "integer", "boolean", "null", "enum", "const", "pattern", "format"]
    kind = draw.choice(kinds + ["object", "array", "anyOf", "allOf", "oneOf", "ref", "any"] * (depth < 4) * 2)
    several = [schema_of(draw, depth + 1) for _ in range(draw.randint(1, 4))] if depth < 4 else []
    low = draw.randint(-1000, 1000)
    made: dict[str, Callable[[], Any]] = {
        "string": lambda: {"type": "string", "minLength": abs(low) % 5, "maxLength": 5 + abs(low)},
        "number": lambda: {"type": "number", "minimum": low / 7, "exclusiveMaximum": low / 7 + draw.random()},
        "integer": lambda: {"type": "integer", "minimum": low, "multipleOf": draw.randint(1, 30)},
        "enum": lambda: {"enum": [low, word(draw), None, [word(draw)], {word(draw): 1.5}]},
        "const": lambda: {"const": draw.choice([word(draw), low, {"a": [1, {}]}])},
        "pattern": lambda: {"type": "string", "pattern": "^" * (low % 2) + regex(draw, 2) + "$" * (low % 2)},
        "format": lambda: {"type": "string", "format": draw.choice(FORMATS)},
        "object": lambda: object_of(draw, several),
        "array": lambda: {"type": "array", "items": several[0], "prefixItems": several[1:], "maxItems": abs(low) % 50},
        "ref": lambda: {"$ref": "#/$defs/a", "$defs": {"a": several[0], "b": {"$ref": "#"}}},
        "any": lambda: draw.choice([{}, True, False]),
    }
    if kind in made:
        return made[kind]()
    return {kind: several} if kind in ("anyOf", "allOf", "oneOf") else {"type": kind}


def object_of(draw: Random, several: list[Any]) -> dict[str, Any]:
    names = [word(draw) for _ in several]
    out: dict[str, Any] = {"type": "object", "properties": dict(zip(names, several, strict=True))}
    out["required"] = [one for one in names if draw.random() < 0.6]
    if draw.random() < 0.5:
        out["additionalProperties"] = draw.choice([False, True, several[0]])
    if draw.random() < 0.1:
        out["patternProperties"] = {regex(draw, 3): several[0]}
    return out


def broken(draw: Random, text: str) -> str:
    """A text with letters and pieces of it left out, put in twice, changed, or moved."""
    for _ in range(draw.randint(1, 6)):
        a, b = sorted((draw.randrange(len(text) + 1), draw.randrange(len(text) + 1)))
        b = min(b, a + size(draw, 30))
        piece = draw.choice(["", 2 * text[a:b], draw.choice("()[]{}|*+?\\/\"'%:=.$^\n\0\ud800,"), word(draw), text[:9]])
        text = text[:a] + piece + text[b:]
    return text or "("


def row(n: int, define: str, first: str, *, back: bool = False) -> str:
    """Rules each of which goes on with the next one; with `back` the last one with the first."""
    names = [first, *(f"a{i}" for i in range(n))]
    middle = "\n".join(f'{a}{define}"x" {b} | "y"' for a, b in pairwise(names))
    return f"{middle}\n{names[-1]}{define}" + (f'"z" {first}' if back else '"z"')


def nested(inner: str, opened: str, closed: str, n: int) -> str:
    return opened * n + inner + closed * n


def counts(draw: Random, inner: str) -> str:
    """Counts of counts."""
    for _ in range(draw.randint(1, 8)):
        inner = f"({inner}){{{draw.randint(0, 3)},{size(draw, 10_000)}}}"
    return inner


def one_of(draw: Random, n: int, mark: str = " | ") -> str:
    alike = draw.random() < 0.3
    texts = (json.dumps("a" if alike else f"{word(draw)}{i}", ensure_ascii=False) for i in range(n))
    return mark.join(texts)[:MOST].rpartition(mark)[0] or '"a"'


def refs(n: int, *, back: bool = False, choice: bool = True) -> str:
    """Schemas each of which refers to the next one."""
    where = "#/$defs/{}/{}".format
    defs: dict[str, dict[str, Any]] = {}
    for i in range(n + 1):
        to = {"$ref": where(*((i + 1) // 900, i + 1) if i < n else (0, 0))}
        defs.setdefault(str(i // 900), {})[str(i)] = ({"anyOf": [to, {}]} if choice else to) if i < n or back else {}
    return json.dumps({"$ref": where(0, 0), "$defs": defs}, separators=(",", ":"))


def properties(draw: Random, n: int) -> str:
    each = draw.choice([{}, {"type": "integer"}, {"type": "string", "pattern": "[a-z]{1,40}"}])
    needed = {"required": [f"p{i}" for i in range(0, n, draw.randint(1, 9))]} if draw.random() < 0.5 else {}
    return json.dumps({"type": "object", "properties": {f"p{i}": each for i in range(n)}, **needed})


def deep_schema(draw: Random) -> str:
    one: Any = {"type": "integer"}
    for _ in range(size(draw, 400)):
        one = draw.choice([{"type": "array", "items": one}, {"type": "object", "properties": {"a": one}},
                           {"anyOf": [one, {"type": "null"}]}, {"allOf": [one, {}]}])
    return json.dumps(one)


def products(draw: Random) -> str:
    """Schemas of which all have to hold, each one of several."""
    n, m = size(draw, 12), size(draw, 12)
    ways = [[{"type": "object", "properties": {f"k{i}{j}": {"type": "string"}}, "required": [f"k{i}{j}"]}
             for j in range(m)] for i in range(n)]
    return json.dumps({"allOf": [{draw.choice(["anyOf", "oneOf"]): one} for one in ways]})


def patterns(draw: Random) -> str:
    n = size(draw, 3000)
    ways = [counts(draw, "a|b"), f"^({'|'.join(CLASSES)}){{{n}}}$", "(a*)*" * (n % 300), f"(?=.*x)(?!.*y).{{{n}}}"]
    pattern = draw.choice(ways)
    keys = {"type": "object", "patternProperties": {pattern: {"type": "string"}}}
    return json.dumps(draw.choice([{"type": "string", "pattern": pattern, "maxLength": size(draw, 1e5)}, keys]))


def numbers(draw: Random) -> str:
    """Limits that no number is made for."""
    kind = draw.choice(["number", "integer"])
    ways = ["1e308", "-1e999", f"0.{'3' * size(draw, 400)}", "9" * size(draw, 5000), "0", "7"]
    a, b, c = draw.choices(ways, k=3)
    return f'{{"type": "{kind}", "minimum": {a}, "maximum": {b}, "multipleOf": {c}}}'


HOSTILE: dict[str, tuple[str, Callable[[Random], str]]] = {
    "rules in a row": ("lark", lambda d: row(size(d, 6000), ": ", "start")),
    "a ring of rules": ("lark", lambda d: row(size(d, 3000), ": ", "start", back=True)),
    "left recursion": (
        "lark",
        lambda d: (
            f"start: {' '.join(['start'] * size(d, 300))} | {d.choice(['a', 'start', ''])}"
            f' | "a"\na: start "b"{counted(d)} | start'
        ),
    ),
    "nothing ends": ("lark", lambda d: "start: a\na: b " + '"x" ' * size(d, 300) + "\nb: a"),
    "empty": (
        "lark",
        lambda d: d.choice(
            [
                "start: /a/ & /b/",
                "start: T\nT: /[a-z]+/ & ~/.*/",
                'start: ""',
                "start: /[^\\s\\S]/",
                "start: T\nT: ~/(.|\\n)*/",
                'start: ("")*',
            ]
        ),
    ),
    "ambiguous": (
        "lark",
        lambda d: "start: " + nested(d.choice(['"a"', '"a" | "aa"', "/a*/", '"a"* | "a"+ ']), "(", ")*", size(d, 200)),
    ),
    "what is left out": (
        "lark",
        lambda d: (
            f'start: {d.choice(["/[a-z]{5}/", counts(d, "/a/")])} " " "b"\n'
            f"%ignore /{d.choice(['[ ]+', '[ ]*', '(a|ab)*', '.*'])}/"
        ),
    ),
    "counted": ("lark", lambda d: "start: " + counts(d, d.choice(['"a"', "/[a-z]/", '"a"? "b"?', "%json {}"]))),
    "counted terminals": ("lark", lambda d: f"start: /{counts(d, d.choice(['a', 'a|b', '.', '[^a]', 'a?b?']))}/"),
    "both and not": (
        "lark",
        lambda d: (
            "start: T\nT: "
            + " & ".join(f"/(.|\\n)*{regex(d, 3)}(.|\\n)*/" for _ in range(size(d, 20)))
            + " & ~/"
            + regex(d, 2)
            + "/"
        ),
    ),
    "JSON within": ("lark", lambda d: "start: " + "%json " + properties(d, size(d, 4000))),
    "alternatives": ("lark", lambda d: "start: " + one_of(d, size(d, 20_000))),
    "a long text": ("lark", lambda d: "start: " + json.dumps(d.choice(["a", "ab", "字", "\n"]) * (size(d, MOST) // 2))),
    "nested": ("lark", lambda d: "start: " + nested('"a"', "(", d.choice([")", ")?", ")*"]), size(d, 60_000))),
    "lines": (
        "lark",
        lambda d: (
            d.choice(["\n", "// x\n", "a: a\n", "%ignore /x/\n", 'T: "a"\n', "%import common.X\n"]) * size(d, 8000)
        ),
    ),
    "GBNF rules in a row": ("gbnf", lambda d: row(size(d, 6000), " ::= ", "root")),
    "a ring of GBNF rules": ("gbnf", lambda d: row(size(d, 3000), " ::= ", "root", back=True)),
    "GBNF left recursion": ("gbnf", lambda d: f"root ::= (root){{0,{size(d, 900)}}} | [^a]*"),
    "GBNF counted": ("gbnf", lambda d: "root ::= " + counts(d, d.choice(['"a"', "[a-z]", '"a"? "b"?']))),
    "GBNF alternatives": ("gbnf", lambda d: "root ::= " + one_of(d, size(d, 25_000))),
    "GBNF nested": ("gbnf", lambda d: "root ::= " + nested('"a"', "(", d.choice([")", ")?", ")*"]), size(d, 60_000))),
    "GBNF classes": (
        "gbnf",
        lambda d: "root ::= [" + "".join(chr(d.randint(33, 0xD7FF)) for _ in range(size(d, 20_000))) + "]+",
    ),
    "GBNF ambiguous": (
        "gbnf",
        lambda d: "root ::= a a a a\na ::= " + " | ".join(["a a", '""', '"a"', "a"] * size(d, 500)),
    ),
    "counts of counts": ("regex", lambda d: counts(d, d.choice(["a", "a|b", ".", "[a-z]", "a?b?", "\\p{L}"]))),
    "lookahead": (
        "regex",
        lambda d: "".join(f"(?{d.choice('=!')}{regex(d, 3)})" for _ in range(size(d, 90))) + "(?<=a).*",
    ),
    "stars of stars": (
        "regex",
        lambda d: nested(d.choice(["a", "a|a", "a|aa", ".*"]), "(", d.choice([")*", ")+", ")?"]), size(d, 9000)),
    ),
    "Unicode": ("regex", lambda d: "".join(d.choice(CLASSES) + counted(d) for _ in range(size(d, 3000)))),
    "one far from the end": ("regex", lambda d: f"[ab]*a[ab]{{{size(d, 5000)}}}"),
    "words": ("regex", lambda d: "|".join(regex(d, 4) for _ in range(size(d, 15_000)))[:MOST]),
    "a long word": ("regex", lambda d: d.choice(["a", "ab", "字"]) * (size(d, MOST) // 2)),
    "flags": (
        "regex",
        lambda d: (
            d.choice(["(?i)", "(?s)", "(?x)", "\\b", "^", "$", "\\z", "(?P<n>", "(?-u)\\xff"]) * size(d, 900) + "a"
        ),
    ),
    "properties": ("schema", lambda d: properties(d, size(d, 4000))),
    "references": ("schema", lambda d: refs(size(d, 2500))),
    "bare references": ("schema", lambda d: refs(size(d, 2500), choice=False)),
    "a ring of references": ("schema", lambda d: refs(size(d, 2500), back=True, choice=d.random() < 0.5)),
    "itself": (
        "schema",
        lambda d: d.choice(
            [
                '{"$ref": "#"}',
                '{"allOf": [{"$ref": "#"}]}',
                '{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}',
                '{"type": "array", "items": {"$ref": "#"}, "minItems": 9}',
            ]
        ),
    ),
    "deep": ("schema", deep_schema),
    "all of any": ("schema", products),
    "patterns": ("schema", patterns),
    "a long enum": ("schema", lambda d: json.dumps({"enum": [f"{word(d)}{i}" for i in range(size(d, 6000))]})),
    "numbers": ("schema", numbers),
    "long and many": (
        "schema",
        lambda d: json.dumps(
            {
                "type": "array",
                "minItems": size(d, 1e7),
                "maxItems": 10**7,
                "items": {"type": "string", "minLength": size(d, 1e7)},
            }
        ),
    ),
}
"""Which language, and how one is made."""

WRITTEN: dict[str, Callable[[Random], str]] = {"lark": lark, "gbnf": gbnf, "regex": regex, "schema": schema}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args(arguments)
    found = case(wanted.seed, wanted.number)
    print(found.family, json.dumps(found.fields), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
