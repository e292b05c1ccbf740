"""Weights of a scheme by the ways that methods try, and what each errs over a text."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from octavo.evals.layerwise import OpenStage, ProductInput
from octavo.evals.smoothing import FEWEST
from octavo.formats import QTensor, dequantize
from octavo.formats.rows import GROUP
from octavo.formats.spec import F32
from octavo.huggingface.coded import Coded, nearest, values_of
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.calibration import CrossHessian
from octavo.quantizers.calibration.factor import Matrix
from octavo.quantizers.compensation.coded import compensated, compensated_row
from octavo.quantizers.job.prepared import MadeWeight
from octavo.quantizers.smoothing import clip

_log = logging.getLogger(__name__)

HELD_OUT = 8
"""One in so many tokens tells which of several ways is best, and is used for nothing else."""
CLIPPED = 512
"""Tokens with which limits of groups are tried."""


def made_weights(
    stage: OpenStage, given: ProductInput, names: Sequence[str], scheme: CheckpointScheme, ways: Sequence[str],
    threads: int | None,
) -> Iterator[tuple[str, MadeWeight]]:  # fmt: skip
    """Each of the weights of an input in the scheme, by that of `ways` which errs least; of experts each by itself."""
    tensors = {name: stage.tensor(name).stored() for name in names}
    parts: dict[str, list[_Part]] = {name: [] for name in names}
    for expert in (range(given.experts) or (None,)) if names else ():
        maker = _Maker(scheme, given, expert, ways, threads)
        for name, tensor in tensors.items():
            parts[name].append(maker.made(name, _of_expert(tensor, expert)))
    for name, found in parts.items():
        power = sum(part.power for part in found) or 1.0
        error, before = (
            math.sqrt(sum(wrong) / power) for wrong in ([p.after for p in found], [p.before for p in found])
        )
        how = ", ".join(sorted({part.how for part in found}))
        ways_of_all = [way for way in ways if all(way in part.tried for part in found)]
        tried = {way: math.sqrt(sum(part.tried[way] for part in found) / power) for way in ways_of_all}
        yield name, MadeWeight(tuple(part.coded for part in found), error, before, how, tried)


@dataclass(frozen=True, eq=False)
class _Part:
    """A weight [N, K], and sums of squares over its outputs: errors before, after and of each way, and the outputs."""

    coded: Coded
    how: str
    before: float
    after: float
    power: float
    tried: Mapping[str, float]


def _of_expert(tensor: QTensor, expert: int | None) -> F32:
    """A weight's values, float32 [N, K]."""
    return dequantize(tensor if expert is None else QTensor(tensor.format, tensor.shape[1:], tensor.data[expert]))


class _Maker:
    """Makes weights of the same inputs, or of an expert's, whose Hessian is added up once, if it is asked for."""

    def __init__(
        self, scheme: CheckpointScheme, given: ProductInput, expert: int | None, ways: Sequence[str],
        threads: int | None,
    ) -> None:  # fmt: skip
        self._scheme, self._expert, self._threads = scheme, expert, threads
        self._given, self._judged = held_out(given) if len(ways) > 1 else (given, given)
        if expert is not None and not self._judged.tokens(expert):
            self._judged = self._given
        self._ways = [way for way in ways if self._has_enough(way)] or ["nearest"]
        if self._ways != list(ways):
            tokens, done = self._given.tokens(expert), " or ".join(self._ways)
            _log.warning("%s met %d tokens, and is made by %s", given.label(expert), tokens, done)

    def made(self, name: str, weight: F32) -> _Part:
        """The weight [N, K] by the way that errs least."""
        plain = nearest(self._scheme, weight)
        tried = {way: plain if way == "nearest" else self._make(way, name, weight) for way in self._ways}
        wanted = self._wanted(weight)
        wrong = {way: wanted.wrong(values_of(self._scheme, coded)) for way, coded in tried.items()}
        best = min(wrong, key=lambda way: wrong[way])
        before = wrong["nearest"] if "nearest" in wrong else wanted.wrong(values_of(self._scheme, plain))
        return _Part(tried[best], best, before, wrong[best], wanted.power, wrong)

    def _wanted(self, weight: F32) -> _Outputs | _Sums:
        """What tells errors: a Hessian, where it is of the tokens that judge and no larger than they are."""
        if self._judged is self._given and self._given.original is None and self._tokens >= self._given.size:
            return _Sums(self._sums[0], self._tokens, weight)
        return _Outputs(self._judged, self._expert, weight)

    def _has_enough(self, way: str) -> bool:
        """Whether an expert met the tokens that a way takes: of Hessians as many as there are inputs."""
        if self._expert is None or way == "nearest":
            return True
        if way == "clip":
            return self._given.tokens(self._expert) >= FEWEST
        return self._tokens >= self._given.size

    @cached_property
    def _tokens(self) -> int:
        """Those that Hessians are of."""
        if self._given.original is None:
            return self._given.tokens(self._expert)
        return sum(len(now) for now, _ in self._given.pairs(self._expert))

    @cached_property
    def _sums(self) -> tuple[Matrix, CrossHessian | None]:
        """The Hessian, and products with what the original model gives."""
        if self._given.original is None:
            return self._given.hessian(self._expert).matrix(), None
        cross = self._given.cross(self._expert)
        return cross.hessian.matrix(), cross

    def _make(self, way: str, name: str, weight: F32) -> Coded:
        """The weight [N, K] by a way of KINDS other than "nearest"."""
        if way == "clip":
            return self._clipped(name, weight)
        if compensated_row(self._scheme, weight.shape[1]) is None:
            return nearest(self._scheme, weight)
        hessian, sums = self._sums
        cross = None if way == "gptq" or sums is None else sums.cross()
        return compensated(self._scheme, weight, hessian, cross=cross, threads=self._threads)

    def _clipped(self, name: str, weight: F32) -> Coded:
        """Values cut off at the limits that serve some of the inputs best; not of q and k, which a softmax follows."""
        if any(part in name for part in ("attn_q.", "attn_k.")):
            return nearest(self._scheme, weight)
        x = np.concatenate(list(self._given.batches(self._expert)))
        some = x[np.linspace(0, len(x) - 1, min(CLIPPED, len(x))).astype(np.int64)]
        group = self._scheme.group or GROUP
        whole = weight.shape[1] if self._scheme.group is None or weight.shape[1] % group else group
        return nearest(self._scheme, clip(weight, some, self._rounded, whole).weight)

    def _rounded(self, weight: F32) -> F32:
        return values_of(self._scheme, nearest(self._scheme, weight))


class _Outputs:
    """What a product gives over some tokens: of the original model where that is run, else of the original weight."""

    def __init__(self, given: ProductInput, expert: int | None, weight: F32) -> None:
        self._weight = weight
        alone = given.original is None
        self._pairs = [(x, x) for x in given.batches(expert)] if alone else list(given.pairs(expert))
        self.power = sum(_squares(then @ weight.T) for _, then in self._pairs)
        """The sum of |y|^2."""

    def wrong(self, values: F32) -> float:
        """The sum of |y' - y|^2 of outputs y' with `values` for the weight."""
        return sum(_squares(now @ values.T - then @ self._weight.T) for now, then in self._pairs)


class _Sums:
    """The same by a Hessian [K, K]: the sum over tokens of |E x|^2 is their number times the trace of E H E^T."""

    def __init__(self, hessian: Matrix, tokens: int, weight: F32) -> None:
        self._hessian, self._tokens, self._weight = hessian.astype(np.float32), tokens, weight
        self.power = self._of(weight)

    def wrong(self, values: F32) -> float:
        return self._of(values - self._weight)

    def _of(self, rows: F32) -> float:
        return self._tokens * float(np.multiply(rows @ self._hessian, rows).sum(dtype=np.float64))


def held_out(given: ProductInput) -> tuple[ProductInput, ProductInput]:
    """An input's tokens but the last ones, and those."""
    tokens = len(given.vectors)
    at = tokens - max(1, tokens // HELD_OUT)
    return given.part(slice(at)), given.part(slice(at, None))


def _squares(x: F32) -> float:
    return float(np.square(x, dtype=np.float64).sum())
