"""GGUF files of LoRA adapters, as llama.cpp's convert_lora_to_gguf.py writes them.

`general.type` is "adapter" and `adapter.type` "lora". A weight called W has `W.lora_a` [r, K] and `W.lora_b` [N, r]; an
embedding [V, K], whose rows are looked up, has them as [V, r] and [K, r]. `adapter.lora.alpha` over the rank r is what
their product is multiplied by; without it, or where it is 0, nothing is.
"""

from __future__ import annotations

import math

from octavo.errors import ModelError, shown
from octavo.graph.low_rank import EMBEDDING, OF_A, OF_B
from octavo.io.gguf import GGUFFile, LazyTensor
from octavo.models.shared.conversion import columns_as_rows, of_values
from octavo.models.shared.lora import Adapter, Factored

ADAPTER = "adapter"
"""What `general.type` is."""
TYPE, ALPHA, INVOCATION = "adapter.type", "adapter.lora.alpha", "adapter.alora.invocation_tokens"


def is_adapter(file: GGUFFile) -> bool:
    """Whether a GGUF file says that it is an adapter."""
    return file.metadata.get_str("general.type", "model") == ADAPTER


def read_adapter(file: GGUFFile, architecture: str | None = None) -> Adapter:
    """The adapter in a GGUF file, whose tensors are read when they are asked for.

    architecture  that the model is of which it is for; None: any

    Raises ModelError for a file that is none, for another kind of adapter or model, and for tensors that are not pairs.
    """
    metadata = file.metadata
    if not is_adapter(file):
        raise _fault(file, "general.type", f"is {shown(metadata.get_str('general.type', 'model'))}", f"'{ADAPTER}'")
    if (kind := metadata.get_str(TYPE)) != "lora":
        raise _fault(file, TYPE, f"is {shown(kind)}", "'lora'")
    if INVOCATION in metadata:
        problem = "is there: an activated LoRA (aLoRA), which changes only what comes behind these tokens"
        raise _fault(file, INVOCATION, problem, "none")
    own = metadata.get_str("general.architecture")
    if architecture is not None and own != architecture:
        raise _fault(file, "general.architecture", f"is {shown(own)}", f"{shown(architecture)}, as the model's")
    alpha = metadata.get_float(ALPHA, 0.0)
    if not math.isfinite(alpha):
        raise _fault(file, ALPHA, f"is {alpha}", "a finite number")
    return Adapter(file.path, {name: _part(file, name, alpha) for name in _names(file)})


def _names(file: GGUFFile) -> list[str]:
    """The weights that have a pair. Raises ModelError for a tensor that is not part of one."""
    names: dict[str, None] = {}
    for name in file.tensors:
        stem = next((name.removesuffix(end) for end in (OF_A, OF_B) if name.endswith(end)), None)
        if stem is None:
            problem = "is not part of a LoRA, and what else it changes can't be applied"
            raise _fault(file, f"tensor {shown(name)}", problem, f"names that end in {OF_A} or {OF_B}")
        names[stem] = None
    if not names:
        raise ModelError("has no tensors", file=file.path, allowed=f"pairs of {OF_A} and {OF_B}")
    for stem in names:
        for end, other in ((OF_A, OF_B), (OF_B, OF_A)):
            if stem + end not in file.tensors:
                raise _fault(file, f"tensor {shown(stem + other)}", f"has no {shown(stem + end)} beside it")
    return list(names)


def _part(file: GGUFFile, name: str, alpha: float) -> Factored:
    a, b = (_lazy(file, name + end) for end in (OF_A, OF_B))
    if name.endswith(EMBEDDING):
        a, b = columns_as_rows(of_values(b)) if len(b.shape) == 2 else b, a
    if not 2 <= len(a.shape) == len(b.shape) <= 3 or a.shape[:-1] != (*b.shape[:-2], b.shape[-1]):
        problem, allowed = f"has factors {list(a.shape)} and {list(b.shape)}", "[r, K] and [N, r], or those of experts"
        raise _fault(file, f"tensor {shown(name)}", problem, allowed)
    return Factored.of(name, a, b, alpha / a.shape[-2] if alpha else 1.0)


def _lazy(file: GGUFFile, name: str) -> LazyTensor:
    tensor = file.tensor(name)
    return LazyTensor(name, tensor.format, tensor.shape, lambda: tensor)


def _fault(file: GGUFFile, field: str, problem: str, allowed: str | None = None) -> ModelError:
    return ModelError(problem, file=file.path, field=field, allowed=allowed)
