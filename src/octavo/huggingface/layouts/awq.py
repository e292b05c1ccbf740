"""AWQ: `qweight`, `qzeros` and `scales` of 4 bits, as AutoAWQ writes them.

    gemm  qweight I32 [K, N / 8], qzeros I32 [K / G, N / 8], scales [K / G, N]; for the nibbles of a word see PLACES
    gemv  qweight I32 [N, K / 8], qzeros I32 [N, Z], scales [N, 8 Z]: streams along K; Z words of 8 groups, filled up

w = scale * (code - zero).
"""

from __future__ import annotations

import numpy as np

from octavo.formats import Planes
from octavo.formats.spec import U8, AnyArray
from octavo.huggingface.layouts import writer_keys
from octavo.huggingface.layouts.bits import codes_of
from octavo.huggingface.layouts.module import HALVES, Kind, Module, Part
from octavo.huggingface.layouts.quant_settings import QuantSettings
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import StoredTensor

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Column j of eight is nibble PLACES[j] of their word."""
MIDDLE = 8
USED = (
    "quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format", "method",
    "desc_act", "modules_to_not_convert",
)


class Awq:
    """The layout; `group` None for one scale a row."""

    def __init__(self, settings: QuantSettings) -> None:
        settings.only(USED, writer_keys.AUTO_ROUND, writer_keys.AWQ)
        settings.one_of("w_bit" if "bits" not in settings.values else "bits", (4,))
        key = "q_group_size" if "group_size" not in settings.values else "group_size"
        self._group = None if settings.values.get(key) == -1 else settings.size(key)
        self._zero = settings.flag("zero_point", True)
        settings.one_of("desc_act", (False, None), None)
        settings.one_of("method", ("awq", None), None)
        version = settings.values.get("version", settings.values.get("format", "gemm"))
        self._version = str(version).lower()
        if self._version not in ("gemm", "gemv"):
            settings.one_of("version", ("gemm", "gemv"))
        self._plain = settings.strings("modules_to_not_convert")

    def read(self, module: Module) -> list[LazyTensor]:
        if "qweight" not in module:
            return []
        named = next((name for name in self._plain if name in module.name), None)
        if named is not None:
            raise module.error("qweight", f"is there, and modules_to_not_convert has {named!r}")
        return [self._gemm(module) if self._version == "gemm" else self._gemv(module)]

    def _gemm(self, module: Module) -> LazyTensor:
        codes = module.take("qweight", ("I32",), (None, None))
        k, n = codes.shape[0], codes.shape[1] * 8
        group = self._group or k
        if k % group:
            raise module.error("qweight", f"has {k} rows", f"multiples of {group}")
        scales = module.take("scales", HALVES, (k // group, n))
        zeros = self._zeros(module, k // group, n // 8)

        def load() -> Part:
            words, d = codes.array(), scales.floats()
            m = None if zeros is None else self._points(module, _columns(zeros.array()))

            def planes(part: slice) -> Planes:
                first = part.start // 8
                q = _columns(words[:, first : -(-part.stop // 8)])[part.start - 8 * first : part.stop - 8 * first]
                return Planes(q, d=np.ascontiguousarray(d[:, part].T), m=None if m is None else m[part])

            return planes

        return module.rows(n, k, self._kind(group, scales.dtype), load)

    def _gemv(self, module: Module) -> LazyTensor:
        codes = module.take("qweight", ("I32",), (None, None))
        n, k = codes.shape[0], codes.shape[1] * 8
        group = self._group or k
        if k % group:
            raise module.error("qweight", f"has rows of {k} values", f"multiples of {group}")
        groups, words = k // group, _gemv_words(k // group, group)
        scales = module.take("scales", HALVES, (n, 8 * words))
        zeros = self._zeros(module, n, words)

        def load() -> Part:
            raw, d = codes.array(), scales.floats()[:, :groups]
            m = None if zeros is None else self._points(module, codes_of(zeros.array(), 4)[:, :groups])
            return lambda part: Planes(codes_of(raw[part], 4), d=d[part], m=None if m is None else m[part])

        return module.rows(n, k, self._kind(group, scales.dtype), load)

    def _zeros(self, module: Module, rows: int, words: int) -> StoredTensor | None:
        """Zero points in words; some writers have them where there are none, too."""
        return module.take("qzeros", ("I32",), (rows, words)) if self._zero or "qzeros" in module else None

    def _points(self, module: Module, points: U8) -> U8 | None:
        """Zero points of codes, None where all codes have the one in the middle."""
        if self._zero:
            return points
        if (points != MIDDLE).any():
            found = ", ".join(map(str, np.unique(points[points != MIDDLE])[:4]))
            raise module.error("qzeros", f"has zero points {found} in a checkpoint without", f"all {MIDDLE}")
        return None

    def _kind(self, group: int, scale: str) -> Kind:
        return Kind(4, group, scale, "zero" if self._zero else "offset")


def _gemv_words(groups: int, group: int) -> int:
    """Words of zero points of a row: enough for its groups, in multiples that AutoAWQ's kernel reads."""
    multiple = {32: 4, 64: 2}.get(group, 1)
    return -(-groups // 8 // multiple) * multiple


def _columns(words: AnyArray) -> U8:
    """I32 [K, N / 8] -> codes uint8 [N, K]."""
    nibbles = codes_of(words, 4).reshape(*words.shape, 8)[..., list(PLACES)]
    return np.ascontiguousarray(nibbles.reshape(len(words), -1).T)
