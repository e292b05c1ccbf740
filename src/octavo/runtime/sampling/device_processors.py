"""What is done to logits where they are, before tokens are chosen: the inputs of ops `adjust` and `mask` for a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.runtime.sampling.processors import Changes

MOST_CHANGES = 1024
"""Changes for each reply, on average, that a step takes."""
FEWEST, GROWTH = 64, 4


def most_adjusted(replies: int) -> int:
    """The most changes of a step."""
    return _adjusted_for(MOST_CHANGES * replies)


def _adjusted_for(n: int) -> int:
    """So many changes, or the next larger number that steps are made for: 64, 256, 1024 and so on."""
    size = FEWEST
    while size < n:
        size *= GROWTH
    return size


def size_for(n: int) -> int:
    """So many masks, or the next larger number that steps are made for: a power of two."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass
class LogitChanges:
    """Of a step: changes, with the row of logits that each of them is for, and masks of rows.

    adjusted  logits that are changed
    """

    words: int
    rows: list[int] = field(default_factory=list)
    changes: list[Changes] = field(default_factory=list)
    masked: list[int] = field(default_factory=list)
    masks: list[AnyArray] = field(default_factory=list)
    adjusted: int = 0

    def add(self, row: int, changes: Changes, mask: AnyArray | None) -> None:
        """Change a row of logits, and let only tokens be chosen whose bit is set in `mask`, int32 [words]."""
        if n := len(changes.ids):
            self.rows.append(row)
            self.changes.append(changes)
            self.adjusted += n
        if mask is not None:
            self.masked.append(row)
            self.masks.append(mask)

    def __bool__(self) -> bool:
        return bool(self.rows or self.masked)

    def sizes(self) -> dict[str, int]:
        return {"adjusted": _adjusted_for(self.adjusted), "masked": size_for(len(self.masked))}

    def inputs(self) -> dict[str, AnyArray]:
        """Arrays of these sizes; what is too many is for no row."""
        sizes, n = self.sizes(), self.adjusted
        places = np.full((sizes["adjusted"], 2), -1, np.int32)
        changes = np.ones((sizes["adjusted"], 2), np.float32)
        if n:
            places[:n, 0] = np.repeat(self.rows, [len(c.ids) for c in self.changes])
            places[:n, 1] = np.concatenate([c.ids for c in self.changes])
            changes[:n, 0] = np.concatenate([c.scale for c in self.changes])
            changes[:n, 1] = np.concatenate([c.add for c in self.changes])
        masked = np.full(sizes["masked"], -1, np.int32)
        masks = np.zeros((sizes["masked"], self.words), np.int32)
        masked[: len(self.masked)] = self.masked
        for row, mask in zip(masks, self.masks, strict=False):
            row[...] = mask
        return {"places": places, "changes": changes, "masked": masked, "masks": masks}
