"""The size that a model is to have: bits a weight, or bytes of the file."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from octavo.errors import UsageError
from octavo.quantizers.job.job_source import ModelSource

MOST_BITS = 32
UNITS = {"": 1, "b": 1, **{p + "b": 1000**i for i, p in enumerate("kmgt", 1)},
         **{p + "ib": 1024**i for i, p in enumerate("kmgt", 1)}}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """One of the two.

    bits_per_weight  8 times the bytes of all tensors over their values, as llama.cpp counts; metadata does not count
    file_size        bytes of the whole file

    Raises UsageError for none or both, and for what is not above 0.
    """

    bits_per_weight: float | None = None
    file_size: int | None = None

    def __post_init__(self) -> None:
        bits, size = self.bits_per_weight, self.file_size
        if (bits is None) == (size is None):
            raise UsageError("a size is given as bits a weight or as bytes of the file (allowed: one of the two)")
        if bits is not None and not 0 < bits <= MOST_BITS:
            raise UsageError(f"{bits:g} bits a weight (allowed: above 0, up to {MOST_BITS})")
        if size is not None and size < 1:
            raise UsageError(f"a file of {size} bytes (allowed: 1 or more)")

    def tensor_bytes(self, source: ModelSource, header: int) -> int:
        """Bytes that the tensors of `source` may take in a file with `header` bytes more; below 0 if not even these."""
        if self.bits_per_weight is not None:
            return int(self.bits_per_weight * sum(t.size for t in source.tensors) / 8)
        assert self.file_size is not None
        return self.file_size - header

    def least(self, source: ModelSource, header: int, nbytes: int) -> str:
        """The smallest target with room for `nbytes` of tensors, in words that can be given as one."""
        if self.bits_per_weight is None:
            return f"{header + nbytes} bytes"
        bits = 8 * nbytes / sum(t.size for t in source.tensors)
        return f"{math.ceil(100 * bits) / 100:.2f} bits per weight"

    def __str__(self) -> str:
        if self.bits_per_weight is not None:
            return f"{self.bits_per_weight:g} bits per weight"
        return f"{self.file_size:,} bytes"


def parse_size(text: str) -> int:
    """Bytes of a size such as "4.2GiB", "700 MB" or "123456". Raises UsageError for other text."""
    match = _SIZE.fullmatch(text)
    unit = match and UNITS.get(match[2].lower())
    if not (match and unit):
        raise UsageError(f"size {text!r} (allowed: a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as 4.2GiB)")
    return int(float(match[1]) * unit)
