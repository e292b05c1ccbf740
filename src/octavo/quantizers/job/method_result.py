"""What methods make: a run as the model tells it, tensors of a GGUF file, and experts that met too few tokens."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from octavo.formats import BlockFormat, QTensor
from octavo.formats.spec import U8
from octavo.quantizers.statistics.outliers import OutlierChannels

_log = logging.getLogger(__name__)

NAMED = 8
"""Experts that a line of the log names."""


@dataclass(frozen=True)
class UndersampledExpert:
    """An expert, by one input of its weights.

    input   the first of the weights that read it, as in "blk.0.ffn_gate_exps.weight"
    tokens  that it met
    how     its weights were made instead, as in "nearest"
    """

    input: str
    expert: int
    tokens: int
    how: str


class MadeOf(Protocol):
    """A weight that was made, experts each by itself."""

    @property
    def starved(self) -> Sequence[UndersampledExpert]: ...


def undersampled(made: Iterable[MadeOf]) -> tuple[UndersampledExpert, ...]:
    """Those of some weights, each once."""
    return tuple(dict.fromkeys(found for each in made for found in each.starved))


def warn(starved: Sequence[UndersampledExpert]) -> None:
    """Tell of them, if there are any, in one line of the log: the first few by name, and how many more."""
    if not starved:
        return
    named = ", ".join(f"{s.input} expert {s.expert} ({s.tokens})" for s in starved[:NAMED])
    more = f" and {len(starved) - NAMED} more" if len(starved) > NAMED else ""
    ways = " or ".join(sorted({s.how for s in starved}))
    _log.warning("experts with too few tokens are made by %s: %s%s; a longer text helps", ways, named, more)


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


@dataclass(frozen=True, eq=False)
class GgufWeight:
    """A tensor in its format.

    data    packed rows, uint8 [N, bytes] or [experts, N, bytes]
    error   the root of sum |E x|^2 / sum |W x|^2 over the inputs x that were seen
    before  the same of what the format's encoder alone makes
    channels  of the inputs
    starved  experts that met fewer tokens than they have inputs, and are the encoder's
    """

    data: U8
    error: float
    before: float
    channels: OutlierChannels | None = None
    starved: tuple[UndersampledExpert, ...] = ()

    def tensor(self, fmt: BlockFormat, shape: tuple[int, ...]) -> QTensor:
        """As a tensor of the format that it was made in."""
        return QTensor(fmt, shape, self.data)


class GgufResult(NamedTuple):
    """Tensors that a method has made, by name, and what its run was.

    end  is to be called when the file is written, or is not going to be: with the error then, else None
    """

    tensors: Mapping[str, GgufWeight]
    about: MethodRun
    end: Callable[[BaseException | None], None] = lambda error: None
