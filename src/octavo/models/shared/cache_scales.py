"""Static scales of the KV cache that a model file has: the largest magnitudes of keys and values, measured before.

    blk.N.cache_k.max     float32 [heads], the largest magnitude of a head's keys, after rope and less the center
    blk.N.cache_v.max     float32 [heads], that of its values
    blk.N.cache_k.clip    float32 [heads], where int8 cuts keys off, for finer numbers; a file can be without
    blk.N.cache_v.clip    float32 [heads], where it cuts values off
    blk.N.cache_k.center  float32 [heads * values of each], what keys are stored less; a file can be without

As magnitudes they do for all types whose heads have scales: a scale is the magnitude over the type's largest number. A
checkpoint's scales of caches do for tensors too. Centers are for all types with scales, also where there are no
magnitudes and scales are dynamic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from octavo.errors import ModelError
from octavo.formats import dequantize
from octavo.formats.cache import CACHE_FORMATS, CacheConstants
from octavo.formats.spec import F32
from octavo.graph.builder import CacheType
from octavo.io.gguf import GGUFFile
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.weights import Tensors, vector

MAX, CLIP = ".max", ".clip"
"""Ends of names."""


def cache_tensors(hp: Hyperparams) -> Tensors:
    """The tensors that say how large keys and values become and where keys lie; a file has those of all layers, or
    none."""
    found = {
        name: vector(hp.kv_heads(i)[0], optional=True)
        for end in (MAX, CLIP) for i, names in _names(hp, end).items() for name in names
    }
    return found | {name: vector(math.prod(hp.kv_heads(i)), optional=True) for i, name in _centers(hp).items()}


def static_scales(file: GGUFFile, hp: Hyperparams, cache_type: CacheType) -> Mapping[tuple[int, str], CacheConstants]:
    """Scales of keys and values, and centers of keys, by layer and "k" or "v"; none where the file, or the type, has
    none.

    Raises ModelError for a file that has some of the tensors only, or in them what is no magnitude or no number.
    """
    names, clips = _names(hp, MAX), _names(hp, CLIP)
    kept = CACHE_FORMATS[cache_type]
    beside = file.cache_magnitudes() if kept.can_be_static else {}
    has_clips = _are_there(file, [name for of_layer in clips.values() for name in of_layer], "magnitudes")
    has_scales = _are_there(file, [name for of_layer in names.values() for name in of_layer], "magnitudes", beside)
    has_centers = _are_there(file, list(_centers(hp).values()), "centers")
    if has_clips and not has_scales:
        first = next(iter(names.values()))[0]
        raise ModelError("is missing", file=file.path, field=f"tensor {first}", allowed="with magnitudes to cut off at")
    if has_clips and kept.gains_by_clips:
        names, beside = clips, {}
    largest = {(layer, kind): _magnitudes(file, name, beside, hp.kv_heads(layer)[0])
               for layer, of_layer in names.items()
               for kind, name in zip("kv", of_layer, strict=True) if has_scales}
    centers = {(layer, "k"): _finite(file, name).reshape(hp.kv_heads(layer))
               for layer, name in _centers(hp).items() if has_centers}
    scales = {key: values / np.float32(kept.top) for key, values in largest.items() if kept.can_be_static}
    centers = centers if kept.can_be_centered else {}
    return {key: CacheConstants(scales.get(key), centers.get(key)) for key in scales | centers}


def _are_there(file: GGUFFile, names: list[str], what: str, beside: Collection[str] = ()) -> bool:
    """Whether a file has tensors, or what is known beside them; it has all or none."""
    missing = [name for name in names if name not in file.tensors and name not in beside]
    if missing and len(missing) < len(names):
        raise ModelError(
            "is missing", file=file.path, field=f"tensor {missing[0]}", allowed=f"{what} for all layers, or for none"
        )
    return not missing


def _names(hp: Hyperparams, end: str) -> dict[int, tuple[str, str]]:
    """By layers that have a cache."""
    return {i: (f"blk.{i}.cache_k{end}", f"blk.{i}.cache_v{end}") for i in range(hp.n_layer) if hp.kv_heads(i)[0]}


def _centers(hp: Hyperparams) -> dict[int, str]:
    return {i: f"blk.{i}.cache_k.center" for i in range(hp.n_layer) if hp.kv_heads(i)[0]}


def _finite(file: GGUFFile, name: str) -> F32:
    values = dequantize(file.tensor(name))
    if not np.isfinite(values).all():
        raise ModelError("holds NaN or Inf", file=file.path, field=f"tensor {name}", allowed="finite numbers")
    return values


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
