"""Weights of a scheme by the ways that methods try, and what each errs over a text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from octavo.calibrate.hessian import CrossHessian
from octavo.calibrate.hessian.damping import Matrix
from octavo.calibrate.hessian.factor import Factor, factorize
from octavo.calibrate.hessian.hessian import weighed
from octavo.calibrate.methods import clip
from octavo.calibrate.methods.gptq import DAMP
from octavo.calibrate.methods.gptq.gptq_schemes import gptq_coded, gptq_row
from octavo.calibrate.runner import OpenStage, ProductInput
from octavo.calibrate.schemes.fold_scales import FEWEST
from octavo.calibrate.torch_arrays import is_tensor, on_host
from octavo.errors import about_tensor
from octavo.formats import QTensor, dequantize
from octavo.formats.rows import GROUP
from octavo.formats.spec import F32
from octavo.huggingface.scheme_weight import Coded, factor_of, largest, nearest, row_parts, values_of
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.job.scheme_method import SchemeWeight
from octavo.quantizers.job.undersampled import UndersampledExpert
from octavo.quantizers.matrix_tiles import TILE, run_tiles, spans

if TYPE_CHECKING:
    from octavo.calibrate.hessian.torch_hessian import TorchCross, TorchFactor

GPTQ_WAYS = ("gptq", "qronos")
"""Ways in which errors of a row make up for each other."""
HELD_OUT = 8
"""One token in this many is held out to choose the best of several ways."""
JUDGED = 512
"""Tokens whose outputs are there at a time."""
CLIPPED = 512
"""Tokens with which limits of groups are tried."""
_QUERIES_AND_KEYS = re.compile(
    r"(^|\.)(attn_[qk]|[qk]_proj|wq|wk|query|key|[qk]_lin|to_[qk]|[qk]|w?qkv(_proj)?|query_key_value)\.weight$", re.I
)


def before_softmax(name: str) -> bool:
    """Whether a weight's name, of GGUF or of a module in torch, is that of queries or keys."""
    return _QUERIES_AND_KEYS.search(name) is not None


def scheme_weights(
    stage: OpenStage, given: ProductInput, names: Sequence[str], scheme: CheckpointScheme, ways: Sequence[str],
    threads: int | None, maker: Callable[..., WeightQuantizer] | None = None,
) -> Iterator[tuple[str, SchemeWeight]]:
    """Each of the weights of an input in the scheme, by that of `ways` which errs least; of experts each by itself.

    maker  makes a `WeightQuantizer`, if not the one for arrays
    """
    tensors = {name: stage.tensor(name).stored() if given.experts else stage.tensor(name) for name in names}
    of_experts, starved = list[dict[str, QuantizedPart]](), list[UndersampledExpert]()
    for expert in (range(given.experts) or (None,)) if names else ():
        made_by = (maker or WeightQuantizer)(scheme, given, expert, ways, threads)
        of_experts.append(made_by.all_made(tensors))
        starved += made_by.starved
        del made_by  # and its Hessian
    tensors.clear()
    for name in names:
        found = [made[name] for made in of_experts]
        power = sum(part.power for part in found) or 1.0
        error, before = (
            math.sqrt(sum(wrong) / power) for wrong in ([p.after for p in found], [p.before for p in found])
        )
        how = ", ".join(sorted({part.how for part in found}))
        ways_of_all = [way for way in ways if all(way in part.tried for part in found)]
        tried = {way: math.sqrt(sum(part.tried[way] for part in found) / power) for way in ways_of_all}
        codes = tuple(part.coded for part in found)
        yield name, SchemeWeight(codes, error, before, how, tried, starved=tuple(starved))


@dataclass(frozen=True, eq=False)
class QuantizedPart:
    """A weight [N, K], and sums of squares over its outputs: errors before, after and of each way, and the outputs."""

    coded: Coded
    how: str
    before: float
    after: float
    power: float
    tried: Mapping[str, float]


def of_expert(tensor: QTensor, expert: int | None) -> QTensor:
    """A weight [N, K]: of weights of experts that of one."""
    return tensor if expert is None else QTensor(tensor.format, tensor.shape[1:], tensor.data[expert])


class WeightQuantizer:
    """Makes weights of the same inputs, or of an expert's, whose Hessian is added up once, if it is asked for."""

    def __init__(
        self, scheme: CheckpointScheme, given: ProductInput, expert: int | None, ways: Sequence[str],
        threads: int | None,
    ) -> None:
        self._scheme, self._expert, self._threads = scheme, expert, threads
        self._given, self._judged = held_out(given) if len(ways) > 1 else (given, given)
        if expert is not None and not self._judged.tokens(expert):
            self._judged = self._given
        self._ways = [way for way in ways if self._has_enough(way)] or ["nearest"]
        self.starved: list[UndersampledExpert] = []
        """The expert, if it met too few tokens for one of the ways."""
        if expert is not None and self._ways != list(ways):
            tokens, how = self._given.tokens(expert), " or ".join(self._ways)
            self.starved.append(UndersampledExpert(given.names[0], expert, tokens, how))

    def all_made(self, tensors: Mapping[str, QTensor]) -> dict[str, QuantizedPart]:
        """Each of some weights, or of its parts of this expert."""
        return {name: self.made(name, self._weight(name, tensor)) for name, tensor in tensors.items()}

    def made(self, name: str, weight: Any) -> QuantizedPart:
        """The weight [N, K] by the way that errs least. Raises NonFiniteError and QuantFormatError naming it."""
        with about_tensor(name, self._expert):
            tried = {way: self._make(way, name, weight) for way in self._ways}
            judge = self._judge(weight)
            wrong = {way: judge.wrong(self._values(coded)) for way, coded in tried.items()}
            before = wrong["nearest"] if "nearest" in wrong else judge.wrong(self._nearest_values(weight))
        best = min(wrong, key=lambda way: wrong[way])
        return QuantizedPart(tried[best], best, before, wrong[best], judge.power, wrong)

    def _weight(self, name: str, tensor: QTensor) -> Any:
        """A weight's values, or this expert's, [N, K], where weights are made."""
        return dequantize(of_expert(tensor, self._expert))

    def _values(self, coded: Coded) -> Any:
        """What codes are worth, where weights are made."""
        return values_of(self._scheme, coded)

    def _nearest_values(self, weight: Any) -> Any:
        """What a weight is worth when it is rounded to nearest."""
        return values_of(self._scheme, nearest(self._scheme, weight))

    def _judge(self, weight: Any) -> Judge:
        """What tells errors."""
        return self._judge_by(_Sums, _Outputs, weight)

    def _judge_by(self, sums: Callable[..., Judge], outputs: Callable[..., Judge], weight: Any) -> Judge:
        """A Hessian's sums, where it is of the tokens that judge and no larger than they are, or outputs."""
        if self._judged is self._given and self._given.original is None and self._tokens >= self._given.size:
            return sums(*self._damped, self._tokens, weight)
        return outputs(self._judged, self._expert, weight)

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
        return self._given.summed(self._expert)

    @cached_property
    def _damped(self) -> tuple[Any, float]:
        """The Hessian in float32, and what was added to its diagonal: that of the factor, where there is one."""
        if self._factor is not None:
            return self._factor[0].hessian, self._factor[0].added
        matrix = self._given.sums(self._expert).matrix()
        return matrix.float() if is_tensor(matrix) else matrix.astype(np.float32, copy=False), 0.0

    @cached_property
    def _factor(self) -> tuple[Factor | TorchFactor, F32] | None:
        """Of the Hessian, which it takes the place of, and its diagonal; None where no way needs them."""
        if not set(GPTQ_WAYS) & set(self._ways) or gptq_row(self._scheme, self._given.size) is None:
            return None
        hessian: Any = (self._given.sums(self._expert) if self._cross is None else self._cross.hessian).matrix()
        diagonal = on_host(hessian.diagonal()).astype(np.float32)
        return factorize(hessian, "act", DAMP, keep=False), diagonal

    @cached_property
    def _cross(self) -> CrossHessian | TorchCross | None:
        """Products with what the original model gives, where that is run."""
        return None if self._given.original is None else self._given.cross(self._expert)

    def _make(self, way: str, name: str, weight: Any) -> Coded:
        """The weight [N, K] by a way of KINDS."""
        if way == "clip":
            return self._clipped(name, on_host(weight))
        if way not in GPTQ_WAYS or self._factor is None:
            return nearest(self._scheme, on_host(weight))
        factor, importance = self._factor
        if way == "gptq" or self._cross is None:
            return gptq_coded(
                self._scheme, weight, factor.hessian, importance=importance, factor=factor, threads=self._threads
            )
        hessian, cross = self._cross.hessian.matrix(), self._cross.cross()
        return gptq_coded(self._scheme, weight, hessian, cross=cross, factor=factor, threads=self._threads)

    def _clipped(self, name: str, weight: F32) -> Coded:
        """Values cut off at the limits that serve some of the inputs best; not of q and k, which a softmax follows."""
        if before_softmax(name):
            return nearest(self._scheme, weight)
        some = self._given.some(CLIPPED, self._expert)
        group = self._scheme.group or GROUP
        whole = weight.shape[1] if self._scheme.group is None or weight.shape[1] % group else group
        factor = factor_of(self._scheme, largest(weight))

        def rounded(rows: F32) -> F32:
            return values_of(self._scheme, nearest(self._scheme, rows, factor))

        return nearest(self._scheme, clip(weight, some, rounded, whole).weight)


class Judge(Protocol):
    """Tells what a product errs over some tokens. `power` is the sum of |y|^2 of its outputs y."""

    power: float

    def wrong(self, values: Any) -> float:
        """The sum of |y' - y|^2 of outputs y' with `values` for the weight."""


class _Outputs:
    """What a product gives over some tokens: of the original model where that is run, else of the original weight."""

    def __init__(self, given: ProductInput, expert: int | None, weight: F32) -> None:
        self._weight = weight
        alone = given.original is None
        self._pairs = [(x, x) for x in given.batches(expert)] if alone else list(given.pairs(expert))
        self.power = self._sum(lambda _, then, rows: then @ weight[rows].T)
        """The sum of |y|^2."""

    def wrong(self, values: F32) -> float:
        """The sum of |y' - y|^2 of outputs y' with `values` for the weight."""
        return self._sum(lambda now, then, rows: now @ values[rows].T - then @ self._weight[rows].T)

    def _sum(self, outputs: Callable[[F32, F32, slice], F32]) -> float:
        """The sum of squares of what pairs of vectors come to with some rows of the weight, tile by tile."""
        found = np.zeros(-(-len(self._weight) // TILE))

        def add(i: int, rows: slice) -> None:
            found[i] = sum(_squares(outputs(now, then, rows)) for now, then in self._parts())

        run_tiles(partial(add, i, rows) for i, rows in enumerate(spans(len(self._weight))))
        return float(found.sum())

    def _parts(self) -> Iterator[tuple[F32, F32]]:
        """The pairs, few tokens at a time."""
        return ((now[part], then[part]) for now, then in self._pairs for part in spans(len(now), JUDGED))


class _Sums:
    """The same by a Hessian [K, K]: the sum over tokens of |E x|^2 is their number times the trace of E H E^T.

    added  what the Hessian has on its diagonal beside that
    """

    def __init__(self, hessian: Matrix, added: float, tokens: int, weight: F32) -> None:
        self._hessian, self._added, self._tokens, self._weight = hessian, added, tokens, weight
        self.power = self._squares_of(lambda rows: weight[rows])

    def wrong(self, values: F32) -> float:
        return self._squares_of(lambda rows: values[rows] - self._weight[rows])

    def _squares_of(self, errors: Callable[[slice], F32]) -> float:
        return self._tokens * sum(self._of_rows(errors(rows)) for rows in row_parts(*self._weight.shape))

    def _of_rows(self, rows: F32) -> float:
        own = self._added * _squares(rows) if self._added else 0.0
        return float(weighed(rows, self._hessian).sum()) - own


def held_out(given: ProductInput) -> tuple[ProductInput, ProductInput]:
    """An input's tokens but the last ones, and those."""
    tokens = len(given.vectors)
    at = tokens - max(1, tokens // HELD_OUT)
    return given.part(slice(at)), given.part(slice(at, None))


def _squares(x: F32) -> float:
    return float(np.square(x, dtype=np.float64).sum())
