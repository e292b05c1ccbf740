"""Weights of a scheme by the ways that methods try, and what each errs over a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from octavo.evals.layerwise import OpenStage, ProductInput
from octavo.formats.rows import GROUP
from octavo.formats.spec import F32
from octavo.huggingface.coded import Coded, nearest, values_of
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.compensation.coded import compensated, compensated_row
from octavo.quantizers.job.prepared import MadeWeight
from octavo.quantizers.smoothing import clip

HELD_OUT = 8
"""One in so many tokens tells which of several ways is best, and is used for nothing else."""
CLIPPED = 512
"""Tokens with which limits of groups are tried."""


def made_weights(
    stage: OpenStage, given: ProductInput, names: Sequence[str], scheme: CheckpointScheme, ways: Sequence[str],
    threads: int | None,
) -> Iterator[tuple[str, MadeWeight]]:  # fmt: skip
    """Each of the weights of an input in the scheme, by that of `ways` which errs least."""
    if not names:
        return
    seen, judged = held_out(given) if len(ways) > 1 else (given, given)
    maker = _Maker(scheme, seen, threads)
    for name in names:
        weight = stage.weight(name)
        plain = nearest(scheme, weight)
        tried = {way: plain if way == "nearest" else maker.make(way, name, weight) for way in ways}
        wanted = _Outputs(judged, weight)
        errors = {way: wanted.error(values_of(scheme, coded)) for way, coded in tried.items()}
        best = min(errors, key=lambda way: errors[way])
        before = wanted.error(values_of(scheme, plain))
        yield name, MadeWeight(tried[best], errors[best], before, best)


class _Maker:
    """Makes weights of the same inputs, whose Hessian is added up once."""

    def __init__(self, scheme: CheckpointScheme, given: ProductInput, threads: int | None) -> None:
        self._scheme, self._given, self._threads = scheme, given, threads
        self._cross = given.cross() if given.original is not None else None
        self._hessian = given.hessian().matrix() if self._cross is None else self._cross.hessian.matrix()

    def make(self, way: str, name: str, weight: F32) -> Coded:
        """The weight [N, K] by a way of KINDS other than "nearest"."""
        if way == "clip":
            return self._clipped(name, weight)
        if compensated_row(self._scheme, weight.shape[1]) is None:
            return nearest(self._scheme, weight)
        cross = None if way == "gptq" or self._cross is None else self._cross.cross()
        return compensated(self._scheme, weight, self._hessian, cross=cross, threads=self._threads)

    def _clipped(self, name: str, weight: F32) -> Coded:
        """Values cut off at the limits that serve some of the inputs best; not of q and k, which a softmax follows."""
        if any(part in name for part in ("attn_q.", "attn_k.")):
            return nearest(self._scheme, weight)
        x = np.concatenate(list(self._given.batches()))
        some = x[np.linspace(0, len(x) - 1, min(CLIPPED, len(x))).astype(np.int64)]
        group = self._scheme.group or GROUP
        whole = weight.shape[1] if self._scheme.group is None or weight.shape[1] % group else group
        return nearest(self._scheme, clip(weight, some, self._rounded, whole).weight)

    def _rounded(self, weight: F32) -> F32:
        return values_of(self._scheme, nearest(self._scheme, weight))


class _Outputs:
    """What a product gives over some tokens: of the original model where that is run, else of the original weight."""

    def __init__(self, given: ProductInput, weight: F32) -> None:
        self._given, self._weight = given, weight
        self._pairs = list(given.pairs()) if given.original is not None else [(x, x) for x in given.batches()]
        self._power = sum(_squares(then @ weight.T) for _, then in self._pairs) or 1.0

    def error(self, values: F32) -> float:
        """The root of sum |y' - y|^2 / sum |y|^2 of outputs y' with `values` for the weight."""
        wrong = sum(_squares(now @ values.T - then @ self._weight.T) for now, then in self._pairs)
        return math.sqrt(wrong / self._power)


def held_out(given: ProductInput) -> tuple[ProductInput, ProductInput]:
    """An input's tokens but the last ones, and those."""
    tokens = len(given.vectors)
    at = tokens - max(1, tokens // HELD_OUT)
    return given.part(slice(at)), given.part(slice(at, None))


def _squares(x: F32) -> float:
    return float(np.square(x, dtype=np.float64).sum())
