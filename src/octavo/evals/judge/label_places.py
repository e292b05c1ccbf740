"""Labels of points in a picture, set where they cover neither one another nor what is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

DISTANCES = (5, 11, 18, 26, 36, 48)
"""Points between a marker and its label, the nearest first; from the second on a line leads to it."""
DIRECTIONS = ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1))
MARKER, BAR, LINE, PAD = 4.0, 2.5, 1.0, 1.5
"""Half of what a marker, a bar and a line take, and what is kept free around a label, in points."""
LABEL_COST, DRAWN_COST, OUTSIDE_COST, NEAR = 10.0, 4.0, 40.0, 2.0
"""Of a square point of a label on another one, on what is drawn, and beyond the axes; and of a point of distance."""


class Spot(NamedTuple):
    """A point to name: where it is, the ends of its bar, and its name."""

    x: float
    y: float
    low: float
    high: float
    name: str


class Box(NamedTuple):
    """A rectangle, in points of 1/72 inch."""

    left: float
    low: float
    right: float
    high: float

    def shared(self, other: Box) -> float:
        """The area of what two have together."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        return max(0.0, wide) * max(0.0, min(self.high, other.high) - max(self.low, other.low))

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.high - self.low)


def name_spots(ax: Any, spots: Sequence[Spot], colour: str, line: Sequence[tuple[float, float]] = ()) -> list[Any]:
    """Write the names beside their spots, and give the annotations. All else has to be drawn before.

    line  corners of one that names are to keep off
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    fig = ax.get_figure()
    canvas: Any = FigureCanvasAgg(fig)
    renderer, scale = canvas.get_renderer(), 72 / fig.dpi
    fig.draw_without_rendering()  # the layout, by which spots get their places
    frame = Box(*(scale * value for value in ax.bbox.extents))
    ends = [(spot.x, y) for spot in spots for y in (spot.y, spot.low, spot.high)]
    places = [[scale * value for value in ax.transData.transform(end)] for end in ends]
    drawn, named, made = list[Box](), list[Box](), []
    for (x, y), (_, low), (_, high) in zip(places[::3], places[1::3], places[2::3], strict=True):
        drawn += [Box(x - MARKER, y - MARKER, x + MARKER, y + MARKER), Box(x - BAR, low, x + BAR, high)]
    corners = [[scale * value for value in ax.transData.transform(corner)] for corner in line]
    for one, other in pairwise(corners):
        drawn += _along(*one, *other)
    dots = drawn[: 2 * len(spots) : 2]
    for spot, dot, (x, y) in zip(spots, dots, places[::3], strict=True):
        note = ax.annotate(
            spot.name, (spot.x, spot.y), (0, 0), textcoords="offset points", va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
        )
        note.set_in_layout(False)
        wide = scale * float(Text.get_window_extent(note, renderer).width) + 2 * PAD  # of the text, without its line
        tall = note.get_fontsize() + 2 * PAD
        kept_off = [*named, *(other for other in dots if other is not dot)]
        box, distance = min(
            _places(x, y, wide, tall),
            key=lambda at: NEAR * at[1] + _cost(at[0], _leader(x, y, at[0]), frame, drawn, named, kept_off),
        )
        if distance > DISTANCES[0]:
            drawn += _leader(x, y, box)
        named.append(box)
        note.set_position((box.left + PAD - x, (box.low + box.high) / 2 - y))
        note.arrow_patch.set_visible(distance > DISTANCES[0])
        made.append(note)
    return made


def _places(x: float, y: float, wide: float, tall: float) -> Iterator[tuple[Box, float]]:
    """Where a label of a size may be, and how far from its point."""
    for distance in DISTANCES:
        for right, up in DIRECTIONS:
            part = distance * (0.7 if right and up else 1.0)
            left = x + right * part - (wide if right < 0 else 0 if right else wide / 2)
            low = y + up * part - (tall if up < 0 else 0 if up else tall / 2)
            yield Box(left, low, left + wide, low + tall), distance


def _cost(
    box: Box, leader: Sequence[Box], frame: Box, drawn: Sequence[Box], named: Sequence[Box], kept_off: Sequence[Box]
) -> float:
    crossed = sum(part.shared(other) for part in leader for other in kept_off)
    return (
        LABEL_COST * (sum(map(box.shared, named)) + crossed) + DRAWN_COST * sum(map(box.shared, drawn))
        + OUTSIDE_COST * (box.area - box.shared(frame))
    )


def _leader(x: float, y: float, box: Box) -> list[Box]:
    """About where the line from a point to its label is."""
    return _along(x, y, min(max(x, box.left), box.right), min(max(y, box.low), box.high))


def _along(x: float, y: float, to_x: float, to_y: float) -> list[Box]:
    """Small squares along a line."""
    steps = max(1, int(max(abs(to_x - x), abs(to_y - y)) / (2 * LINE)))
    at = [(x + (to_x - x) * i / steps, y + (to_y - y) * i / steps) for i in range(steps + 1)]
    return [Box(u - LINE, v - LINE, u + LINE, v + LINE) for u, v in at]
