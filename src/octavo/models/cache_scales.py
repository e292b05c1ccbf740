"""Static scales of the KV cache that a model file has: the largest magnitudes of keys and values, measured before.

    blk.N.cache_k.max  float32 [n_head_kv], the largest magnitude of a head's keys, after rope
    blk.N.cache_v.max  float32 [n_head_kv], that of its values

As magnitudes they do for all types whose heads have scales: a scale is the magnitude over the type's largest number.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.errors import ModelError
from octavo.formats import dequantize
from octavo.formats.cache import CACHE_FORMATS, StaticScales
from octavo.formats.spec import F32
from octavo.graph.builder import CacheType
from octavo.io.gguf import GGUFFile
from octavo.models.hparams import Hyperparams
from octavo.models.weights import Tensors, vector


def cache_tensors(hp: Hyperparams) -> Tensors:
    """The tensors that say how large keys and values become, of every layer; a file has all of them or none."""
    return {name: vector(hp.n_head_kv, optional=True) for names in _names(hp) for name in names}


def static_scales(file: GGUFFile, hp: Hyperparams, cache_type: CacheType) -> Mapping[tuple[int, str], StaticScales]:
    """Scales of keys and values by layer and "k" or "v"; none where the file, or the type, has none.

    Raises ModelError for a file that has some of the tensors only, or in them what is no magnitude.
    """
    names = _names(hp)
    missing = [name for of_layer in names for name in of_layer if name not in file.tensors]
    if len(missing) == 2 * len(names):
        return {}
    if missing:
        raise ModelError(
            "is missing", file=file.path, field=f"tensor {missing[0]}", allowed="magnitudes for all layers, or for none"
        )
    kept = CACHE_FORMATS[cache_type]
    largest = {(layer, kind): _magnitudes(file, name) for layer, of_layer in enumerate(names)
               for kind, name in zip("kv", of_layer, strict=True)}  # fmt: skip
    if not kept.can_be_static:
        return {}
    return {key: StaticScales(values / np.float32(kept.top)) for key, values in largest.items()}


def _names(hp: Hyperparams) -> list[tuple[str, str]]:
    return [(f"blk.{i}.cache_k.max", f"blk.{i}.cache_v.max") for i in range(hp.n_layer)]


def _magnitudes(file: GGUFFile, name: str) -> F32:
    values = dequantize(file.tensor(name))
    if not (np.isfinite(values) & (values > 0)).all():
        wrong = values[~(np.isfinite(values) & (values > 0))][0]
        raise ModelError(f"a largest magnitude is {wrong}", file=file.path, field=f"tensor {name}", allowed="over 0")
    return values
