"""What the format tests share: the gguf package as oracle, random tensors, and a comparison of float bits."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType
from gguf import quants as gguf_quants

from octavo.formats import FORMATS, BlockFormat, QTensor

# No decoder for these in the gguf package: held to definitions of their own.
WITHOUT_ORACLE = {"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"}
WITH_ORACLE = [f for f in FORMATS if f.name not in WITHOUT_ORACLE]
BLOCK_FORMATS = [f for f in FORMATS if not f.is_float]
ENCODED_BY_GGUF = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"}


def by_oracle(fmt: BlockFormat, data: np.ndarray) -> np.ndarray:
    """Packed rows decoded by the gguf package."""
    with np.errstate(all="ignore"):
        return gguf_quants.dequantize(np.ascontiguousarray(data), GGMLQuantizationType(fmt.gguf))


def encoded_by_oracle(fmt: BlockFormat, x: np.ndarray) -> np.ndarray:
    """Values packed by the gguf package."""
    with np.errstate(all="ignore"):
        return gguf_quants.quantize(x, GGMLQuantizationType(fmt.gguf)).view(np.uint8)


def tensor(fmt: BlockFormat, data: np.ndarray) -> QTensor:
    """Packed rows uint8 [..., bytes] as a tensor."""
    return QTensor(fmt, (*data.shape[:-1], data.shape[-1] // fmt.block_bytes * fmt.block), data)


def random_tensor(fmt: BlockFormat, rows: int = 24, k: int = 1024, seed: int = 0, *, finite: bool = False) -> QTensor:
    """Random bytes as blocks. With `finite`, no floating field holds Inf or NaN."""
    blocks = np.random.default_rng(seed).integers(0, 256, (rows, k // fmt.block, fmt.block_bytes), dtype=np.uint8)
    offset = 0
    for f in fmt.fields:
        if finite and f.kind in ("f16", "f32", "f64", "bf16", "e8m0", "ue4m3"):
            high_bytes = blocks[..., offset : offset + f.nbytes].reshape(rows, -1, f.dtype.itemsize)[..., -1]
            # an exponent bit cleared; in bytes also bit 7, so that no two of them read as the same value
            cleared = high_bytes & (0x3F if f.nbytes == f.count else 0xBB)
            blocks[..., offset + f.dtype.itemsize - 1 : offset + f.nbytes : f.dtype.itemsize] = cleared.reshape(
                rows, k // fmt.block, -1
            )
        offset += f.nbytes
    return tensor(fmt, blocks.reshape(rows, -1))


def same_bits(got: np.ndarray, want: np.ndarray) -> bool:
    """Equal float32 bit for bit where a number is wanted, and NaN exactly where NaN is wanted."""
    assert got.dtype == want.dtype == np.float32
    nan = np.isnan(want)
    return (
        got.shape == want.shape
        and np.array_equal(nan, np.isnan(got))
        and np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))
    )
