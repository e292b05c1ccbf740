"""Tensors of a checkpoint as they can be loaded: floats as they lie, quantized modules as its layout reads them."""

from __future__ import annotations

from collections.abc import Callable

from octavo.errors import ModelError, shown
from octavo.formats import by_name
from octavo.huggingface.layouts.kv_scales import is_kv_scale, kv_scale
from octavo.huggingface.layouts.layout_table import find_layout
from octavo.huggingface.layouts.module import INPUT_SCALE, Module
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import Checkpoint, StoredTensor
from octavo.io.safetensors.safetensors_file import FLOATS
from octavo.models.shared.config import Config


def stored_tensors(checkpoint: Checkpoint, config: Config, left_out: Callable[[str], bool]) -> dict[str, LazyTensor]:
    """The tensors by name, those of a quantized module as one that is called as its weight was, and what is beside it.

    Little is read but the headers; shapes of codes and scales are compared. Raises ModelError for a quantized module
    that is incomplete or contradicts the configuration, and for tensors of other types.
    """
    layout = find_layout(checkpoint, config)
    modules: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in checkpoint.tensors.items():
        if layout is not None and is_kv_scale(name):
            kv_scale(tensor)
        elif not left_out(name):
            stem, _, end = name.rpartition(".")
            modules.setdefault(stem, {})[end] = tensor
    made: dict[str, LazyTensor] = {}
    for name, parts in modules.items():
        module = Module(checkpoint.folder, name, parts, config=config.values)
        read = [] if layout is None else layout.read(module)
        if INPUT_SCALE in set(parts) - module.used:
            raise module.error(INPUT_SCALE, "is not part of this architecture unless activations have static scales")
        made |= {tensor.name: tensor for tensor in read}
        for end, tensor in parts.items():
            if end not in module.used:
                made[tensor.name] = _floats(checkpoint, tensor)
    return made


def _floats(checkpoint: Checkpoint, tensor: StoredTensor) -> LazyTensor:
    if tensor.dtype not in FLOATS:
        field = f"tensor {shown(tensor.name)}"
        raise ModelError(f"holds {tensor.dtype}", file=checkpoint.folder, field=field, allowed=", ".join(FLOATS))
    return LazyTensor(tensor.name, by_name(tensor.dtype), tensor.shape, tensor.load, parts=tensor.parts)
