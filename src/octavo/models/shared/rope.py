"""Rotary position embedding: the frequencies of each scaling kind that GGUF carries.

Whatever the kind, position p rotates pair i by p * frequency[i]; so kernels take frequencies and know no kinds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from octavo.formats.spec import F32

LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
"""The field of architectures that read `mscale_all_dim`, which weakens yarn, themselves."""


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the first `dims` values of a head (Su et al., arXiv 2104.09864).

    interleaved  pairs are neighbours (2i, 2i+1); otherwise halves (i, i + dims/2)
    whole_pairs  yarn's ramp begins and ends at whole pairs
    kind         "none", "linear" (positions divided by `factor`), "yarn" (arXiv 2309.00071) or "longrope" (2402.13753)
    """

    dims: int
    base: float
    interleaved: bool
    kind: str = "none"
    factor: float = 1.0
    n_ctx_original: int = 2048
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole_pairs: bool = True

    def frequencies(self, freq_factors: F32 | None = None) -> F32:
        """Radians a position for each pair, float32 [dims / 2]; `freq_factors` are a model's own divisors for each."""
        frequency = self.base ** (-np.arange(0, self.dims, 2, dtype=np.float64) / self.dims)
        if freq_factors is not None:
            with np.errstate(all="ignore"):  # a broken model's zeros show in its logits
                frequency = frequency / freq_factors
        if self.kind in ("linear", "yarn"):
            kept = self._kept_by_yarn() if self.kind == "yarn" else 0.0
            frequency = frequency * (kept + (1 - kept) / self.factor)
        with np.errstate(over="ignore"):
            return frequency.astype(np.float32)

    @property
    def scale(self) -> float:
        """What rotated values are multiplied by."""
        if self.kind == "yarn" and self.factor > 1:
            return self.attention_factor * (1 + 0.1 * math.log(self.factor))
        return self.attention_factor

    def _kept_by_yarn(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """How much of each pair's own frequency is kept: 1 for those that turn fast, 0 for the slow ones."""

        def pair_with(turns: float) -> float:
            """The pair that makes this many turns over the original context."""
            return self.dims * math.log(self.n_ctx_original / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        low, high = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.whole_pairs:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(0, low), min(self.dims - 1, high)
        ramp = (np.arange(self.dims // 2, dtype=np.float64) - low) / max(0.001, high - low)
        return 1 - np.clip(ramp, 0, 1)
