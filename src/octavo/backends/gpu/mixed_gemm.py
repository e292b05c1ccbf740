"""Products with many tokens whose weights become float16 in registers, on compute capability 9.0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from octavo.backends.gpu import gluon
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.dispatch import MixedGemmShape
from octavo.backends.gpu.layout import TILE
from octavo.backends.gpu.values import Activation
from octavo.backends.gpu.weights import QuantWeight
from octavo.graph.protocol import Call


def mixed_gemm(
    c: Context, shape: MixedGemmShape, w: QuantWeight, x: torch.Tensor | Activation, y: torch.Tensor,
    terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]],
) -> list[Call]:  # fmt: skip
    """The calls for y f32 [T, n] = x @ w.T + terms, two at the most; x is float16 [T, kp], or q8_1. If Triton can't
    compile the kernel, those that `otherwise` makes."""
    with suppress(gluon.Unusable), gluon.attempt("mixed"):
        return _mixed_gemm(c, shape, w, x, y, terms, otherwise)
    return otherwise()


def _mixed_gemm(
    c: Context, shape: MixedGemmShape, w: QuantWeight, x: torch.Tensor | Activation, y: torch.Tensor,
    terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]],
) -> list[Call]:  # fmt: skip
    from octavo.backends.gpu.kernels import gemm_mixed_hopper as kernels

    m, kp, layout = len(y), w.kp, w.layout
    groups = kp // layout.group * w.n
    ordered = c.shared("ordered", m * kp, torch.float16)
    scale = c.shared("scales", groups, torch.int32)
    minimum = c.shared("minima", groups, torch.int32) if layout.has_min else scale
    pairs = kp // (2 * layout.group)
    grid = (-(-m * kp // 2048),)
    if isinstance(x, torch.Tensor):
        reorder = c.launch(kernels.reorder_kernel, grid, x, ordered, m * kp, B=2048)
    else:
        codes_of_x, d, _, _ = x.q8_1
        reorder = c.launch(kernels.reorder_codes_kernel, grid, codes_of_x, d, ordered, m * kp, x.tp, kp=kp, B=2048)
    before = [
        reorder,
        c.launch(
            kernels.scales_kernel, (-(-w.n // 64), -(-pairs // 16)), *w.arguments[4:8], scale, minimum, w.n, kp=kp,
            **{name: w.constants[name] for name in ("G", "S", "KIND", "HAS_MIN", "MIN_BITS")}, BN=64, BG=16,
        ),
    ]  # fmt: skip

    planes = dict(zip((8, 4, 2), w.byte_arguments, strict=False))
    widest = layout.planes[0]
    codes = gluon.tiles(planes[widest].view(w.n, -1), shape.rows, TILE * widest // 8)
    codes2 = gluon.tiles(planes[2].view(w.n, -1), shape.rows, TILE // 4) if 2 in layout.planes else codes
    values = gluon.tiles(ordered.view(m, kp), shape.tokens, TILE // 2)
    programs = -(-m // shape.tokens) * -(-w.n // shape.rows)
    shares, counters = y, y
    if shape.splits > 1:
        shares = c.shared("shares", programs * shape.splits * shape.tokens * shape.rows, torch.float32)
        counters = c.counters(programs)
    padded = [*terms, *(y for _ in range(2 - len(terms)))]
    strides = [t.stride(0) if t.ndim == 2 else 0 for t in padded]
    multiply = gluon.Preferred(
        "mixed", otherwise, c.target, (programs * shape.splits,), values, codes, codes2, scale, minimum, *padded, y,
        shares, counters, m, w.n, kp, y.stride(0), *strides, BITS=layout.bits, G=layout.group, SIGNED=layout.signed,
        HAS_MIN=layout.has_min, TERMS=len(terms), GROUP=8, SPLITS=shape.splits, STAGES=shape.stages, warps=shape.warps,
    )  # fmt: skip
    return [*before, multiply]
