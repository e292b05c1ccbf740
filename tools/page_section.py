"""A part of a page that a tool writes: the lines between two marks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def replaced(page: Path, name: str, text: str) -> str:
    """The page with `text` between the marks of `name`. Raises ValueError where a mark is missing."""
    old = page.read_text(encoding="utf-8")
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if old.count(start) != 1 or old.count(end) != 1 or old.index(start) > old.index(end):
        raise ValueError(f"{page.name} needs a line {start} and, after it, a line {end}")
    before, rest = old.split(start)
    return f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}"


def main(
    arguments: Sequence[str] | None, tool: str, about: str | None, page: Path, name: str, make: Callable[[], str]
) -> int:
    """Put what `make` returns between the marks of `name` in a page, or with `--check` only compare.

    `tool` is the path of the script, `about` what its help says. Exit status: 1 where `--check` finds the page stale,
    where a mark is missing or where `make` raises ValueError; 0 otherwise.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 where the page is stale")
    check = parser.parse_args(arguments).check
    old = page.read_text(encoding="utf-8")
    try:
        new = replaced(page, name, make())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if check and old != new:
        print(f"{page.name} is stale between the marks of {name}: run python tools/{Path(tool).name}", file=sys.stderr)
        return 1
    if not check:
        page.write_text(new, encoding="utf-8")
    return 0
