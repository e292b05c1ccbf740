"""What kernels of ops with states take: where sequences lie, and the shape of what they keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton import next_power_of_2

from octavo.backends.gpu.launch.arguments import Constant, Matrix, Pointer


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


class Halves(NamedTuple):
    """Numbers as sums of two bfloat16."""

    upper: Pointer
    lower: Pointer


class DeltaChunks(NamedTuple):
    """What the tokens of chunks are to each other.

    keys, queries  [T, Hk, K]
    solved         [T, H, chunk]: what values of a chunk do to a token's change
    scores         [T, H, chunk]: what changes of a chunk do to a token's output
    since          float32 [T, H]: the decay from a chunk's beginning to a token, the token's with it
    until          float32 [T, H]: the decay from after a token to the chunk's end
    """

    keys: Halves
    queries: Halves
    solved: Halves
    scores: Halves
    since: Pointer
    until: Pointer


@dataclass(frozen=True)
class DeltaShape(Constant):
    """Heads of values and of keys, the matrix [keys, size] of each, and how many of its columns a program has.

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
    tiled: bool
    block_v: int
    chunk: int = 0
    part: int = 0
    interpreted: bool = False
    by_row: bool = False

    @property
    def group(self) -> int:
        return self.heads // self.key_heads

    @property
    def block_k(self) -> int:
        return int(next_power_of_2(self.keys))


class ScanChunks(NamedTuple):
    """What the tokens of chunks of a selective scan are to each other.

    keys, queries  b and c, [T, G, K]
    scores         [T, H, chunk]: what x of a chunk does to a token's output
    since          float32 [T, H]: the decay from a chunk's beginning to a token, the token's with it
    until          float32 [T, H]: a token's step times the decay from after it to the chunk's end
    """

    keys: Halves
    queries: Halves
    scores: Halves
    since: Pointer
    until: Pointer


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
class ScanShape(Constant):
    """Heads of a selective scan, groups that share b and c, the matrix [keys, size] of each, its columns in a program.

    chunk        tokens of prompts that are computed at once
    part         rows of a matrix that are multiplied at once to compare tokens of a chunk
    interpreted  by Triton's interpreter
    """

    heads: int
    groups: int
    keys: int
    size: int
    block_v: int
    chunk: int = 0
    part: int = 0
    interpreted: bool = False

    @property
    def group(self) -> int:
        return self.heads // self.groups

    @property
    def block_k(self) -> int:
        return int(next_power_of_2(self.keys))


class WkvRows(NamedTuple):
    """Rows of tokens [T, H * N] as op `wkv7` has them."""

    r: Matrix
    w: Matrix
    k: Matrix
    v: Matrix
    a: Matrix


@dataclass(frozen=True)
class WkvShape(Constant):
    """Heads of RWKV-7, the matrix [size, size] of each, and whether they are normed."""

    heads: int
    size: int
    normed: bool

    @property
    def block(self) -> int:
        return int(next_power_of_2(self.size))
