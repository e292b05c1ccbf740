"""Values as the template of the page is given them: strings, which it escapes, and little else."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from octavo import sizes

Parts = dict[str, Any]
"""What the template shows of a section, by the names that it has there."""


class Table(NamedTuple):
    """A table; the columns `numbers` are set right."""

    caption: str
    headings: Sequence[str]
    rows: Iterable[Sequence[str]]
    numbers: Container[int] = ()


def text(value: object, most: int = 300) -> Markup:
    """Text in a page: escaped, control characters and what turns the direction of writing as escapes, not too long."""
    plain = str(value)
    plain = plain if plain.isprintable() else repr(plain)
    return escape(plain if len(plain) <= most else f"{plain[:most]}...")


def as_text(value: object) -> Markup:
    """What the template writes of a value: markup as it is, anything else as text."""
    return value if isinstance(value, Markup) else text(value)


def code(value: object) -> Markup:
    """Text that is typed."""
    return Markup("<code>{}</code>").format(text(value, 2000))


def bar(share: float, shown: str) -> Markup:
    """A number with a bar behind it; `share` is from 0 to 1."""
    width = 100 * min(1.0, max(0.0, share))
    return Markup('<span class="bar" style="--share:{:.1f}%">{}</span>').format(width, shown)


def size(nbytes: float) -> str:
    """Bytes as `octavo.sizes` writes them, with a minus sign where they are fewer."""
    return f"{'−' if nbytes < 0 else ''}{sizes.size(abs(nbytes))}"


def percent(share: float | None, digits: int = 4) -> str:
    """A share of 1 as percent; a dash where it is not known."""
    if not share:
        return "–" if share is None else "0 %"
    return f"{100 * share:#.{digits}g}".rstrip(".") + " %"


def number(value: float, digits: int = 4) -> str:
    """A number, rounded to `digits` digits."""
    return f"{value:.{digits}g}"
