"""A stage before it is run: what its products are given of all samples, and their weights, which may be replaced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octavo.calibrate import arrays
from octavo.calibrate.arrays import is_tensor, on_host, taken
from octavo.calibrate.hessian import CrossHessian, Hessian, absmax, agreement, count
from octavo.errors import UsageError, tensor_label
from octavo.formats import PlacedQTensor, QTensor, by_name, dequantize
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32, AnyArray
from octavo.graph.node import Node
from octavo.graph.stages import Stage
from octavo.quantizers.statistics import ChannelStatistics

if TYPE_CHECKING:
    from torch import Tensor

LONG = 4.0
"""Times the median length from which a vector is one of a few: in some layers of most models the first token of a
sequence is hundreds of times as long as others (arXiv 2402.17762), and what it becomes serves all that attend to it."""
RARE = 64
"""Such a vector is one in this many at most; where there are more, all are alike."""
CHANNELS, RUN = 512, 512
"""Channels by which halves of a text are compared, and vectors of a run, all of which are of one half, at most."""
F64 = npt.NDArray[np.float64]
TOKENS = 4096
"""Most tokens whose vectors are looked at together."""


@dataclass(frozen=True, eq=False)
class ProductInput:
    """The vectors that some products of a stage share.

    names     of their weights
    size      K, numbers of a vector
    experts   0 for plain products, with weights [N, K]; else how many there are, with weights [experts, N, K]
    vectors   float32 [tokens, K], or [tokens, k, K] where each of a token's k experts has its own
    ids       int32 [tokens, k]: the experts of a token; None for plain products
    original  vectors and ids of the model as it was, where it is run too
    device    what torch calls the device on which sums over vectors are made; None: on the host
    """

    names: tuple[str, ...]
    size: int
    experts: int
    vectors: Any
    ids: AnyArray | None
    original: tuple[Any, AnyArray | None] | None = None
    device: str | None = None

    def tokens(self, expert: int | None = None) -> int:
        """How many vectors there are, or those of an expert."""
        if self.ids is None:
            return len(self.vectors)
        return int(np.count_nonzero(self.ids == self._checked(expert)))

    def counts(self) -> list[int]:
        """Vectors of each expert, or of all there is."""
        if self.ids is None:
            return [len(self.vectors)]
        return [int(n) for n in np.bincount(self.ids.reshape(-1), minlength=self.experts)]

    def batches(self, expert: int | None = None) -> Iterator[Any]:
        """The vectors, or those of an expert, float32 [T, K] where sums are made, some at a time; none is empty."""
        return map(self._in_place, self._chosen(expert))

    def pairs(self, expert: int | None = None) -> Iterator[tuple[Any, Any]]:
        """The vectors as they are, and as the original model has them, [T, K] each, of the same tokens.

        Of an expert whose vectors are its own these are the tokens that both models send to it. Raises UsageError where
        the original is not run.
        """
        return ((self._in_place(now), self._in_place(then)) for now, then in self._paired(expert))

    def hessian(self, expert: int | None = None) -> Hessian:
        """The Hessian of the vectors, added up now, where sums are made, as far as it is to be trusted (`_trusted`);
        long vectors (LONG) count whole. Raises NonFiniteError naming a weight.
        """
        sums, longest = Hessian(self.size, self.label(expert), device=self.device), _longest(self.batches(expert))
        for x in self.batches(expert):
            long = _lengths(x) > longest
            sums.add(x[~long])
            if bool(long.any()):
                sums.add_whole(x[long])
        sums.kept = self._trusted(expert, lambda: self.batches(expert), longest)
        return sums

    def cross(self, expert: int | None = None) -> CrossHessian:
        """Hessian and products with the original model's vectors. Raises as `pairs` and `hessian` do."""
        sums = CrossHessian(self.size, self.label(expert), self.device)
        longest = _longest(now for now, _ in self.pairs(expert))
        for now, then in self.pairs(expert):
            long = _lengths(now) > longest
            sums.add(now[~long], then[~long])
            if bool(long.any()):
                sums.hessian.add_whole(now[long], then[long])
        sums.hessian.kept = self._trusted(expert, lambda: (now for now, _ in self.pairs(expert)), longest)
        return sums

    def _trusted(self, expert: int | None, batches: Callable[[], Iterable[Any]], longest: float) -> float:
        """What of the correlations of vectors other text is taken to have: the square of what two halves share, as it
        is as far from both as these are from each other.

        Halves are runs of vectors by their kind: from the run that is farthest from the mean in what its channels'
        sizes are to the one that is farthest from that. Of a text of one kind they are alike.
        """
        channels = np.linspace(0, self.size - 1, min(self.size, CHANNELS)).astype(np.int64)

        def runs() -> Iterator[Any]:
            for x in batches():
                some = x[:, arrays.like(channels, x)][~(_lengths(x) > longest)]
                ends = np.linspace(0, len(some), 1 + max(2, math.ceil(len(some) / RUN))).astype(int).tolist()
                yield from (some[first:end] for first, end in pairwise(ends))

        squares = [on_host((run * run).sum(0)) for run in runs()] or [np.zeros(len(channels))]
        sizes = np.sqrt(np.stack(squares).astype(np.float64))
        sizes /= np.linalg.norm(sizes, axis=1, keepdims=True) + np.finfo(np.float32).tiny
        one = _distances(sizes, sizes[_distances(sizes, sizes.mean(0)).argmax()])
        order = np.argsort(one - _distances(sizes, sizes[one.argmax()]), kind="stable")
        halves = [Hessian(len(channels), self.label(expert), device=self.device) for _ in range(2)]
        for place, run in zip(np.argsort(order), runs(), strict=False):
            halves[int(2 * place < len(order))].add(run)
        return agreement(*halves) ** 2

    def summed(self, expert: int | None = None) -> int:
        """Vectors that Hessians are of: where the original is run, those that both models have."""
        if self.original is None:
            return self.tokens(expert)
        return sum(len(now) for now, _ in self._paired(expert))

    def statistics(self) -> ChannelStatistics:
        """Statistics of each channel, a row for each expert. Raises NonFiniteError naming a weight."""
        found = ChannelStatistics(max(self.experts, 1), self.size, self.names[0])
        for expert in range(self.experts) or (None,):
            for x in self.batches(expert):
                count(found, x, expert or 0)
        return found

    def _chosen(self, expert: int | None) -> Iterator[Any]:
        """The vectors, or those of an expert, where they lie."""
        for part in _parts(len(self.vectors)):
            found = _of_expert(self.vectors[part], None if self.ids is None else self.ids[part], self._checked(expert))
            if len(found):
                yield found

    def _paired(self, expert: int | None) -> Iterator[tuple[Any, Any]]:
        """What `pairs` gives, where it lies."""
        if self.original is None:
            raise UsageError("the original model is not run beside this one: run layerwise with original=True")
        before, before_ids = self.original
        for part in _parts(len(self.vectors)):
            ids = None if self.ids is None else self.ids[part]
            now, then, then_ids = self.vectors[part], before[part], ids
            if before.ndim == 3 and ids is not None and before_ids is not None:
                ids, then_ids = _shared(ids, before_ids[part], self._checked(expert))
            found = _of_expert(now, ids, self._checked(expert)), _of_expert(then, then_ids, self._checked(expert))
            if len(found[0]):
                yield found

    def absmax(self) -> AnyArray:
        """The largest magnitude of each channel, [experts or 1, K]. Raises NonFiniteError naming a weight."""
        experts: list[int | None] = [*range(self.experts)] or [None]
        return np.stack([absmax(self.batches(e), self.size, self.label(e)) for e in experts])

    def some(self, most: int, expert: int | None = None) -> F32:
        """As many vectors at most, or of an expert's, evenly spread: float32 [T, K]."""
        x = self.vectors if expert is None else arrays.of(self.vectors).concatenate([*self._chosen(expert)])
        at = np.linspace(0, len(x) - 1, min(most, len(x))).astype(np.int64)
        return np.asarray(on_host(taken(x, at)), np.float32)

    def _in_place(self, vectors: Any) -> Any:
        """float32 [T, K] where sums are made."""
        if is_tensor(vectors):
            return vectors
        return arrays.on_device(np.asarray(vectors, np.float32), self.device)

    def part(self, tokens: slice) -> ProductInput:
        """The input of some of the tokens."""
        ids, original = self.ids, self.original
        then = None if original is None else (original[0][tokens], None if original[1] is None else original[1][tokens])
        return replace(self, vectors=self.vectors[tokens], ids=None if ids is None else ids[tokens], original=then)

    def label(self, expert: int | None = None) -> str:
        """What errors call the input."""
        return self.names[0] if expert is None else f"{self.names[0]}, expert {expert},"

    def _checked(self, expert: int | None) -> int:
        """The expert, -1 for a plain product."""
        if not self.experts and expert is None:
            return -1
        if expert is None or not 0 <= expert < self.experts:
            allowed = f"0 to {self.experts - 1}" if self.experts else "None, it has no experts"
            raise UsageError(f"expert is {expert} of {self.names[0]} (allowed: {allowed})", argument="expert")
        return expert


def _lengths(x: Any) -> Any:
    """Squares of the lengths of vectors [T, K]."""
    with np.errstate(over="ignore", invalid="ignore"):  # callers' sums are checked for NaN and Inf
        return (x * x).sum(1)


def _longest(batches: Iterable[Any]) -> float:
    """The square of the length beyond which vectors count whole; infinite where more than one in RARE would."""
    found = [on_host(_lengths(x)) for x in batches]
    if not found:
        return math.inf
    squares = np.concatenate(found)
    with np.errstate(invalid="ignore"):
        longest = LONG**2 * float(np.median(squares))
    return longest if RARE * int((squares > longest).sum()) <= len(squares) else math.inf


def _distances(rows: F64, place: F64) -> F64:
    """Squares of distances of rows from a place."""
    found: F64 = np.square(rows - place).sum(axis=1)
    return found


def inputs_of(
    stage: Stage, kept: Mapping[int, AnyArray], original: Mapping[int, AnyArray] | None, device: str | None
) -> list[ProductInput]:
    """The distinct inputs of a stage's products, from the values that are kept, by number."""
    numbers = stage.taken
    found: dict[tuple[int, ...], list[Node]] = {}
    for product in stage.products:
        found.setdefault(tuple(numbers[id(i)] for i in product.inputs[1:]), []).append(product)
    return [_input(products, *key, kept=kept, original=original, device=device) for key, products in found.items()]


def _input(
    products: list[Node], x: int, ids: int | None = None, *, kept: Mapping[int, AnyArray],
    original: Mapping[int, AnyArray] | None, device: str | None,
) -> ProductInput:
    weight = products[0].inputs[0]
    shape = weight.tensor.shape
    experts, size = shape[0] if len(shape) == 3 else 0, shape[-1]
    before = None if original is None else (original[x], None if ids is None else original[ids])
    names = tuple(p.inputs[0].name for p in products)
    return ProductInput(names, size, experts, kept[x], None if ids is None else kept[ids], before, device)


def _parts(tokens: int) -> list[slice]:
    return [slice(start, start + TOKENS) for start in range(0, tokens, TOKENS)]


def _of_expert(vectors: Any, ids: AnyArray | None, expert: int) -> Any:
    """Of vectors [T, K] or [T, k, K] those of an expert, by ids [T, k]; all where there are none. A token that is sent
    to the expert twice counts twice."""
    if ids is None:
        return vectors
    chosen = ids == expert
    return taken(vectors, chosen if vectors.ndim == 3 else np.nonzero(chosen)[0])


def _shared(now: AnyArray, then: AnyArray, expert: int) -> tuple[AnyArray, AnyArray]:
    """Two choices of experts [T, k], with -1 for those of tokens that not both send to `expert`."""
    both = ((now == expert).any(axis=1) & (then == expert).any(axis=1))[:, None]
    return np.where(both, now, -1), np.where(both, then, -1)


@dataclass(frozen=True, eq=False)
class OpenStage:
    """A stage that is about to be run: what its products are given, and their weights, which may be replaced.

    number  of the stage
    layer   of its weights, None for those of no layer
    inputs  of its products, each once
    device  what torch calls the device on which weights are to be made; None: on the host
    """

    number: int
    layer: int | None
    inputs: Sequence[ProductInput]
    device: str | None
    _tensors: Mapping[str, QTensor]
    _replaced: dict[str, QTensor] = field(default_factory=dict)

    def tensor(self, name: str) -> QTensor:
        """A weight as it is stored. Raises UsageError for one that is not of this stage."""
        if name not in self._tensors:
            raise UsageError(f"{name!r} is not a weight of this stage (allowed: {', '.join(self._tensors)})")
        return self._tensors[name]

    def weight(self, name: str) -> F32:
        """A weight's values, float32 [N, K] or [experts, N, K]. Raises NonFiniteError, naming it, for NaN or Inf."""
        values = dequantize(self.tensor(name))
        require_finite(values, tensor_label(name))
        return values

    def part(self, name: str, expert: int | None) -> F32 | Tensor:
        """A weight's values, or an expert's, float32 [N, K], where weights are made. Raises as `weight` does."""
        return part_of(self.tensor(name).stored(), name, expert, self.device)

    def replace(self, name: str, values: F32 | Tensor) -> None:
        """Run this stage with other values of a weight, float32, finite, in its shape."""
        tensor = self.tensor(name)
        if is_tensor(values):
            assert values.shape == tensor.shape
            self._replaced[name] = PlacedQTensor(by_name("F32"), values, name)
            return
        if values.shape != tensor.shape or values.dtype != np.float32 or not np.isfinite(values).all():
            found = f"{values.dtype} {list(values.shape)}"
            raise UsageError(f"{name}: {found} (allowed: finite float32 {list(tensor.shape)})", argument="values")
        self._replaced[name] = as_weight(name, values)


def part_of(tensor: QTensor, name: str, expert: int | None, device: str | None) -> F32 | Tensor:
    """A stored weight's values, or an expert's, float32 [N, K], on a device. Raises NonFiniteError, naming it."""
    if expert is not None:
        tensor = QTensor(tensor.format, tensor.shape[1:], tensor.data[expert], name)
    if device is None:
        values = dequantize(tensor)
        require_finite(values, tensor_label(name, expert))
        return values
    from octavo.calibrate.torch_rows import finite_values

    return finite_values(tensor, device, tensor_label(name, expert))


def as_weight(name: str, values: F32) -> QTensor:
    """Values as a stored tensor of F32."""
    values = np.ascontiguousarray(values, np.float32)
    return QTensor(by_name("F32"), values.shape, values.view(np.uint8), name)
