"""LoRA adapters of a model that is loaded: which, how strong, and the model with them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from octavo.errors import HostMemoryError, ModelError, UsageError, shown
from octavo.graph.low_rank import targets
from octavo.graph.names import split_layer
from octavo.io.model_path import locate_adapter
from octavo.io.system_memory import room
from octavo.models import ModelSpec
from octavo.models.shared.lora import Adapter, combined
from octavo.runtime.argument_checks import wrong

Path = str | os.PathLike[str]
Lora = Path | Iterable[Path] | Mapping[Path, float]
"""An adapter, several, or several and what each is multiplied by."""
Chosen = tuple[tuple[str, float], ...]
"""Adapters by path, each with its scale."""

GIB = 1 << 30
ALLOWED = "a path, several, or a mapping of paths to finite numbers"


def chosen(given: Lora | None) -> Chosen:
    """The adapters that an argument names. Raises UsageError for what names none, and for one that is named twice."""
    if given is None:
        return ()
    if isinstance(given, str | os.PathLike):
        found = [(given, 1.0)]
    elif isinstance(given, Mapping):
        found = list(given.items())
    elif isinstance(given, Iterable):
        found = [(path, 1.0) for path in given]
    else:
        raise wrong("lora", given, ALLOWED)
    for path, scale in found:
        if not isinstance(path, str | os.PathLike) or not _is_number(scale):
            raise wrong("lora", given, ALLOWED)
    named = tuple((os.fsdecode(path), float(scale)) for path, scale in found)
    require_once(named)
    return named


def located(named: Chosen) -> Chosen:
    """The same with paths in place of names of the hub, whose files are downloaded where they are not here."""
    return tuple((locate_adapter(path), scale) for path, scale in named)


def require_once(named: Sequence[tuple[str, float]]) -> None:
    """Raise UsageError where an adapter is named twice."""
    paths = [path for path, _ in named]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise UsageError(f"lora names {twice} twice", argument="lora")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def with_adapters(model: ModelSpec, adapters: Chosen, *, merged: bool = False) -> ModelSpec:
    """The model with what adapters add to its weights; their tensors are read now.

    merged  it is to become part of the weights themselves, and is not computed beside their products

    Raises FileError and ModelError for adapters that can't be read or are of another model, HostMemoryError for those
    that no memory is left for, and NonFiniteError for NaN and Inf in them.
    """
    if not adapters:
        return model
    from octavo.huggingface.adapters.adapter import open_adapter

    found, of_model = [], targets(model.graph())
    for path, scale in adapters:
        adapter = open_adapter(path, model)
        adapter.require_fitting(of_model, model.file.tensors)
        if not merged:
            _require_no_own_scale(adapter, model)
        found.append((adapter, scale))
    _require_memory([adapter for adapter, scale in found if scale])
    return replace(model, added=combined(found))


def _require_no_own_scale(adapter: Adapter, model: ModelSpec) -> None:
    """Raise ModelError for experts that the model itself multiplies by a number each, as Gemma 4 does: additions come
    behind scales of products, which elsewhere belong to how a weight is stored."""
    own = {f"{name.removesuffix('.scale')}.weight" for name in model.architecture.names.values()
           if name.endswith("_exps.scale")}
    name = next((name for name in adapter.parts if split_layer(name)[1] in own), None)
    if name is not None:
        problem = "is multiplied by a number of each expert in the model; merge it with octavo convert --lora"
        raise ModelError(problem, file=adapter.path, field=f"tensor {shown(name)}")


def _require_memory(adapters: Sequence[Adapter]) -> None:
    """Raise HostMemoryError unless memory holds what adapters add, as F32 and twice while it is put together."""
    parts = [part for adapter in adapters for part in adapter.parts.values()]
    needed = 8 * sum(math.prod(factor.shape) for part in parts for factor in (part.a, part.b))
    found = room()
    if found is not None and needed > found.free + found.swap:
        paths, free = ", ".join(adapter.path for adapter in adapters), (found.free + found.swap) / GIB
        raise HostMemoryError(f"{paths}: {needed / GIB:.2f} GiB of memory are needed, but {free:.2f} GiB are free")
