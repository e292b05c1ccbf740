"""What a weight's activations come to: sums of squares and counts, and the check of a file's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.errors import FileError, shown
from octavo.formats.spec import F32

I64 = npt.NDArray[np.int64]

SUMS, COUNTS = ".in_sum2", ".counts"


@dataclass(frozen=True, eq=False)
class SquareSums:
    """What a weight's activations come to.

    sums    float32 [rows, K]: squared activations of each channel, added up; a row for each expert, or one
    counts  int64 [rows]: activations that were added
    """

    sums: F32
    counts: I64

    def __add__(self, other: SquareSums) -> SquareSums:
        return SquareSums(self.sums + other.sums, self.counts + other.counts)

    def mean(self) -> F32:
        """Mean squares, float32 [rows, K]; 1 for an expert that met no token, as llama.cpp takes it."""
        counts = self.counts[:, None].astype(np.float32)
        return np.where(counts > 0, self.sums / np.maximum(counts, 1), np.float32(1))


def checked(sums: F32, counts: F32, path: str, name: str) -> SquareSums:
    """Sums [K] or [rows, K] and counts [rows] of a file as an entry.

    One count goes for all rows. Raises FileError for numbers that can't be sums of squares over that many activations.
    """
    rows = sums.reshape(-1, sums.shape[-1]) if sums.ndim > 1 else sums.reshape(1, -1)
    if len(counts) not in (1, len(rows)):
        raise _wrong(f"{len(counts)} counts", path, name + COUNTS, f"1 or {len(rows)}, as the sums have rows")
    for end, values in ((SUMS, rows), (COUNTS, counts)):
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            raise _wrong(f"holds {values[bad][0]}", path, name + end, "finite numbers, 0 or more")
    counts = np.broadcast_to(np.rint(counts), len(rows))
    if (rows.any(axis=1) & (counts == 0)).any():
        raise _wrong("a count of 0 for sums that are not 0", path, name + COUNTS, "1 or more")
    return SquareSums(rows, counts.astype(np.int64))


def _wrong(problem: str, path: str, tensor: str, allowed: str) -> FileError:
    return FileError(problem, file=path, field=f"tensor {shown(tensor)}", allowed=allowed)
