"""Pictures of memory as SVG: rows of cells, each with the lane that touches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy.typing as npt

LANES = 32
CELL, GAP, FONT = 20, 14, 10
LABEL = 96
"""Pixels: a cell's width and height, the space between panels, a text's size, and the width of a row's label."""


@dataclass(frozen=True)
class Panel:
    """A part of a picture.

    title  what it shows
    rows   a label, and for each cell the first and the last thread that touch it, -1 for none: [cells, 2]
    width  of a cell, in cells as others have them
    texts  of cells, row by row, in place of lanes
    """

    title: str
    rows: Sequence[tuple[str, npt.NDArray[Any]]]
    width: int = 1
    texts: Sequence[Sequence[str]] = ()


def picture(panels: Sequence[Panel]) -> str:
    """An SVG with panels one below the other."""
    width = LABEL + CELL * max(len(cells) * panel.width for panel in panels for _, cells in panel.rows) + GAP
    parts, y = list[str](), GAP
    for panel in panels:
        parts.append(_text(GAP, y + FONT, panel.title, "start", bold=True))
        y += CELL
        for number, (label, cells) in enumerate(panel.rows):
            texts = panel.texts[number] if panel.texts else [""] * len(cells)
            parts.append(_text(LABEL - 6, y + CELL * 0.7, label, "end"))
            wide = CELL * panel.width
            parts += [
                _cell(LABEL + wide * i, y, wide, *map(int, ends), text)
                for i, (ends, text) in enumerate(zip(cells, texts, strict=True))
            ]
            y += CELL
        y += GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" '
        f'font-family="sans-serif" font-size="{FONT}">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{y}" fill="white"/>', *parts, "</svg>", ""])


def _cell(x: float, y: float, width: int, first: int, last: int, text: str) -> str:
    lightness = 84 - 14 * (first // LANES % 2)
    color = "#eee" if first < 0 else f"hsl({first % LANES * 360 // LANES},65%,{lightness}%)"
    box = f'<rect x="{x}" y="{y}" width="{width - 1}" height="{CELL - 1}" fill="{color}"/>'
    lanes = text or (str(first % LANES) if first == last else f"{first % LANES}-{last % LANES}")
    return box if first < 0 else box + _text(x + width / 2, y + CELL * 0.7, lanes, "middle")


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
