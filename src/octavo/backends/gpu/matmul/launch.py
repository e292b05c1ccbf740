"""Products of weights and activations: which kernel for how many tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from octavo.backends.gpu.launch.arguments import ExpertIds, Matrix, Q8Activation, Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation
from octavo.backends.gpu.matmul import activations, dispatch
from octavo.backends.gpu.matmul.dequantize_kernel import dequantize_kernel
from octavo.backends.gpu.matmul.matvec.float8_kernel import float8_matvec_kernel
from octavo.backends.gpu.matmul.matvec.float_kernel import float_matvec_kernel
from octavo.backends.gpu.matmul.matvec.kernel import matvec_kernel, matvec_pair_kernel
from octavo.backends.gpu.matmul.matvec.matvec_shape import MATVEC_MAX_TOKENS, MatvecShape
from octavo.backends.gpu.matmul.matvec_persistent import launch as matvec_persistent
from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import PersistentShape
from octavo.backends.gpu.matmul.mmq.dot_kernel import mmq_dot_kernel
from octavo.backends.gpu.matmul.mmq.mma_kernel import mmq_mma_kernel
from octavo.backends.gpu.matmul.mmq.mmq_shapes import INT8_MAX_TOKENS, DotShape, MmaShape
from octavo.backends.gpu.matmul.product import Product, Shape
from octavo.backends.gpu.matmul.w4a16.launch import w4a16_product, w4a16_product_pair
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import HopperShape, LibraryShape, MultiCtaShape, StreamKShape
from octavo.backends.gpu.matmul.w8a8.streamk import STREAMK_KINDS, streamk_product
from octavo.backends.gpu.pointwise.launch import launch_pointwise
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight
from octavo.graph.protocol import Call

Weight = QuantWeight | FloatWeight
TF32_MIN_ROWS = 512
"""Rows of a matrix of f32 from which on products with more than one token are of tf32 numbers."""
SMALL_MATRIX, SMALL_MATRIX_TOKENS = 1 << 19, 16
"""Values of a matrix of f32 (a router's) that programs of each token read from the cache sooner than the library begins
its two launches; and tokens up to which that is so."""
MOST_PAIRED = 2048
"""Values of a row up to which products by two matrices with different layouts are one launch; longer ones lose."""


def product(c: Context, weight: Weight, x: Any, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> list[Call]:
    """The calls for y [T, n] = x [T, k] @ weight.T + terms."""
    if isinstance(weight, FloatWeight):
        return _float_product(c, weight, x, y, terms)
    assert isinstance(x, Activation)
    if x.always_halves:
        return _float8_product(c, weight, x, y, terms)
    if c.deterministic:
        same = dispatch.deterministic(weight.layout, weight.n, weight.kp, x.tokens, c.target.arch)
        return [_mmq_dot(c, same, weight, x, y, terms)]
    in_registers = dispatch.w4a16(weight.layout, weight.n, weight.kp, x.tokens, c.target.arch)
    if in_registers and x.both:
        return w4a16_product(c, in_registers, weight, x, y, terms, lambda: product(c, weight, x, y, terms))
    if x.tokens > INT8_MAX_TOKENS:
        return halves_product(c, weight, x.halves, y, terms)
    shape = dispatch.q8_1(Product(weight.layout, weight.n, weight.kp, x.tokens, c.target.arch))
    return product_in(c, shape, weight, x, y, terms)


def _float8_product(
    c: Context, w: QuantWeight, x: Activation, y: torch.Tensor, terms: Sequence[torch.Tensor]
) -> list[Call]:
    """`product` by e4m3 numbers: of a few tokens by float32 values of both, of more by float16."""
    if (planar := x.planar) is not None:
        return [_float8_matvec(c, w, planar, None, y, terms)]
    in_registers = dispatch.w4a16(w.layout, w.n, w.kp, x.tokens, c.target.arch)
    if in_registers and x.both:
        return w4a16_product(c, in_registers, w, x, y, terms, lambda: _float8_product(c, w, x, y, terms))
    return halves_product(c, w, x.halves, y, terms)


def _float8_matvec(
    c: Context, w: QuantWeight, x: torch.Tensor, experts: ExpertIds | None, y: torch.Tensor,
    terms: Sequence[torch.Tensor],
) -> Call:
    """The call for rows of y, of tokens or of pairs of a token and an expert; x are planar."""
    together = 1 if c.deterministic or experts is not None else max(1, len(y))
    shape = dispatch.matvec(w.layout, w.n, w.kp, together, c.target.arch, pairs=experts is not None)
    return c.launch(
        float8_matvec_kernel, (-(-w.n // shape.block_n), len(y) // together), w.planes(), x, experts,
        _matrices(terms), matrix(y), w.n, TOKENS=together, shape=shape, ASM=c.target.asm, warps=shape.warps,
    )


def product_in(
    c: Context, shape: Shape, w: QuantWeight, x: Activation, y: torch.Tensor, terms: Sequence[torch.Tensor]
) -> list[Call]:
    """The calls of `product` in a shape of the caller's choice."""
    match shape:
        case HopperShape() | StreamKShape() | MultiCtaShape():
            return w4a16_product(c, shape, w, x if x.both else x.halves, y, terms, lambda: product(c, w, x, y, terms))
        case LibraryShape():
            return _unpacked_product(c, w, x.halves, y, terms)
        case PersistentShape():
            return [matvec_persistent.multiply(c, shape, w, x.q8_1, y, terms)]
        case MatvecShape():
            return [_matvec(c, shape, w, x.q8_1, None, y, terms)]
        case MmaShape():
            return [_mmq_mma(c, shape, w, x, y, terms)]
        case DotShape():
            return [_mmq_dot(c, shape, w, x, y, terms)]
        case _:
            raise TypeError(f"no product has a shape of {type(shape).__name__}")


def product_pair(c: Context, weights: Sequence[object], x: Any, outs: Sequence[torch.Tensor]) -> list[Call]:
    """The calls for out = x @ weight.T of two weights at once; none where these are better two calls of `product`."""
    if len(weights) != 2 or c.deterministic or not isinstance(x, Activation):
        return []
    if not all(isinstance(w, QuantWeight) for w in weights):
        return []
    both = cast("Sequence[QuantWeight]", weights)
    if x.tokens <= MATVEC_MAX_TOKENS:
        return _matvec_pair(c, both, x, outs) if x.is_q8_1 else []
    one, other = ((w.layout, w.n, w.kp) for w in both)
    pair = dispatch.w4a16_pair(one, other, x.tokens, c.target.arch)
    if pair is None or not x.both:
        return []

    def apart() -> list[Call]:
        return [call for w, y in zip(both, outs, strict=True) for call in product(c, w, x, y, ())]

    return w4a16_product_pair(c, pair, both, x, outs, apart)


def _matvec_pair(c: Context, weights: Sequence[QuantWeight], x: Activation, outs: Sequence[torch.Tensor]) -> list[Call]:
    found = list[tuple[QuantWeight, MatvecShape]]()
    for w in weights:
        alone = dispatch.q8_1(Product(w.layout, w.n, w.kp, x.tokens, c.target.arch))
        paired = isinstance(alone, MatvecShape) or (isinstance(alone, PersistentShape) and w.layout.bits == 8)
        if w.kp > MOST_PAIRED or not paired:
            return []
        found.append((w, dispatch.matvec(w.layout, w.n, w.kp, x.tokens, c.target.arch)))
    (first, shape), (other, other_shape) = found
    if other_shape.warps != shape.warps:
        other_shape = shape
    programs = -(-first.n // shape.block_n) - (-other.n // other_shape.block_n)
    return [c.launch(
        matvec_pair_kernel, (programs,), first.planes(), other.planes(), x.q8_1.as_words(), *map(matrix, outs),
        first.n, other.n, TOKENS=x.tokens, shape=shape, other_shape=other_shape, ASM=c.target.asm,
        warps=shape.warps,
    )]


def _matvec(
    c: Context, shape: MatvecShape, w: QuantWeight, x: Q8Activation, experts: ExpertIds | None, y: torch.Tensor,
    terms: Sequence[torch.Tensor],
) -> Call:
    """The call for each row of y, of a token or of a pair of a token and an expert."""
    pairs = () if experts is None else (len(y),)
    tokens = len(y) if experts is None else 1
    return c.launch(
        matvec_kernel, (-(-w.n // shape.block_n), *pairs), w.planes(), x.as_words(), experts, _matrices(terms),
        matrix(y), w.n, TOKENS=tokens, shape=shape, ASM=c.target.asm, warps=shape.warps,
    )


def _matrices(terms: Sequence[torch.Tensor]) -> tuple[Matrix, ...]:
    return tuple(map(matrix, terms))


def _mmq_mma(
    c: Context, shape: MmaShape, w: QuantWeight, x: Activation, y: torch.Tensor, terms: Sequence[torch.Tensor],
) -> Call:
    tiles = -(-w.n // (16 * shape.row_tiles))
    splits = c.split_k(tiles, 128 * shape.row_tiles * shape.token_tiles, shape.split_k)
    return c.launch(
        mmq_mma_kernel, (tiles, shape.split_k), w.planes(), x.q8_1, _matrices(terms), matrix(y), splits, w.n,
        x.tokens, shape=shape, STRIDE=x.tp, ASM=c.target.asm, warps=shape.warps,
    )


def _mmq_dot(
    c: Context, shape: DotShape, w: QuantWeight, x: Activation, y: torch.Tensor, terms: Sequence[torch.Tensor],
) -> Call:
    row_tiles, token_tiles = -(-w.n // shape.block_n), -(-x.tokens // shape.block_m)
    splits = c.split_k(row_tiles * token_tiles, shape.block_m * shape.block_n, shape.split_k)
    return c.launch(
        mmq_dot_kernel, (row_tiles, token_tiles, shape.split_k), w.planes(torch.int8), x.q8_1, _matrices(terms),
        matrix(y), splits, w.n, x.tokens, shape=shape, STRIDE=x.tp, ASM=c.target.asm, warps=shape.warps,
        stages=shape.stages,
    )


def halves_product(
    c: Context, w: QuantWeight, x: torch.Tensor, y: torch.Tensor, terms: Sequence[torch.Tensor] = ()
) -> list[Call]:
    """The calls for y [T, n] = x float16 [T, kp] @ w.T + terms: weights become float16 in registers; or, where that has
    no kernel, in memory that all products share, for a library product."""
    shape = dispatch.w4a16(w.layout, w.n, w.kp, len(x), c.target.arch)
    if shape:
        return w4a16_product(c, shape, w, x, y, terms, lambda: halves_product(c, w, x, y, terms))
    return _unpacked_product(c, w, x, y, terms)


def _unpacked_product(
    c: Context, w: QuantWeight, x: torch.Tensor, y: torch.Tensor, terms: Sequence[torch.Tensor]
) -> list[Call]:
    """By weights that become float16, some rows after the other, in memory that all such products share."""
    calls: list[Call] = []
    for rows in dispatch.row_slabs(w.n, w.kp):
        part = replace(w, n=len(range(*rows.indices(w.n))), parts={name: p[rows] for name, p in w.parts.items()})
        halves, unpack = unpacked(c, part)
        calls += [unpack, partial(library_product, x, halves, y[:, rows])]
    return calls + _added(c, y, terms)


def unpacked(c: Context, w: QuantWeight) -> tuple[torch.Tensor, Call]:
    """Memory for the weights as float16 [n, kp], which lasts until the next call, and the call that fills it."""
    halves = c.shared("weights", w.n * w.kp, torch.float16).view(w.n, w.kp)
    rows, chunks = dispatch.unpacking(w.kp)
    grid = (-(-w.n // rows), -(-w.kp // (32 * chunks)))
    return halves, c.launch(
        dequantize_kernel, grid, w.planes(), None, matrix(halves), w.n, w.n, w.kp, BLOCK_N=rows, CHUNKS=chunks,
        ASM=c.target.asm,
    )


def library_product(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, *, add: bool = False) -> None:
    """y f32 [T, N] = x [T, K] @ w [N, K].T by the vendor's library, or what y was and that; in f32 on the CPU
    (interpreted kernels).

    Large matrices of f32 are multiplied as tf32, numbers of 11 bits; small ones, such as those that choose experts, and
    that no time goes into, as they are.
    """
    if x.device.type == "cpu":
        for rows in dispatch.row_slabs(*w.shape):
            torch.addmm(y[:, rows], x.float(), w[rows].float().T, beta=int(add), out=y[:, rows])
    elif x.dtype == torch.float32:
        with _tensor_cores(w):
            torch.addmm(y, x, w.T, beta=int(add), out=y)
    else:
        torch.addmm(y, x, w.T, beta=int(add), out_dtype=torch.float32, out=y)


@contextmanager
def _tensor_cores(w: torch.Tensor) -> Iterator[None]:
    """Let the library multiply f32 numbers of a large matrix [N, K] with tensor cores."""
    of_library = torch.backends.cuda.matmul
    before = of_library.fp32_precision
    of_library.fp32_precision = "tf32" if len(w) >= TF32_MIN_ROWS else before
    try:
        yield
    finally:
        of_library.fp32_precision = before


def _added(c: Context, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> list[Call]:
    return [launch_pointwise(c, "add", (y, term), y, {}) for term in terms]


def library_multiplies(c: Context, weight: object, y: torch.Tensor) -> bool:
    """Whether a product y [T, n] is left to the library: by a matrix of floats, of more than one token."""
    if c.deterministic or not isinstance(weight, FloatWeight) or weight.experts > 1:
        return False
    small = weight.data.dtype == torch.float32 and weight.n * weight.k <= SMALL_MATRIX
    return len(y) > (SMALL_MATRIX_TOKENS if small else dispatch.FLOAT_MATVEC_MAX_TOKENS)


def _float_product(
    c: Context, w: FloatWeight, x: torch.Tensor, y: torch.Tensor, terms: Sequence[torch.Tensor]
) -> list[Call]:
    """The calls for y [T, n] = x [T, k] @ w.T + terms: tensor cores of the library read the weights as they lie."""
    if not library_multiplies(c, w, y):
        return [_float_matvec(c, w, x, None, y, terms)]
    weights, calls = w.data[0], list[Call]()
    if x.dtype != weights.dtype:  # of few formats, such as integers
        rounded = c.shared("float inputs", x.numel(), weights.dtype).view(x.shape)
        if not c.holds("float inputs", x):
            calls.append(c.launch(activations.float_kernel, (len(x), -(-w.k // 1024)), Source(matrix(x)),
                                  matrix(rounded), None, w.k, w.k, KIND="values", B=1024, PLANES=1))
        x = rounded
    library = partial(_library_product, c, x, weights, y, terms)
    streams = weights.dtype in STREAMK_KINDS and len({t.ndim for t in terms}) == len(terms)
    return [*calls, *(streamk_product(c, x, weights, None, y, terms, library) if streams else library())]


def _library_product(
    c: Context, x: torch.Tensor, weights: torch.Tensor, y: torch.Tensor, terms: Sequence[torch.Tensor]
) -> list[Call]:
    if terms and terms[-1].data_ptr() == y.data_ptr():
        return [partial(library_product, x, weights, y, add=True), *_added(c, y, terms[:-1])]
    return [partial(library_product, x, weights, y), *_added(c, y, terms)]


def _float_matvec(
    c: Context, w: FloatWeight, x: torch.Tensor, experts: ExpertIds | None, y: torch.Tensor,
    terms: Sequence[torch.Tensor],
) -> Call:
    rows, warps = (64, 1) if c.target.arch == "interpreter" else (8, 8)
    return c.launch(
        float_matvec_kernel, (-(-w.n // rows), len(y)), w.data, matrix(x), experts, _matrices(terms), matrix(y), w.n,
        w.k, BLOCK_N=rows, BLOCK_K=min(512, 1 << (w.k - 1).bit_length()), warps=warps,
    )


def product_by_id(c: Context, w: Weight, x: Any, ids: torch.Tensor, out: torch.Tensor, sharing: int) -> list[Call]:
    """out [T, used, n]: row i = (token, choice) is expert ids[i] times row i // sharing of x.

    For quantized weights x is a `Q8Activation`, planes for those that are e4m3 numbers.
    """
    y, experts = out.view(-1, w.n), ExpertIds(ids, sharing)
    if isinstance(w, FloatWeight):
        return [_float_matvec(c, w, x, experts, y, ())]
    if w.layout.float8:
        return [_float8_matvec(c, w, x, experts, y, ())]
    shape = dispatch.matvec(w.layout, w.n, w.kp, 1, c.target.arch, pairs=True)
    return [_matvec(c, shape, w, x, experts, y, ())]


def rows_of(c: Context, w: QuantWeight, ids: torch.Tensor, out: torch.Tensor) -> Call:
    """out f32 [T, k]: rows of the weights."""
    grid = (len(out), -(-w.kp // 1024))
    return c.launch(
        dequantize_kernel, grid, w.planes(), ids, matrix(out), w.n, len(out), w.k, BLOCK_N=1, CHUNKS=32,
        ASM=c.target.asm, warps=1,
    )
