"""Where a model to quantize comes from: its metadata, and its tensors one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from octavo.errors import GGUFError, ModelError, shown
from octavo.formats import QTensor
from octavo.formats.rare import RARE, block_layout
from octavo.formats.spec import F32
from octavo.formats.table import FORMATS
from octavo.io.gguf import GGUFFile, TensorInfo
from octavo.models.shared.refusal import require_model
from octavo.models.shared.registry import find
from octavo.models.shared.weights import INPUT_SCALE, SCALE, scale_name, scale_of
from octavo.quantizers.mix.mixing import Facts

FLOATS = ("F32", "F16", "BF16", "F64")
_IDS = {f.name: f.gguf for f in FORMATS} | {name: number for number, (name, *_) in RARE.items()}
_MOST_LAYERS = 1 << 16


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of the model, read when its turn comes.

    shape      NumPy order, the last axis contiguous
    type_name  how it is stored, as in "F16"; `load` may give another where the table has no row for it ("IQ2_XXS")
    scale      what the model multiplies products of this weight by, float32 [1] or [E]; a tensor that gets another type
               is multiplied by it, and the tensors that it lies in (`beside`) are left out
    origin     rows of a checkpoint that it is made of when it is loaded, and their bytes; None where it is as it lies
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    load: Callable[[], QTensor]
    scale: F32 | None = None
    beside: tuple[str, ...] = ()
    origin: tuple[str, int] | None = None

    @property
    def is_float(self) -> bool:
        """Whether it is stored as floats."""
        return self.type_name in FLOATS

    @property
    def size(self) -> int:
        """Values in the tensor."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes as it is stored."""
        number = _IDS[self.type_name]
        layout = None if number is None else block_layout(number)
        assert layout is not None
        block, block_bytes = layout
        return self.size // block * block_bytes


@dataclass(frozen=True)
class ModelSource:
    """A model: `path` is named in errors, `metadata` is what `write_gguf` takes, `facts` what the mixing rules ask."""

    path: str
    arch: str
    metadata: Mapping[str, Any]
    tensors: tuple[SourceTensor, ...]
    facts: Facts

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data as the source stores it."""
        return sum(tensor.nbytes for tensor in self.tensors)


def gguf_source(file: GGUFFile) -> ModelSource:
    """An open GGUF file, split or not, as a source. Raises GGUFError or ModelError where it lacks what mixing needs."""
    require_model(file)
    arch, tensors = file.metadata.get_str("general.architecture"), []
    known = find(arch) is not None
    for info in file.tensors.values():

        def load(name: str = info.name) -> QTensor:
            return file.tensor(name, copy=True)  # a copy, as the file may be cut while it is open

        scale, beside = _scale(file, info) if known else (None, ())
        tensors.append(SourceTensor(info.name, info.shape, info.type_name, load, scale, beside))
    kind = file.metadata.get_str("general.type", "model")
    if kind != "model":
        raise ModelError(f"holds no model but a {shown(kind)}", file=file.path, field="general.type", allowed="model")
    metadata = {key: file.metadata.typed(key) for key in file.metadata}
    return ModelSource(file.path, arch, metadata, tuple(tensors), _facts(file, arch))


def _scale(file: GGUFFile, info: TensorInfo) -> tuple[F32 | None, tuple[str, ...]]:
    """The scale of a weight, and the names of the tensors that only mean something with it as it is stored."""
    scale, stem = scale_of(file, info.name), info.name.removesuffix(".weight")
    count = info.shape[0] if len(info.shape) == 3 else 1
    if scale is not None and scale.shape != (count,):
        raise ModelError(f"has shape {list(scale.shape)}", file=file.path, field=f"tensor {shown(stem + SCALE)}",
                         allowed=f"[{count}]")
    if stem == info.name:
        return None, ()
    return scale, tuple(name for name in (scale_name(info.name), stem + INPUT_SCALE) if name in file.tensors)


def _facts(file: GGUFFile, arch: str) -> Facts:
    layers = file.metadata.get_int(f"{arch}.block_count")
    if not 0 < layers <= _MOST_LAYERS:
        raise file.metadata.fault(f"{arch}.block_count", f"{layers} layers", f"1 to {_MOST_LAYERS}")
    heads = _first(file, f"{arch}.attention.head_count", 0)
    kv = _first(file, f"{arch}.attention.head_count_kv", heads)
    return model_facts(arch, layers, heads, kv, file.metadata.get_int(f"{arch}.expert_count", 0))


def _first(file: GGUFFile, key: str, default: int) -> int:
    """The integer at `key`; of an array, one value a layer, the first."""
    if key in file.metadata and file.metadata.describe(key).startswith("array"):
        values = file.metadata.get_ints(key)
        if not len(values):
            raise file.metadata.fault(key, "empty", "one number a layer")
        return int(np.asarray(values)[0])
    return file.metadata.get_int(key, default)


def model_facts(arch: str, layers: int, heads: int, kv_heads: int, experts: int) -> Facts:
    """What the mixing rules ask, from a model's hyperparameters."""
    if heads < 0 or kv_heads < 0 or experts < 0:
        raise GGUFError(f"{heads} heads, {kv_heads} of keys, {experts} experts", allowed="none below 0")
    shared = heads // kv_heads if kv_heads else 0
    known = find(arch)
    big = layers == 80 and known is not None and known.is_70b(heads, kv_heads, experts)
    return Facts(layers, shared, experts, big)
