"""The two factors of a low-rank addition to a weight."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.formats import QTensor


@dataclass(frozen=True)
class LowRank:
    """What is added to a weight [N, K]: b [N, r] @ a [r, K]; to experts [E, N, K]: b [E, N, r] @ a [E, r, K]."""

    a: QTensor
    b: QTensor
