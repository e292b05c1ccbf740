"""What a method's run was, as it is told in the model that it made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class MethodRun:
    """A run.

    method   as in "gptq"
    text     name of the calibration text
    samples, tokens  windows of it that were run, and tokens of all
    sha256   of these tokens as int32, little-endian
    rotate   the model was turned before
    kv       type of caches that scales were written for, or None
    """

    method: str
    text: str
    samples: int
    tokens: int
    sha256: str
    rotate: bool = False
    kv: str | None = None

    @classmethod
    def of(cls, method: str, text: str, samples: Sequence[Sequence[int]], **more: Any) -> Self:
        """Of a run over samples of tokens."""
        digest = sha256()
        for tokens in samples:
            digest.update(np.asarray(tokens, "<i4").tobytes())
        return cls(method, os.path.basename(text), len(samples), sum(map(len, samples)), digest.hexdigest(), **more)
