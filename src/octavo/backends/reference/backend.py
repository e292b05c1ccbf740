"""ReferenceBackend: NumPy arrays as memory, `ops` as kernels."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from octavo.backends.collectives import collective_call
from octavo.backends.host_memory import HostMemory
from octavo.backends.reference import ops
from octavo.errors import BackendError
from octavo.formats import QTensor, dequantize
from octavo.formats.cache_formats import CACHE_FORMATS, CacheFormat
from octavo.formats.qtensor import TimesQTensor
from octavo.formats.spec import F32, U8, AnyArray
from octavo.graph.collective_ops import COLLECTIVES
from octavo.graph.communicator import Communicator
from octavo.graph.factors import LowRank
from octavo.graph.node import DType, Graph, Node
from octavo.graph.protocol import Call

log = logging.getLogger("octavo")

KEPT_BYTES = 2 << 30
"""Weights are kept as float32 until they take this much; those after it are dequantized at each use."""

DTYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i64": np.int64}


class ReferenceBackend(HostMemory):
    """Runs every op. Quantized activations are held as the float32 numbers that they stand for.

    `communicator` is for graphs of one of several ranks.
    `fusions`, `quantizes` and `quantize_activations` are for running fused and quantized graphs by definition too.
    """

    name = "reference"
    chooses = False

    def __init__(
        self, *, threads: int | None = None, fusions: Collection[str] = (), quantizes: Collection[str] = (),
        quantize_activations: bool = False, communicator: Communicator | None = None,
    ) -> None:
        self.fusions, self.quantizes = frozenset(fusions), frozenset(quantizes)
        self._quantize = quantize_activations
        self.communicator = communicator
        self._kept = 0
        if threads is not None:
            from threadpoolctl import threadpool_limits

            threadpool_limits(threads)

    def supports(self, node: Node) -> tuple[bool, str]:
        if node.op in COLLECTIVES:
            return (True, "") if self.communicator is not None else (False, "made without a communicator")
        return (True, "") if hasattr(ops, node.op) else (False, f"{node.op} is not defined")

    def activation(self, weight: QTensor, op: str) -> DType:
        return cast(DType, weight.format.activation) if self._quantize else "f32"

    def load(self, tensor: QTensor) -> Any:
        nbytes = 4 * tensor.size
        if isinstance(tensor, TimesQTensor):
            return tensor.factors[:, None] * dequantize(tensor)
        if len(tensor.shape) > 1 and self._kept + nbytes > KEPT_BYTES:
            return _Stored(QTensor(tensor.format, tensor.shape, tensor.data, tensor.name))
        self._kept += nbytes
        with _enough_memory(nbytes, f"tensor {tensor.name}"):
            values = dequantize(tensor)
        if not np.isfinite(values).all():
            log.warning("tensor %s holds NaN or Inf", tensor.name)
        return values

    def nbytes(self, shape: tuple[int, ...], dtype: DType) -> int:
        return math.prod(shape) * int(np.dtype(_numpy(dtype)).itemsize)

    def allocate(self, nbytes: int) -> U8:
        with _enough_memory(nbytes, "values"):
            return np.full(nbytes, 0xFF, np.uint8)  # NaN in every float type: what is not written is seen

    def view(self, memory: U8, offset: int, shape: tuple[int, ...], dtype: DType) -> AnyArray:
        value: AnyArray = memory[offset : offset + self.nbytes(shape, dtype)].view(_numpy(dtype)).reshape(shape)
        return value

    def cache(self, shape: tuple[int, ...], dtype: DType, static: F32 | None = None) -> Any:
        with _enough_memory(self.nbytes(shape, dtype), "a layer's KV cache; a smaller context needs less"):
            values = np.zeros(shape, _numpy(dtype))
        rounding = CACHE_FORMATS[dtype]
        return values if rounding.group is None else _RoundedCache(values, rounding, static)

    def states(self, shape: tuple[int, ...]) -> AnyArray:
        with _enough_memory(self.nbytes(shape, "f32"), "a layer's states; fewer sequences need less"):
            return np.zeros(shape, np.float32)

    def page_parts(self, cache: Any, page: int) -> list[AnyArray]:
        return super().page_parts(cache.values if isinstance(cache, _RoundedCache) else cache, page)

    def adapters(self, shape: tuple[int, ...]) -> _Adapters:
        return _Adapters(shape[0], shape[3:])

    def alias(self, node: Node, value: AnyArray, shape: tuple[int, ...]) -> AnyArray:
        array: AnyArray = getattr(ops, node.op)(value, *((None,) * (len(node.inputs) - 1)), **node.attrs)
        assert np.may_share_memory(array, value)
        return array

    def begin_plan(self, graph: Graph) -> ReferenceBinder:
        return ReferenceBinder(self.communicator)


class ReferenceBinder:
    """A call is an op, and its result copied to where it belongs."""

    def __init__(self, communicator: Communicator | None = None) -> None:
        self._communicator = communicator
        self._calls: list[Call] = []

    def bind(self, node: Node, inputs: Sequence[Any], out: AnyArray) -> Call:
        if node.op in COLLECTIVES:
            self._calls.append(collective_call(node, inputs, out, self._communicator))
            return self._calls[-1]
        function, attrs = getattr(ops, node.op), dict(node.attrs)
        scale = attrs.pop("static_scale", None) if node.quantizes else None

        def call() -> None:
            with np.errstate(all="ignore"):  # NaN and Inf are looked for in the logits
                result = function(*inputs, **attrs)
                if node.quantizes:
                    result = ops.quantize(result, format=node.dtype, static_scale=scale)
                if result is not out:
                    out[...] = result

        self._calls.append(call)
        return call

    def finish(self) -> list[Call]:
        calls, self._calls = self._calls, []
        return calls


@contextmanager
def _enough_memory(nbytes: int, what: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise BackendError(f"reference: not enough memory: {nbytes:,} bytes wanted for {what}") from None


def _numpy(dtype: DType) -> Any:
    return DTYPES.get(dtype, np.float32)


class _RoundedCache:
    """A cache of codes, whose rows are rounded when they are set, and held as the floats that this gives."""

    def __init__(self, values: F32, fmt: CacheFormat, static: F32 | None) -> None:
        self.values, self._format, self._static = values, fmt, static
        self.shape = values.shape

    def __getitem__(self, rows: AnyArray) -> F32:
        taken: F32 = self.values[rows]
        return taken

    def __setitem__(self, rows: AnyArray, values: F32) -> None:
        self.values[rows] = self._format.rounded(values, self._static)


class _Adapters:
    """A table of adapters; `pairs` are the factors of each, float32, for each of its products of `sizes` [S][P]."""

    def __init__(self, slots: int, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.pairs: list[list[tuple[F32, F32] | None]] = [[None] * len(sizes) for _ in range(slots)]

    def put(self, slot: int, pairs: Sequence[LowRank | None]) -> None:
        self.pairs[slot] = [None if pair is None else (dequantize(pair.a), dequantize(pair.b)) for pair in pairs]


class _Stored:
    """A weight that stays packed: rows, an expert or the whole are dequantized when they are asked for."""

    def __init__(self, tensor: QTensor) -> None:
        self._tensor = tensor
        self.shape = tensor.shape

    def __getitem__(self, index: Any) -> F32:
        data = np.atleast_2d(self._tensor.data[index])
        shape = (*data.shape[:-1], self.shape[-1])
        return dequantize(QTensor(self._tensor.format, shape, data, self._tensor.name))

    @property
    def T(self) -> F32:  # noqa: N802  (NumPy's name)
        return dequantize(self._tensor).T
