"""Shapes of products that measured fastest on one H100 or H200, by kind of layout and of matrix. Others take them too.

They come from timing each of some twenty shapes on the matrices of `bench/gpu_ops.py`, weights rotated beyond the L2.
"""

from __future__ import annotations

from typing import Literal

from octavo.backends.gpu.weights.layout import PlaneLayout

Kind = Literal["int8", "group16", "two levels", "one level", "zero_point"]
Size = Literal["small", "wide", "huge", "deep"]


def kind(layout: PlaneLayout) -> Kind:
    """What decides how many instructions unpacking takes: bytes, groups of 16, scales or zero points."""
    if layout.bits == 8:
        return "int8"
    if layout.group == 16:
        return "group16"
    if layout.has_zero:
        return "zero_point"
    return "two levels" if layout.two_level else "one level"


def size(n: int, kp: int) -> Size:
    """Few rows, many, those of a vocabulary, or rows that are long."""
    if n >= 65536:
        return "huge"
    if kp > 8192:
        return "deep"
    return "wide" if n >= 8192 else "small"


MATVEC: dict[tuple[Kind, Size], tuple[int, int, int, int]] = {
    # rows and chunks of a program, blocks of chunks loaded ahead, warps
    ("int8", "small"): (2, 64, 2, 2), ("one level", "small"): (2, 64, 2, 2),
    ("int8", "wide"): (2, 64, 2, 2), ("one level", "wide"): (4, 64, 1, 2),
    ("int8", "huge"): (2, 64, 2, 2), ("one level", "huge"): (2, 64, 2, 2),
    ("int8", "deep"): (2, 64, 4, 2), ("one level", "deep"): (4, 128, 2, 4),
    ("two levels", "small"): (4, 32, 4, 1), ("group16", "small"): (4, 32, 4, 1),
    ("two levels", "wide"): (2, 128, 1, 4), ("group16", "wide"): (4, 64, 1, 2),
    ("two levels", "huge"): (2, 64, 2, 2), ("group16", "huge"): (2, 64, 2, 2),
    ("two levels", "deep"): (2, 64, 4, 2), ("group16", "deep"): (2, 64, 4, 2),
    ("zero_point", "small"): (2, 64, 2, 2), ("zero_point", "wide"): (4, 64, 1, 2),
    ("zero_point", "huge"): (2, 64, 2, 2), ("zero_point", "deep"): (4, 128, 2, 4),
}
"""One token."""

LOOKED_UP: dict[Size, tuple[int, int, int, int]] = {
    "small": (8, 64, 2, 2), "wide": (4, 32, 4, 1), "deep": (4, 64, 1, 2)
}
"""One token and codes that are looked up in a table, with two levels of scales, where it is another shape."""

TWO_BITS: dict[Size, tuple[int, int, int, int]] = {"small": (4, 128, 1, 4), "deep": (4, 64, 2, 2)}
"""One token and codes of two bits with one level of scales, where it is another shape."""

LONG: dict[tuple[Kind, Size], tuple[int, int, int, int]] = {
    ("group16", "small"): (4, 64, 3, 2), ("int8", "small"): (2, 32, 6, 1),
}
"""One token and rows of 6144 values, where it is another shape."""
LONG_2: dict[tuple[Kind, Size], tuple[int, int, int, int]] = {("zero_point", "small"): (4, 64, 3, 2)}
"""The same of two tokens."""

SHORT: dict[tuple[Kind, int, bool], tuple[int, int, int, int]] = {
    ("int8", 1, False): (4, 32, 2, 1), ("one level", 1, False): (4, 32, 2, 1), ("two levels", 1, False): (4, 64, 1, 2),
    ("group16", 1, False): (8, 32, 2, 1), ("zero_point", 1, False): (4, 64, 1, 2),
    ("one level", 1, True): (8, 32, 1, 1), ("zero_point", 1, True): (8, 32, 1, 1),
    ("one level", 2, False): (4, 32, 2, 1), ("zero_point", 2, False): (4, 32, 2, 1),
    ("one level", 2, True): (8, 32, 1, 1), ("zero_point", 2, True): (8, 32, 1, 1),
}
"""Rows of 2048 values, by tokens and whether they are 8192 or more."""
SHORT_OTHERS, SHORT_HUGE = (8, 32, 2, 1), (4, 32, 2, 1)
"""Others of these, and a vocabulary of bytes."""

MMA: dict[tuple[Kind, Size], tuple[int, int, int, int]] = {
    # tiles of 16 rows and warps of a program, split-K, what is loaded ahead
    ("int8", "small"): (1, 4, 1, 1), ("one level", "small"): (1, 4, 2, 2),
    ("int8", "wide"): (2, 2, 1, 1), ("one level", "wide"): (2, 2, 1, 1),
    ("int8", "huge"): (1, 4, 1, 1), ("one level", "huge"): (1, 4, 1, 0),
    ("int8", "deep"): (1, 4, 1, 2), ("one level", "deep"): (1, 8, 1, 1),
    ("two levels", "small"): (1, 8, 1, 1), ("group16", "small"): (1, 4, 1, 2),
    ("two levels", "wide"): (2, 2, 1, 1), ("group16", "wide"): (1, 2, 1, 2),
    ("two levels", "huge"): (1, 4, 1, 0), ("group16", "huge"): (1, 2, 1, 0),
    ("two levels", "deep"): (1, 4, 2, 1), ("group16", "deep"): (1, 4, 1, 2),
    ("zero_point", "small"): (1, 4, 2, 2), ("zero_point", "wide"): (1, 2, 1, 2),
    ("zero_point", "huge"): (1, 4, 1, 0), ("zero_point", "deep"): (1, 8, 1, 1),
}
"""Three to eight tokens."""
MMA_SQUARE: dict[Kind, tuple[int, int, int, int]] = {"two levels": (1, 4, 1, 2)}
"""These, up to 2048 rows of as many values."""

MMA_16: dict[tuple[Kind, Size], tuple[int, int, int, int]] = {
    ("int8", "small"): (1, 4, 1, 1), ("one level", "small"): (1, 8, 1, 0),
    ("int8", "wide"): (1, 4, 1, 0), ("one level", "wide"): (1, 4, 1, 0),
    ("int8", "deep"): (1, 4, 1, 1), ("one level", "deep"): (1, 8, 1, 0),
    ("two levels", "small"): (1, 8, 1, 0), ("group16", "small"): (1, 8, 1, 0),
    ("two levels", "wide"): (1, 4, 1, 0), ("two levels", "deep"): (1, 8, 1, 0),
    ("group16", "deep"): (1, 8, 1, 0), ("zero_point", "small"): (1, 8, 1, 0),
    ("zero_point", "wide"): (1, 4, 1, 0), ("zero_point", "deep"): (1, 8, 1, 0),
}
MMA_32: dict[tuple[Kind, Size], tuple[int, int, int, int]] = {
    ("int8", "small"): (1, 4, 1, 0), ("int8", "deep"): (1, 4, 1, 0),
    ("one level", "small"): (1, 4, 1, 0), ("zero_point", "small"): (1, 4, 1, 0),
    ("two levels", "small"): (1, 4, 1, 0), ("two levels", "deep"): (1, 4, 1, 0),
    ("group16", "small"): (1, 4, 1, 0), ("group16", "deep"): (1, 4, 1, 0),
}
"""Up to 16 and 32 tokens; for those that are not here `mmq_dot` is as fast or faster."""

W4A16Tile = tuple[int, int, int] | tuple[int, int, int, int, int] | tuple[int, int, int, int, int, int]
"""Of stream-K: tokens, rows, stages. Of whole tiles: these, warps, and how many programs run at once. Of stream-K with
several programs to a multiprocessor: these, warps, programs to a multiprocessor, and tiles of 128 values of a stage."""

MULTICTA: tuple[tuple[int, W4A16Tile], ...] = ((16, (16, 128, 3, 4, 2, 2)), (32, (32, 64, 3, 4, 2, 2)))
"""Most tokens, and the shape for weights of 4 and 6 bits."""
MULTICTA_8, MULTICTA_8_NARROW = (8, 128, 3, 4, 2, 2), (8, 64, 3, 4, 4, 2)
"""Five to eight tokens; the second for 4 bits, unless rows are those of a vocabulary."""
WIDE, HEADS = 2048, 1024
"""Values of a token from which on that is faster than `mmq_mma`, and rows of keys or values that such a model has."""
STREAMK: tuple[tuple[int, dict[Size, W4A16Tile]], ...] = (
    # most tokens, and shapes by size; where one is missing, that of HOPPER is faster
    (16, {"small": (16, 128, 4), "wide": (16, 256, 4), "deep": (16, 128, 4), "huge": (16, 256, 6)}),
    (32, {"small": (32, 128, 4), "wide": (32, 256, 6), "huge": (32, 256, 4)}),
    (64, {"huge": (64, 128, 4)}),
    (128, {"huge": (128, 128, 4)}),
    (256, {"huge": (128, 128, 4)}),
)
HOPPER: tuple[tuple[int, dict[Size, W4A16Tile]], ...] = (
    (16, dict.fromkeys(("small", "wide", "deep", "huge"), (16, 64, 4, 4, 528))),
    (32, {**dict.fromkeys(("small", "wide", "deep"), (32, 64, 3, 4, 528)), "huge": (32, 128, 3, 4, 528)}),
    (64, {"small": (64, 64, 4, 4, 264), "wide": (64, 128, 3, 4, 264), "deep": (64, 64, 4, 4, 264),
          "huge": (64, 128, 3, 4, 264)}),
    (128, {"small": (128, 64, 3, 4, 132), "wide": (128, 64, 3, 4, 132), "deep": (128, 128, 3, 8, 132),
           "huge": (128, 128, 2, 8, 132)}),
    (256, {"small": (256, 64, 3, 4, 132), "wide": (256, 64, 3, 4, 132), "deep": (256, 64, 3, 4, 132),
           "huge": (128, 128, 2, 8, 132)}),
)


def _of_wide_model(n: int, kp: int) -> bool:
    """Whether a matrix belongs to a model so wide that its products of five to eight tokens take one kernel, but for
    the smallest.

    One with much shared memory among others that want none costs all of them 5 us or more, whichever is the faster.
    """
    return kp >= WIDE and (n <= HEADS or (n >= WIDE and n * kp > WIDE * WIDE))


def w4a16(layout: PlaneLayout, n: int, kp: int, tokens: int, streamk: bool, multicta: bool) -> W4A16Tile | None:
    """The shape of a product whose weights become float16 in registers, as one H200 has it fastest on the products of
    Llama 3 8B in Q4_K_M; None where int8 is faster. More than 256 tokens take tiles of 128.

    streamk, multicta  there are kernels for them
    """
    which = size(n, kp)
    if tokens <= 32 and multicta and layout.bits < 8:
        if tokens > 8:
            return next(shape for most, shape in MULTICTA if tokens <= most)
        if tokens > 4 and (_of_wide_model(n, kp) or which == "huge"):
            return MULTICTA_8_NARROW if layout.bits == 4 and which != "huge" else MULTICTA_8
    if tokens <= 8:
        return None
    if tokens > 256:
        tokens = 128
    for table in (STREAMK, HOPPER) if streamk else (HOPPER,):
        shapes = next(shapes for most, shapes in table if tokens <= most)
        if which in shapes:
            break
    if which == "small" and tokens > 64 and (n < 2048 or (n > 4096 and tokens <= 128)):
        return (128, 64, 3, 4, 132) if n < 2048 else (128, 128, 3, 8, 132)
    return shapes[which]
