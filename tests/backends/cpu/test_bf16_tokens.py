"""Activations as matrix tiles take them, which need no tiles to be made."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.cpu.matmul.amx_kernel import tokens_kernel
from octavo.formats.scalars import bf16_to_f32, f32_to_bf16
from octavo.formats.spec import F32, AnyArray
from octavo.jit.program import KernelCall


def cut(x: F32) -> AnyArray:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("parts", [1, 2])
def test_tokens_in_tiles(parts: int) -> None:
    """[tile, 32 of K, part, 16 tokens, 32]: rounded, or cut and what that left; zeros past K; NaN and infinity stay."""
    x = np.random.default_rng(0).standard_normal((19, 70)).astype(np.float32)
    x[3, 5], x[18, 69], x[4, 6] = np.inf, np.nan, 3.4e38
    out = np.full((2, 3, parts, 16, 32), 7, np.uint16)
    call = KernelCall(tokens_kernel(parts), 4, out=out, x=x, x_stride=x.strides[0], tokens=19, k=70, chunks=2)
    call.run()
    padded = np.zeros((32, 96), np.float32)
    padded[:19, :70] = x
    upper = f32_to_bf16(padded) if parts == 1 else cut(padded)
    with np.errstate(invalid="ignore"):
        lower = cut(padded - bf16_to_f32(upper))
    expected = np.stack([upper, lower][:parts]).reshape(parts, 2, 16, 3, 32).transpose(1, 3, 0, 2, 4)
    found, wanted = (bf16_to_f32(v.transpose(0, 3, 2, 1, 4).reshape(32, parts, 96)[:19]) for v in (out, expected))
    np.testing.assert_array_equal(found, wanted)
