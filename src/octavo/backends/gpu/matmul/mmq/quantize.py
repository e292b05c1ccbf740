"""An activation quantizer as a function: `quantize_mmq_q8_1`, with its definition in NumPy."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from octavo.backends.gpu.launch.arguments import Pointer
from octavo.errors import UsageError
from octavo.formats.spec import F32, U8, AnyArray

MmqLayout = Literal["D4", "DS4", "D2S6"]

MMQ_LAYOUTS: dict[str, MmqLayout] = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_1", "Q4_K", "Q5_K", "IQ1_S"), "DS4"),
    "Q2_K": "D2S6",
    **dict.fromkeys(
        ("Q1_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
         "MXFP4", "NVFP4"), "D4",
    ),
}
"""By type of the weights, as llama.cpp's products (`mmq_get_q8_1_ds_layout`) read activations; docs/formats.md: why."""

BLOCK = 128  # values of a block
HEAD = 16  # bytes of scales and sums before them


class SampledRows(NamedTuple):
    """float32 [samples, channels, rows, K], and elements from a row, a channel and a sample to the next."""

    data: Pointer
    row: int
    channel: int
    sample: int


class MmqBlocks(NamedTuple):
    """The same bytes, [samples, channels, Kp / 128, rows, 144], as int8, float32 and float16."""

    codes: Pointer
    floats: Pointer
    halves: Pointer


def mmq_reference(x: F32, layout: MmqLayout, padded: int, ids: npt.NDArray[np.int32] | None = None) -> U8:
    """x float32 [samples, channels, rows, K] -> uint8 [samples, channels, padded / 128, rows, 144].

    A block is 16 bytes of scales and sums, then 128 codes s8: q = round(x * (127 / amax)), halves away from zero, and
    d = 1 / (127 / amax), as llama.cpp divides: an ulp off amax / 127 at places. D4: four f32 d, one for 32 values. DS4:
    four pairs of f16, d and the sum of the 32 values before rounding. D2S6: f16 d for each 64 values, then f16 sums of
    16 values each, of the first 96. Sums add neighbours, then neighbouring sums. K is padded with zeros; `ids` names
    the rows to take.
    """
    x = x if ids is None else x[:, :, ids]
    samples, channels, rows, k = x.shape
    x = np.pad(x, ((0, 0), (0, 0), (0, 0), (0, padded - k))).reshape(samples, channels, rows, -1, BLOCK)
    x = np.ascontiguousarray(x.swapaxes(2, 3))  # [samples, channels, blocks, rows, 128]
    groups = x.reshape(*x.shape[:-1], 2 if layout == "D2S6" else 4, -1)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
    scaled = groups * inverse
    whole = np.trunc(scaled)
    codes = (whole + np.sign(scaled) * (np.abs(scaled - whole) >= 0.5)).astype(np.int8).reshape(x.shape)
    with np.errstate(divide="ignore"):
        d = np.where(largest > 0, np.float32(1) / inverse, np.float32(0))[..., 0]
    head: AnyArray
    if layout == "D4":
        head = d
    elif layout == "DS4":
        head = np.stack([d, _tree_sum(groups)], axis=-1).astype(np.float16).reshape(*x.shape[:-1], 8)
    else:
        sums = _tree_sum(x.reshape(*x.shape[:-1], 8, 16))[..., :6]
        head = np.concatenate([d, sums], axis=-1).astype(np.float16)
    return np.concatenate([np.ascontiguousarray(head).view(np.uint8), codes.view(np.uint8)], axis=-1)


def _tree_sum(x: F32) -> F32:
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


def mmq_layout(weights: str) -> MmqLayout:
    """The layout of blocks that llama.cpp's product with weights of this GGUF type reads, such as "D4" for "Q8_0".

    Raises UsageError for a type that it has no such product for.
    """
    try:
        return MMQ_LAYOUTS[weights]
    except KeyError:
        raise UsageError(f"weights of type {weights!r} (allowed: {', '.join(MMQ_LAYOUTS)})") from None


def quantize_mmq_q8_1(x: Any, layout: MmqLayout, padded: int | None = None, ids: Any = None) -> Any:
    """A torch float32 tensor [samples, channels, rows, K] on the device, of any strides but 1 along K, in blocks of
    q8_1.

    Returns uint8 [samples, channels, padded / 128, rows, 144], as `mmq_reference` defines it. `padded` is K rounded up
    to 512 unless given; `ids`, int32 [rows of the result], names the rows to take. Raises UsageError for a layout,
    shape or padding that is not allowed.
    """
    import torch

    from octavo.backends.gpu.matmul.mmq.quantize_kernel import quantize_mmq_kernel

    if layout not in get_args(MmqLayout):
        raise UsageError(f"layout {layout!r} (allowed: {', '.join(get_args(MmqLayout))})")
    if x.ndim != 4 or x.dtype != torch.float32 or (x.shape[3] > 1 and x.stride(3) != 1):
        raise UsageError(
            f"x is {x.dtype} {list(x.shape)} (allowed: float32 [samples, channels, rows, K], K contiguous)"
        )
    samples, channels, rows, k = x.shape
    rows = rows if ids is None else len(ids)
    padded = -(-k // 512) * 512 if padded is None else padded
    if padded < k or padded % BLOCK:
        raise UsageError(f"padded is {padded} (allowed: multiples of {BLOCK} from {k} on)")
    out = torch.empty((samples, channels, padded // BLOCK, rows, HEAD + BLOCK), dtype=torch.uint8, device=x.device)
    quantize_mmq_kernel[rows, padded // BLOCK, samples * channels](
        SampledRows(x, x.stride(2), x.stride(1), x.stride(0)), ids,
        MmqBlocks(out.view(torch.int8), out.view(torch.float32), out.view(torch.float16)), k, rows, channels,
        LAYOUT=layout, num_warps=1, enable_fp_fusion=False,
    )
    return out
