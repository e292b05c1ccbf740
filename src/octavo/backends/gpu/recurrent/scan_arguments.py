"""What kernels of ops with states take: where sequences lie, and the shape of what they keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton import next_power_of_2

from octavo.backends.gpu.launch.arguments import Constant, Pointer


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
class ConvShape(Constant):
    """Values of a channel that a sum has, sums of each channel, channels and tokens of a program, and what follows."""

    width: int
    filters: int
    block: int
    tokens: int
    silu: bool


class SplitFloats(NamedTuple):
    """Numbers as sums of two bfloat16."""

    upper: Pointer
    lower: Pointer


class ChunkScores(NamedTuple):
    """What the tokens of chunks are to each other.

    keys, queries  [T, key_heads, keys]
    ut             [T, H, chunk], of the delta rule: the UT transform, what values of a chunk do to a token's change
    scores         [T, H, chunk]: what changes, or values, of a chunk do to a token's output
    exp_g          float32 [T, H]: the decay from a chunk's beginning to a token, the token's with it
    exp_g_rest     float32 [T, H]: the decay from after a token to the chunk's end, of a selective scan times its step
    """

    keys: SplitFloats
    queries: SplitFloats
    ut: SplitFloats | None
    scores: SplitFloats
    exp_g: Pointer
    exp_g_rest: Pointer


@dataclass(frozen=True)
class ScanShape(Constant):
    """Heads, those of keys that they share, the matrix [keys, size] of each, and how many of its columns a program has.

    Of a selective scan, heads of keys are groups that share b and c.

    tiled        heads of keys are taken in turn, and not by a group of heads of values each
    by_row       each row of a matrix has a decay of its own
    chunk        tokens of prompts that are computed at once
    part         numbers of keys that are multiplied at once to compare tokens of a chunk
    interpreted  by Triton's interpreter
    """

    heads: int
    key_heads: int
    keys: int
    size: int
    block_v: int
    tiled: bool = False
    by_row: bool = False
    chunk: int = 0
    part: int = 0
    interpreted: bool = False

    @property
    def group(self) -> int:
        return self.heads // self.key_heads

    @property
    def block_k(self) -> int:
        return int(next_power_of_2(self.keys))


@dataclass(frozen=True)
class ChannelShape(Constant):
    """Numbers that each channel keeps, channels, and how many of these a program has."""

    keys: int
    channels: int
    block: int

    @property
    def block_k(self) -> int:
        return int(next_power_of_2(self.keys))


@dataclass(frozen=True)
class WkvShape(Constant):
    """Heads of RWKV-7, the matrix [size, size] of each, and whether they are normed."""

    heads: int
    size: int
    normed: bool

    @property
    def block(self) -> int:
        return int(next_power_of_2(self.size))
