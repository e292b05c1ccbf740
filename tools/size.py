"""Lines of code by room, against the budget in CONTRIBUTING.md: `python tools/size.py [--check]`.

Long files and long lists of parameters are named, as advice. A line counts if it holds a token of code: not blank
lines, comments, docstrings, or the strings below an attribute that describe it. A room is a folder of src/octavo, or
`top` for the files in it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/octavo"
LONG, MOST_PARAMETERS = 500, 12
ROW = re.compile(r"^\| `?([\w/]+)`? \| ([\d,]+) \|$")
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Lines of a file that hold code."""
    described = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)  # type: ignore[operator]
    }
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in SILENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - described)


def parameters(text: str) -> list[tuple[str, int]]:
    """Functions with more than MOST_PARAMETERS, and how many they have."""
    found = list[tuple[str, int]]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            a = node.args
            names = [each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs) if each.arg not in ("self", "cls")]
            if len(names) > MOST_PARAMETERS:
                found.append((node.name, len(names)))
    return found


def advice() -> list[str]:
    """What a reader could not take in at once."""
    said = list[str]()
    for path in sorted(SOURCE.rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(SOURCE)
        if (lines := text.count("\n")) > LONG:
            said.append(f"{name} has {lines} lines")
        said += [f"{function} of {name} has {count} parameters" for function, count in parameters(text)]
    return said


def room(path: Path) -> str:
    """The room of a file: its folder below src/octavo, backends told apart."""
    parts = path.relative_to(SOURCE).parts[:-1]
    return "/".join(parts[: 2 if parts[:1] == ("backends",) else 1]) or "top"


def rooms() -> Counter[str]:
    """Lines of code of each room."""
    found = Counter[str]()
    for path in SOURCE.rglob("*.py"):
        found[room(path)] += code_lines(path.read_text(encoding="utf-8"))
    return found


def budget() -> dict[str, int]:
    """What CONTRIBUTING.md allows each room, and `all`."""
    rows = map(ROW.match, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines())
    return {row[1]: int(row[2].replace(",", "")) for row in rows if row}


def main() -> int:
    """Print the table; with --check fail where a room has more than it may."""
    found, allowed = rooms(), budget()
    found["all"] = found.total()
    over = [name for name, lines in found.items() if lines > allowed.get(name, 0)]
    for name, lines in found.most_common():
        print(f"{name:22} {lines:7,} of {allowed.get(name, 0):7,}{'  over' if name in over else ''}")
    for line in advice():
        print(f"advice: {line}")
    return int("--check" in sys.argv and bool(over))


if __name__ == "__main__":
    raise SystemExit(main())
