"""A part of README.md that a tool writes: the lines between two marks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def replaced(readme: str, name: str, text: str) -> str:
    """The README with `text` between the marks of `name`. Raises ValueError where a mark is missing."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if readme.count(start) != 1 or readme.count(end) != 1 or readme.index(start) > readme.index(end):
        raise ValueError(f"README.md needs a line {start} and, after it, a line {end}")
    before, rest = readme.split(start)
    return f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}"


def main(arguments: Sequence[str] | None, tool: str, about: str | None, name: str, make: Callable[[], str]) -> int:
    """Put what `make` returns between the marks of `name`, or with `--check` only compare.

    `tool` is the path of the script, `about` what its help says. Exit status: 1 where `--check` finds the README stale,
    where a mark is missing or where `make` raises ValueError; 0 otherwise.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 where README.md is stale")
    check = parser.parse_args(arguments).check
    old = README.read_text(encoding="utf-8")
    try:
        new = replaced(old, name, make())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if check and old != new:
        print(f"README.md is stale between the marks of {name}: run python tools/{Path(tool).name}", file=sys.stderr)
        return 1
    if not check:
        README.write_text(new, encoding="utf-8")
    return 0
