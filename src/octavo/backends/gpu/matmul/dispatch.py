"""Which kernel of products, in which shape, for how many tokens: as tuned tables say, by one lookup. `attention_tiles`
is that of attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.matmul.experts.expert_shapes import (
    ExpertsGroupedShape,
    ExpertsHopperShape,
    ExpertsMmaShape,
    ExpertsShape,
)
from octavo.backends.gpu.matmul.matvec.matvec_shape import MATVEC_MAX_TOKENS, MatvecShape
from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import PersistentShape
from octavo.backends.gpu.matmul.mmq.mmq_shapes import INT8_MAX_TOKENS, MMA_MIN_TOKENS, DotShape, MmaShape
from octavo.backends.gpu.matmul.product import Product, Shape
from octavo.backends.gpu.matmul.tuned import tuned_table as tuned
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import (
    FLOAT8_MIN_TOKENS,
    MIN_TOKENS,
    ORDERED_MAX_TOKENS,
    STEP_BYTES,
    MultiCtaPair,
    MultiCtaShape,
    W4A16Shape,
    min_tokens,
    stage_bytes,
)
from octavo.backends.gpu.weights.layout import PlaneLayout

Kind = Literal["q8_1", "f16"]
ExpertShape = ExpertsMmaShape | ExpertsShape | ExpertsHopperShape | ExpertsGroupedShape
FLOAT_MATVEC_MAX_TOKENS = 1
"""The most tokens of a matvec by weights that are floats; more are the library's, with tensor cores."""
SLAB_VALUES = 28 << 20
"""Values that are made float16 together, 56 MiB of them."""
BYTES = PlaneLayout(8, 32, 32, "f16", has_min=False, min_bits=0, signed=True, offset=0, table=None)
"""The layout of Q8_0."""


def choose(section: tuned.Section, p: Product, *among: type[Shape]) -> Any:
    """The first of the choices of the nearest products that is a shape of `among` and computes this one."""
    return _choose(section, p, among, gluon.given_up())


@tuned.remembered
def _choose(section: tuned.Section, p: Product, among: tuple[type[Shape], ...], _given_up: frozenset[str]) -> Any:
    return next(shape for _, shape in choices(section, p, *among))


def choices(section: tuned.Section, p: Product, *among: type[Shape]) -> Iterator[tuple[tuned.Choice, Shape]]:
    """All choices that are shapes of `among` and compute a product, with these, from the nearest product's on."""
    kernels = {each.name: each for each in among}
    for name, numbers in tuned.nearest(section, p):
        if name not in kernels or (p.layout.float8 and kernels[name].of_codes):
            continue
        if (shape := kernels[name].of(p, *numbers)) is not None:
            yield (name, numbers), shape


def activation(tokens: int) -> Kind:
    """What a product of quantized weights wants: int8 by groups, or float16."""
    return "q8_1" if tokens <= INT8_MAX_TOKENS else "f16"


def ordered(tokens: int, arch: str, least: int = MIN_TOKENS) -> bool:
    """Whether activations are kept in the order of `w4a16.hopper_kernel`, too; `least` tokens have a use for it."""
    return arch == "sm_90" and least <= tokens <= ORDERED_MAX_TOKENS and gluon.usable("w4a16")


def planar(tokens: int, arch: str) -> bool:
    """Whether weights that are e4m3 numbers are multiplied with so few tokens by `matvec.float8_kernel`."""
    by_tensor_cores = arch == "sm_90" and gluon.usable("w4a16")
    return tokens < (FLOAT8_MIN_TOKENS if by_tensor_cores else MATVEC_MAX_TOKENS + 1)


def padded_tokens(tokens: int, *, full: bool = False) -> int:
    """Tokens between two groups' scales: TP of `activations`; of full tiles, or no more than needed.

    Kernels are compiled for each, so full tiles are a power of two.
    """
    if full:
        return max(INT8_MAX_TOKENS, 1 << (tokens - 1).bit_length())
    return tokens if tokens < MMA_MIN_TOKENS else -(-tokens // 8) * 8


def q8_1(p: Product) -> MatvecShape | PersistentShape | MmaShape | DotShape:
    """The shape of a product of up to 32 tokens by integer sums."""
    found: MatvecShape | PersistentShape | MmaShape | DotShape
    found = choose("products", p, MatvecShape, PersistentShape, MmaShape, DotShape)
    return found


def matvec(layout: PlaneLayout, n: int, kp: int, tokens: int, arch: str, *, pairs: bool = False) -> MatvecShape:
    """The shape of a matvec; pairs: of a token and an expert, each with rows of its own, of which there are many."""
    shape: MatvecShape = choose("pairs" if pairs else "products", Product(layout, n, kp, tokens, arch), MatvecShape)
    return shape


def persistent(layout: PlaneLayout, n: int, kp: int, arch: str) -> PersistentShape | None:
    """The shape of one token by a kernel whose programs take row after row; None where a matvec is faster."""
    found = q8_1(Product(layout, n, kp, 1, arch))
    return found if isinstance(found, PersistentShape) else None


def deterministic(layout: PlaneLayout, n: int, kp: int, tokens: int, arch: str) -> DotShape:
    """The shape of a product with any number of tokens, whose sums are in one order whatever that number is.

    That order comes from how K is divided among warps and programs, and from rows of weights a program; so all of these
    are those of a full tile of tokens, and only the width of a tile differs.
    """
    full: DotShape = choose("products", Product(layout, n, kp, INT8_MAX_TOKENS, arch), DotShape)
    return replace(full, block_m=DotShape.width(tokens, arch))


def w4a16(layout: PlaneLayout, n: int, kp: int, tokens: int, arch: str) -> W4A16Shape | None:
    """The shape of a product with some tokens whose weights become float16 in registers, or None for another way."""
    if arch != "sm_90" or tokens < min_tokens(layout):
        return None
    found = choose("products", Product(layout, n, kp, tokens, arch), *Shape.kinds.values())
    return found if isinstance(found, W4A16Shape) else None


def w4a16_pair(
    one: tuple[PlaneLayout, int, int], other: tuple[PlaneLayout, int, int], tokens: int, arch: str
) -> MultiCtaPair | None:
    """The shape of products of the same tokens by two matrices (layout, n, kp) in one launch, or None for two.

    Programs of the second are as many to a multiprocessor as those of the first: their rings may hold fewer stages.
    """
    shape, apart = w4a16(*one, tokens, arch), w4a16(*other, tokens, arch)
    if not isinstance(shape, MultiCtaShape) or not isinstance(apart, MultiCtaShape):
        return None
    fitting = STEP_BYTES // shape.resident // (shape.depth * stage_bytes(other[0], shape.block_m, shape.block_n))
    return MultiCtaPair(one[0], shape, other[0], replace(shape, stages=max(2, min(shape.stages, fitting))))


def experts(layout: PlaneLayout, n: int, kp: int, average: float, arch: str) -> ExpertShape:
    """The shape of products with experts, `average` pairs of a token and an expert for each."""
    shape: ExpertShape = choose(
        "experts", Product(layout, n, kp, max(1, int(average)), arch), *ExpertShape.__args__
    )
    return shape


def portable_experts(layout: PlaneLayout | None, n: int, kp: int, average: float, arch: str) -> ExpertsShape:
    """As `experts`, by a kernel that there is on all devices, and for all weights: None is the layout of floats, which
    have no class of their own."""
    p = Product(layout or BYTES, n, kp, max(1, int(average)), arch)
    shape: ExpertsShape = choose("experts", p, ExpertsShape)
    return shape


def unpacking(kp: int) -> tuple[int, int]:
    """Rows and chunks of a program that makes weights float16: a row of 4096, or less of two."""
    return (1, 128) if kp % 4096 == 0 else (2, 32)


def row_slabs(n: int, k: int) -> list[slice]:
    """The rows of a matrix [n, k] in as few parts of one size as have at most SLAB_VALUES each."""
    most = max(128, SLAB_VALUES // k)
    step = -(-n // (-(-n // most) * 128)) * 128
    return [slice(start, start + step) for start in range(0, n, step)]
