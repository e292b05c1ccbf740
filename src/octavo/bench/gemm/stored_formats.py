"""Products with weights in block formats, as models make them: `octavo bench gemm --scheme q8_0`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.bench.cases import WEIGHTS, Built, executor
from octavo.bench.gemm.gemm_subject import Calls, GemmSubject, How
from octavo.errors import UsageError
from octavo.formats import BlockFormat, QTensor, by_name, dequantize, quantize_reference
from octavo.formats.activation import activation
from octavo.formats.spec import F32
from octavo.graph.builder import GraphBuilder, weight
from octavo.graph.node import PAGE_SIZE, Graph, Node
from octavo.graph.plan import Plan
from octavo.graph.protocol import Backend

STORED = {name.lower(): by_name(name) for name in WEIGHTS if not by_name(name).is_float}
"""Formats by the name of their scheme."""

BOUNDS = {8: 0.03, 6: 0.05, 5: 0.08, 4: 0.15, 3: 0.25, 2: 0.4}
"""Bounds of the error against the product of the floats, by bits of a code; see `bound`."""


def bound(fmt: BlockFormat) -> float:
    """How large the error against the product of the floats may be.

    Codebook entries, and codes of three values, say less than their bits: no coder of that many bits a weight has less
    than 2^-bits of error on normal weights, and these formats have up to twice that.
    """
    return max(BOUNDS[fmt.bits], 2.1 * 2**-fmt.bits_per_weight)


def require_plain(scheme: str, how: How) -> None:
    """Raise UsageError for what a model's product does not have."""
    if replace(how, seed=0) != How():
        raise UsageError(
            f"scheme {scheme} is a model's product, with activations as the backend makes them and nothing after the"
            " sums (allowed with it: --seed)"
        )


def subject(fmt: BlockFormat, x: F32, w: F32, device: str) -> GemmSubject:
    """The product of x and w in a format, on "cpu" or "gpu", through a graph of one op.

    Activations are what the backend makes of them for that many tokens: q8_1, or float16. On the CPU making them is
    timed with the product; on the GPU it is a launch of its own, which is not timed.
    """
    tensor = QTensor(fmt, w.shape, _encoded(fmt, w), "w")
    backend = _backend(device)
    inputs, sizes = {"x": x}, {"tokens": len(x)}
    given = Node("input", (), ("tokens", x.shape[1]), "f32", name="x")
    graph = Graph.of(GraphBuilder("f16", PAGE_SIZE).mul_mat(weight(tensor), given))
    built = Built(graph, ((inputs, sizes),), {**sizes, "pages": 1, "rows": 1})
    first = executor(built, [backend])

    def calls(copies: int) -> Calls:
        executors = [first, *(executor(built, [backend]) for _ in range(copies - 1))]
        for each in executors:
            each.run(inputs, sizes)
        return [_call(each.plan(sizes), backend) for each in executors]

    def exact(rows: npt.NDArray[np.intp]) -> F32:
        values = _activations(x[rows], len(x), tensor, backend)
        return (values.astype(np.float64) @ dequantize(tensor).astype(np.float64).T).astype(np.float32)

    n, k = w.shape
    return GemmSubject(
        bound(fmt), lambda: np.array(first.run(inputs, sizes)[0]), exact, calls, _operands(x, device),
        tensor.nbytes, tensor.nbytes + len(x) * (k + k // 8 + 4 * n),
    )


def _encoded(fmt: BlockFormat, w: F32) -> npt.NDArray[np.uint8]:
    from octavo.quantizers import ENCODABLE, encode

    return encode(w, fmt) if fmt.name in ENCODABLE else quantize_reference(w, fmt).data


def _backend(device: str) -> Backend:
    if device == "gpu":
        from octavo.bench import gpu

        return gpu.Copying()
    from octavo.backends import select

    return select("cpu")[0]


def _activations(x: F32, tokens: int, tensor: QTensor, backend: Backend) -> F32:
    """Values of activations as the backend's product of `tokens` tokens has them."""
    kind: str = backend.activation(tensor, "mul_mat")
    if kind == "q8_1" and backend.name == "gpu":
        from octavo.backends.gpu.matmul import dispatch

        kind = dispatch.activation(tokens)
    quantize = activation(kind).quantize
    assert quantize is not None
    return quantize(x).dequantize()


def _operands(x: F32, device: str) -> tuple[Any, ...]:
    """The activations, and nothing for the weight, which no library takes."""
    if device == "cpu":
        return x, None
    import torch

    from octavo.backends.gpu.device.torch_device import target

    return torch.from_numpy(x).to(target().device), None


def _call(plan: Plan, backend: Backend) -> Any:
    if backend.name == "gpu":
        from octavo.bench import gpu

        if gpu.has_events(backend):
            return gpu.calls_of(plan)
    return partial(_step, plan)


def _step(plan: Plan) -> None:
    for step in plan.steps:
        step()
