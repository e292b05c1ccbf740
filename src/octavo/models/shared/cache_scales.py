"""Static scales of the KV cache that a model file has: the largest magnitudes of keys and values, measured before.

    blk.N.cache_k.max   float32 [heads], the largest magnitude of a head's keys, after rope
    blk.N.cache_v.max   float32 [heads], that of its values
    blk.N.cache_k.clip  float32 [heads], where int8 cuts keys off, for finer numbers; a file can be without
    blk.N.cache_v.clip  float32 [heads], where it cuts values off

As magnitudes they do for all types whose heads have scales: a scale is the magnitude over the type's largest number. A
checkpoint's scales of caches do for tensors too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from octavo.errors import ModelError
from octavo.formats import dequantize
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.formats.spec import F32
from octavo.graph.builder import CacheType
from octavo.io.gguf import GGUFFile
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.weights import Tensors, vector

MAX, CLIP = ".max", ".clip"
"""Ends of names."""


def cache_tensors(hp: Hyperparams) -> Tensors:
    """The tensors that say how large keys and values become; a file has those of all layers, or none."""
    return {
        name: vector(hp.kv_heads(i)[0], optional=True)
        for end in (MAX, CLIP) for i, names in _names(hp, end).items() for name in names
    }


def static_scales(file: GGUFFile, hp: Hyperparams, cache_type: CacheType) -> Mapping[tuple[int, str], F32]:
    """Scales of keys and values, float32 [Hkv], by layer and "k" or "v"; none where the file, or the type, has none.

    Raises ModelError for a file that has some of the tensors only, or in them something other than a magnitude.
    """
    names, clips = _names(hp, MAX), _names(hp, CLIP)
    kept = CACHE_FORMATS[cache_type]
    beside = file.cache_magnitudes() if kept.can_be_static else {}
    has_clips = _are_there(file, [name for of_layer in clips.values() for name in of_layer])
    has_scales = _are_there(file, [name for of_layer in names.values() for name in of_layer], beside)
    if has_clips and not has_scales:
        first = next(iter(names.values()))[0]
        raise ModelError("is missing", file=file.path, field=f"tensor {first}", allowed="with magnitudes to cut off at")
    if has_clips and kept.gains_by_clips:
        names, beside = clips, {}
    largest = {(layer, kind): _magnitudes(file, name, beside, hp.kv_heads(layer)[0])
               for layer, of_layer in names.items()
               for kind, name in zip("kv", of_layer, strict=True) if has_scales}
    return {key: values / np.float32(kept.top) for key, values in largest.items() if kept.can_be_static}


def _are_there(file: GGUFFile, names: list[str], beside: Collection[str] = ()) -> bool:
    """Whether a file has tensors, or what is known beside them; it has all or none."""
    missing = [name for name in names if name not in file.tensors and name not in beside]
    if missing and len(missing) < len(names):
        allowed = "magnitudes for all layers, or for none"
        raise ModelError("is missing", file=file.path, field=f"tensor {missing[0]}", allowed=allowed)
    return not missing


def _names(hp: Hyperparams, end: str) -> dict[int, tuple[str, str]]:
    """By layers that have a cache."""
    return {i: (f"blk.{i}.cache_k{end}", f"blk.{i}.cache_v{end}") for i in range(hp.n_layer) if hp.kv_heads(i)[0]}


def _magnitudes(file: GGUFFile, name: str, beside: Mapping[str, F32], heads: int) -> F32:
    """Float32 [heads], of a tensor or of what is known beside."""
    values = dequantize(file.tensor(name)) if name in file.tensors else beside[name]
    if len(values) not in (1, heads):
        problem = f"has scales of {len(values)} heads"
        raise ModelError(problem, file=file.path, field=f"tensor {name}", allowed=f"1, or {heads} as the model")
    values = np.broadcast_to(values, heads).copy()
    if not (np.isfinite(values) & (values > 0)).all():
        wrong = values[~(np.isfinite(values) & (values > 0))][0]
        raise ModelError(f"a largest magnitude is {wrong}", file=file.path, field=f"tensor {name}", allowed="over 0")
    return values
