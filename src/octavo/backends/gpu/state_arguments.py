"""What kernels of ops with states take: where sequences lie, and the shape of what they keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton import next_power_of_2

from octavo.backends.gpu.arguments import Constant, Pointer


class Sequences(NamedTuple):
    """The sequences of a step.

    positions  int32, of tokens
    starts     int32: the first tokens of sequences after the first `decodes`, which own one each, and the end
    slots      int32, where the states of sequences lie
    """

    positions: Pointer
    starts: Pointer
    slots: Pointer
    decodes: int


def sequences(positions: Any, starts: Any, slots: Any) -> Sequences:
    decodes = len(slots) if len(positions) == len(slots) else len(slots) + 1 - len(starts)
    return Sequences(positions, starts, slots, decodes)


@dataclass(frozen=True)
class DeltaShape(Constant):
    """Heads of values and of keys, the matrix [keys, size] of each, and how many of its columns a program has.

    tiled  heads of keys are taken in turn, and not by a group of heads of values each
    """

    heads: int
    key_heads: int
    keys: int
    size: int
    tiled: bool
    block_v: int

    @property
    def group(self) -> int:
        return self.heads // self.key_heads

    @property
    def block_k(self) -> int:
        return int(next_power_of_2(self.keys))
