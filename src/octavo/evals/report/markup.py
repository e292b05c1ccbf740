"""HTML from values: everything that comes from a file goes through `text`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NewType

from octavo import sizes

Html = NewType("Html", str)
"""Markup, as opposed to text, which has to go through `text` first."""

NOTHING = Html("")


def text(value: object, most: int = 300) -> Html:
    """Text in a page: escaped, control characters and what turns the direction of writing as escapes, not too long."""
    plain = str(value)
    plain = plain if plain.isprintable() else repr(plain)
    return Html(escape(plain if len(plain) <= most else f"{plain[:most]}..."))


def join(parts: Iterable[Html], between: str = "") -> Html:
    """Parts in a row."""
    return Html(between.join(parts))


def paragraph(*parts: Html, kind: str = "") -> Html:
    """A <p>; `kind` is its class."""
    mark = f' class="{kind}"' if kind else ""
    return Html(f"<p{mark}>{''.join(parts)}</p>")


def bar(share: float, shown: Html) -> Html:
    """A number with a bar behind it; `share` is from 0 to 1."""
    width = 100 * min(1.0, max(0.0, share))
    return Html(f'<span class="bar" style="--share:{width:.1f}%">{shown}</span>')


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[Html]], numbers: Sequence[int] = ()) -> Html:
    """A table in a box that scrolls by itself where it is too wide; the columns `numbers` are set right."""
    marks = [' class="number"' if i in numbers else "" for i in range(len(headings))]
    head = "".join(f'<th scope="col"{mark}>{text(h)}</th>' for h, mark in zip(headings, marks, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(
            f'<th scope="row"{mark}>{cell}</th>' if i == 0 else f"<td{mark}>{cell}</td>"
            for i, (cell, mark) in enumerate(zip(row, marks, strict=True))
        )
        + "</tr>"
        for row in rows
    )
    name = text(caption)
    return Html(
        f'<div class="scroll" role="region" aria-label="{name}" tabindex="0"><table><caption>{name}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def section(key: str, title: str, *parts: Html) -> Html:
    """A section of the page with a heading, which its `key` links to."""
    return Html(
        f'<section id="{key}" aria-labelledby="{key}-heading">\n<h2 id="{key}-heading">{text(title)}</h2>\n'
        + "\n".join(parts)
        + "\n</section>"
    )


def picture(svg: str, caption: Html) -> Html:
    """A figure: an <svg> element, which is markup already, and what it shows."""
    return Html(f"<figure>{svg}<figcaption>{caption}</figcaption></figure>")


def details(summary: str, *parts: Html) -> Html:
    """Parts that are folded away under a summary."""
    return Html(f"<details><summary>{text(summary)}</summary>\n" + "\n".join(parts) + "\n</details>")


def size(nbytes: float) -> Html:
    """Bytes as `octavo.sizes` writes them, with a minus sign where they are fewer."""
    return Html(f"{'−' if nbytes < 0 else ''}{sizes.size(abs(nbytes))}")


def percent(share: float | None, digits: int = 4) -> Html:
    """A share of 1 as percent; a dash where it is not known."""
    if not share:
        return Html("–" if share is None else "0 %")
    return Html(f"{100 * share:#.{digits}g}".rstrip(".") + " %")


def number(value: float, digits: int = 4) -> Html:
    """A number, rounded to `digits` digits."""
    return Html(f"{value:.{digits}g}")
