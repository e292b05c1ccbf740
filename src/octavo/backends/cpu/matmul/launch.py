"""The calls for the product of a weight with the rows of x."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.launch.calls import Weight, product_kernel, stride, tiles_of, weight_arguments
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.matmul.tasks import TERM
from octavo.backends.cpu.matmul.w8a8.row_scales import TiledRowWeight, row_product
from octavo.backends.cpu.weights.pack import TiledWeight
from octavo.formats.spec import AnyArray
from octavo.jit.program import KernelCall, address


def product(
    weight: Weight | TiledRowWeight, x: Any, y: AnyArray, terms: Sequence[AnyArray], shared: PlanMemory
) -> list[KernelCall]:
    """The calls for y [T, n] = x [T, k] @ weight.T + terms: whole tiles of tokens, a chain of tails for the rest."""
    if isinstance(weight, TiledRowWeight):
        return row_product(weight, x, y, terms, shared)
    sizes, left = [], len(y)
    for n in tiles_of(weight):
        count, left = divmod(left, n)
        if count:
            sizes.append((n, count))
    first, call = len(y), None
    for n, count in reversed(sizes):
        first -= n * count
        call = _tile_call(weight, x, y, terms, first, n, count, call)
    return [] if call is None else [call]


def _tile_call(
    weight: Weight, x: AnyArray, y: AnyArray, terms: Sequence[AnyArray],
    first: int, n: int, tiles: int, tail: KernelCall | None,
) -> KernelCall:
    """The product for tokens `first` to `first` + n * tiles; `tail` is the call for those after."""
    shape = weight_arguments(weight)
    if not isinstance(weight, TiledWeight):
        assert x.dtype == np.float32
        shape["x_stride"] = stride(x)
    added = np.zeros(len(terms), TERM.dtype)
    for i, term in enumerate(terms):
        of_token = stride(term) if term.ndim == 2 else 0
        added[i] = address(term) + first * of_token, of_token
    call = KernelCall(
        product_kernel(weight, n, tiles), -(-weight.n // 16), (weight, x, y, terms, tail),
        weights=weight.data, **shape,
        x=address(x) + first * shape["x_stride"], y=address(y) + first * stride(y), y_stride=stride(y), tiles=tiles,
        terms=added, term_count=len(terms),
        tail=tail or 0, tail_arguments=tail.args if tail else 0,
    )
    call.reads = address(weight.data), weight.data.nbytes // call.tasks
    return call
