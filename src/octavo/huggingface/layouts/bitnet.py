"""BitNet: weights of -1, 0 and 1 times one number for each matrix, as transformers lays them out.

    weight        U8 [N / 4, K]: bits 2 i and 2 i + 1 of row j are code + 1 of row j + i N / 4
    weight_scale  floats [1], which codes are multiplied by, or divided by where the class is bitlinear

In mode online weights are floats, and the number is their mean magnitude (arXiv 2402.17764).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from octavo.errors import shown
from octavo.formats import Planes, by_name
from octavo.formats.spec import F32, AnyArray
from octavo.huggingface.layouts.module import HALVES, Kind, Module, Part
from octavo.huggingface.layouts.quant_settings import QuantSettings, brief
from octavo.io.gguf import LazyTensor

USED = ("quant_method", "linear_class", "quantization_mode", "modules_to_not_convert", "use_rms_norm")
OF_THE_WRITER = ("rms_norm_eps",)
LEAST = 1e-5
"""The least mean magnitude."""


class Bitnet:
    """The layout."""

    def __init__(self, settings: QuantSettings) -> None:
        settings.only(USED, OF_THE_WRITER)
        settings.one_of("use_rms_norm", (False, None), False)
        self._divided = settings.one_of("linear_class", ("bitlinear", "autobitlinear"), "bitlinear") == "bitlinear"
        self._online = settings.one_of("quantization_mode", ("offline", "online"), "offline") == "online"
        if self._online and self._divided:
            raise settings.error("quantization_mode", "is 'online' of bitlinear", "'online' of autobitlinear")
        self._plain = settings.strings("modules_to_not_convert")
        if not all(re.fullmatch(r"[\w.]+", name) for name in self._plain):
            raise settings.error("modules_to_not_convert", f"is {brief(self._plain)}", "names of modules")

    def read(self, module: Module) -> list[LazyTensor]:
        left = next((name for name in self._plain if _is_of(module.name, name)), None)
        if self._online:
            in_layer = ".layers." in f".{module.name}" and len(getattr(module.parts.get("weight"), "shape", ())) == 2
            return [] if left is not None or not in_layer else self._of_floats(module)
        if "weight_scale" not in module:
            return []
        if left is not None:
            raise module.error("weight_scale", f"is there, and modules_to_not_convert has {shown(left)}")
        scale = module.take("weight_scale", HALVES)
        if scale.shape not in ((1,), ()):
            raise module.error("weight_scale", f"is {scale.dtype} {list(scale.shape)}", "floats [1] or []")
        weight = module.take("weight", ("U8",), (None, None))
        n, k = 4 * weight.shape[0], weight.shape[1]

        def codes() -> AnyArray:
            packed = weight.array()
            q = np.concatenate([packed >> 2 * i & 3 for i in range(4)])
            if (q == 3).any():
                raise module.error("weight", "has codes of 3", "0 to 2")
            return q

        def number() -> F32:
            value = scale.floats().reshape(1)
            if not 0 < float(value[0]) < np.inf:
                raise module.error("weight_scale", f"is {value[0]:g}", "a number over 0")
            return np.reciprocal(value) if self._divided else value

        return _rows(module, n, k, codes, number)

    def _of_floats(self, module: Module) -> list[LazyTensor]:
        weight = module.take("weight", HALVES, (None, None))

        def number() -> F32:
            mean = np.abs(weight.floats()).mean(dtype=np.float64)
            return np.array([max(mean, LEAST)], np.float32)

        def codes() -> AnyArray:
            q: AnyArray = (np.clip(np.rint(weight.floats() / number()), -1, 1) + 1).astype(np.uint8)
            return q

        n, k = weight.shape
        return _rows(module, n, k, codes, number)


def _is_of(module: str, name: str) -> bool:
    """Whether a module is what is named, or a part of it; names may stand without what modules' begin with."""
    return f".{name}." in f".{module}."


def _rows(
    module: Module, n: int, k: int, codes: Callable[[], AnyArray], number: Callable[[], F32]
) -> list[LazyTensor]:
    """The weight [n, k] of codes from 0 to 2, and their number [1].

    Where blocks of TQ2_0 make a row up, the number goes beside them, otherwise it is that of each group.
    """
    fmt = by_name("TQ2_0")
    if k % fmt.block:

        def groups() -> Part:
            q, d = codes() + np.uint8(1), number()
            return lambda part: Planes(q[part], d=np.full((len(q[part]), 1), d, "<f4"))

        return [module.rows(n, k, Kind(2, k, "F32", "offset"), groups)]

    def blocks() -> Part:
        q = codes()
        return lambda part: Planes(q[part], d=np.ones((len(q[part]), k // fmt.block), "<f4"))

    return [module.weight(fmt, n, k, blocks), module.vector("scale", number, 1)]
