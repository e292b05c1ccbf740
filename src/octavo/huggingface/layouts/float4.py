"""Weights of E2M1 numbers, two in a byte, the first in its low half: MXFP4 and NVFP4, GGUF's types of these names."""

from __future__ import annotations

import numpy as np

from octavo.formats import Planes, by_name
from octavo.formats.scalars import e8m0_half_to_f32, ue4m3_half_to_f32
from octavo.formats.spec import F32
from octavo.huggingface.layouts.bits import codes_of
from octavo.huggingface.layouts.module import HALVES, Module, Part
from octavo.io.gguf import LazyTensor


def mxfp4(module: Module, codes_end: str, scale_end: str) -> LazyTensor:
    """U8 codes [N, K / 2] and exponents U8 or F8_E8M0 [N, K / 32]: w = e2m1 * 2^(exponent - 127)."""
    codes = module.take(codes_end, ("U8",), (None, None))
    n, k = codes.shape[0], codes.shape[1] * 2
    if k % 32:
        raise module.error(codes_end, f"has rows of {k} values", "multiples of 32")
    scale = module.take(scale_end, ("U8", "F8_E8M0"), (n, k // 32))

    def load() -> Part:
        raw, exponents = codes.array(), scale.array()
        if (exponents == 255).any():
            raise module.error(scale_end, "has exponents of 255, which are NaN", "0 to 254")
        return lambda part: Planes(codes_of(raw[part], 4), d=e8m0_half_to_f32(exponents[part]))

    return module.weight(by_name("MXFP4"), n, k, load)


def nvfp4(module: Module, codes_end: str, scale_end: str, global_end: str, *, divides: bool) -> list[LazyTensor]:
    """U8 codes [N, K / 2], scales F8_E4M3 [N, K / 16] and one for the tensor, which divides or multiplies."""
    codes = module.take(codes_end, ("U8",), (None, None))
    n, k = codes.shape[0], codes.shape[1] * 2
    if k % 64:
        raise module.error(codes_end, f"has rows of {k} values", "multiples of 64")
    scale = module.take(scale_end, ("F8_E4M3",), (n, k // 16))
    whole = module.take(global_end, HALVES)
    if whole.shape not in ((1,), ()):
        raise module.error(global_end, f"is {whole.dtype} {list(whole.shape)}", "floats [1]")

    def load() -> Part:
        raw, scales = codes.array(), scale.array()
        if (scales & 0x80).any() or (scales == 0x7F).any():
            raise module.error(scale_end, "has scales that are negative or no numbers", "numbers from 0 on")
        return lambda part: Planes(codes_of(raw[part], 4), d=ue4m3_half_to_f32(scales[part]))

    def factor() -> F32:
        value = whole.floats().reshape(1)
        if not (np.isfinite(value) & (value > 0)).all():
            raise module.error(global_end, f"is {value[0]}", "a number over 0")
        return np.float32(1) / value if divides else value

    return [module.weight(by_name("NVFP4"), n, k, load), module.vector("scale", factor, 1)]
