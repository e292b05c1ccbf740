"""What rank 0 sends to the other ranks, and they to it: msgpack, one message after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from octavo.formats.spec import AnyArray
from octavo.graph.node import Attention

FedFrom = tuple[int, tuple[int, ...]]
"""A launch by its number, and the rows whose tokens are taken."""


class Array(msgspec.Struct, frozen=True, array_like=True):
    """An array of NumPy's."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: AnyArray) -> Array:
        return cls(array.dtype.str, array.shape, array.tobytes())

    def array(self) -> AnyArray:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


Arrays = dict[str, Array]


class Load(msgspec.Struct, frozen=True, tag=True):
    """Be rank `rank` of `ranks`: load a model for an engine with this configuration, on backends for `stages`.

    port  of the store on this machine at which ranks find each other
    """

    rank: int
    ranks: int
    stages: int
    port: int
    path: str
    lora: tuple[tuple[str, float], ...]
    device: str
    threads: int | None
    deterministic: bool
    attention: Attention
    config: dict[str, Any]


class Vectors(msgspec.Struct, frozen=True, tag=True):
    """Make the executor for vectors of tokens beside logits."""


class Plan(msgspec.Struct, frozen=True, tag=True):
    """Bind a step."""

    executor: int
    sizes: dict[str, int]
    wanted: tuple[int, ...] | None


class Run(msgspec.Struct, frozen=True, tag=True):
    """Compute a step."""

    executor: int
    sizes: dict[str, int]
    inputs: Arrays


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Launch a step, with values of earlier ones."""

    executor: int
    sizes: dict[str, int]
    inputs: Arrays
    wanted: tuple[int, ...]
    fed: dict[str, FedFrom]


class CopyPage(msgspec.Struct, frozen=True, tag=True):
    """Copy a page of the cache."""

    target: int
    source: int
    rows: str


class CopyState(msgspec.Struct, frozen=True, tag=True):
    """Copy a sequence's state."""

    target: int
    source: int


class Row(msgspec.Struct, frozen=True, tag=True):
    """Send a row of an output that a launch has left in parts."""

    executor: int
    launch: int
    output: int
    row: int


class RowPart(msgspec.Struct, frozen=True, tag=True):
    """A rank's part of a row."""

    values: Array


class Here(msgspec.Struct, frozen=True, tag=True):
    """A rank looks for the others from now on."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A rank's executor is loaded; `collectives` are what it runs together with others, in order."""

    collectives: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A rank ends: why."""

    error: str


ToRank = Load | Vectors | Plan | Run | Launch | CopyPage | CopyState | Row
FromRank = Here | Ready | Failed | RowPart

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
to_rank = msgspec.msgpack.Decoder(ToRank)
from_rank = msgspec.msgpack.Decoder(FromRank)


def packed(inputs: Mapping[str, AnyArray]) -> Arrays:
    return {name: Array.of(array) for name, array in inputs.items()}


def unpacked(inputs: Arrays) -> dict[str, AnyArray]:
    return {name: array.array() for name, array in inputs.items()}
