"""Hidden states of the last tokens of a sequence, which a head is to read."""

from __future__ import annotations

from octavo.formats.spec import F32

MOST, BEYOND = 512, 64
"""Rows that are kept of a sequence, as a head reads no more of what comes before its first draft; and how many more
there may be until the first ones go."""


def nbytes_of(width: int, sequences: int) -> int:
    """What the rows of sequences take at the most."""
    return 4 * (MOST + BEYOND) * width * sequences


class HiddenRows:
    """Rows [width] of the positions from `start` on: those that a head lacks, and the last one that it read.

    The last ones may be of tokens that were drafted and refused; a later step puts others in their place.
    """

    __slots__ = ("rows", "start")

    def __init__(self, start: int = 0, rows: list[F32] | None = None) -> None:
        self.start, self.rows = start, [] if rows is None else rows

    def put(self, start: int, rows: F32) -> None:
        """Have those of a step, [n, width], from a position on; where others lack before it, these go."""
        if 0 <= (keep := start - self.start) <= len(self.rows):
            del self.rows[keep:]
        else:
            self.start, self.rows = start, []
        self.rows.extend(rows)
        if (more := len(self.rows) - MOST) > 0:
            del self.rows[:more]
            self.start += more

    def add(self, start: int, row: F32) -> None:
        """Have that of a step of one token, [width]."""
        if start - self.start == len(self.rows) < MOST + BEYOND:
            self.rows.append(row)
        else:
            self.put(start, row[None])

    def take(self, stop: int, kept: int = 1) -> tuple[int, list[F32]]:
        """The first position and the rows up to `stop`, of which the last ones stay, as many as are to be `kept`; none
        where the last is missing."""
        n = stop - self.start
        if not 0 < n <= len(self.rows):
            return stop, []
        first, found = self.start, self.rows[:n]
        gone = max(n - kept, 0)
        del self.rows[:gone]
        self.start += gone
        return first, found

    def copy(self) -> HiddenRows:
        return HiddenRows(self.start, list(self.rows))
