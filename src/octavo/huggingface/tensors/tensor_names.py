"""GGUF's names of tensors as Hugging Face's, and the order of rows that goes with them."""

from __future__ import annotations

import re

import numpy as np

from octavo.formats import QTensor, dequantize, quantize_reference
from octavo.formats.spec import AnyArray
from octavo.models import Architecture, ModelSpec

_FFN = ("ffn_gate", "ffn_up", "ffn_down")
EXPERTS = tuple(f"{name}_exps" for name in _FFN)
"""Linear layers of experts, stacked."""
LINEAR = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", *_FFN, *(f"{name}_shexp" for name in _FFN), *EXPERTS)
"""Linear layers of a block, those that schemes quantize."""
ONE_ROW = "ffn_gate_inp_shexp"
"""A vector that is a matrix of one row in a checkpoint: the gate of the expert that all tokens go through."""

_IN_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias|scale)")


def checkpoint_name(name: str, architecture: Architecture) -> str | None:
    """The name that a tensor has in a checkpoint, of experts with * for a number; None for one that has none."""
    found = _IN_BLOCK.fullmatch(name)
    if found is None:
        outer = next((outer for outer, gguf in architecture.outer.items() if gguf == name and "*" not in outer), None)
        return outer if outer is None or outer.startswith("lm_head.") else architecture.base + outer
    if found[2] in architecture.unwritten.tensors or architecture.modules.scalars:
        return None
    whole = f"{found[2]}.{found[3]}"
    if found[3] != "bias" and (named := [part for part, gguf in architecture.names.items() if gguf == whole]):
        return f"{architecture.base}{architecture.layer}.{found[1]}.{named[0]}"
    modules = (module for module, gguf in architecture.names.items() if gguf == found[2])
    module = next((module for module in modules if ("*" in module) == (found[2] in EXPERTS)), None)
    return f"{architecture.base}{architecture.layer}.{found[1]}.{module}.{found[3]}" if module else None


def is_linear(name: str) -> bool:
    """Whether a tensor is the weight of one of a block's linear layers."""
    found = _IN_BLOCK.fullmatch(name)
    return found is not None and found[2] in LINEAR and found[3] == "weight"


def of_expert(name: str, expert: int) -> str:
    """The name of an expert's tensor, of one with * for a number."""
    return name.replace("*", str(expert))


def checkpoint_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a tensor has in a checkpoint."""
    return (1, *shape) if name.endswith(f".{ONE_ROW}.weight") and len(shape) == 1 else shape


def as_checkpoint(tensor: QTensor, model: ModelSpec) -> QTensor:
    """A tensor of a GGUF file as a checkpoint has it: the order of rows of q and k, and norms without their shift."""
    if model.architecture.layout.norm_shift and tensor.name.endswith("norm.weight"):
        values = dequantize(tensor) - np.float32(model.architecture.layout.norm_shift)
        return quantize_reference(values, tensor.format, tensor.name)
    if (shape := checkpoint_shape(tensor.name, tensor.shape)) != tensor.shape:
        return QTensor(tensor.format, shape, tensor.data.reshape(shape[0], -1), tensor.name)
    rows = tensor.data.reshape(tensor.shape[0], -1)
    data = rows_apart(tensor.name, model, rows).reshape(tensor.data.shape)
    return QTensor(tensor.format, tensor.shape, data, tensor.name)


def rows_apart(name: str, model: ModelSpec, rows: AnyArray) -> AnyArray:
    """Rows of q or k, or values of their biases, from rope on neighbours back to rope on halves of a head.

    Of other tensors, and of models whose rope is on halves in GGUF too, the rows as they are.
    """
    found, hp = _IN_BLOCK.fullmatch(name), model.hparams
    heads = hp.rope_heads(int(found[1])).get(found[2]) if found else None
    if not heads or not hp.rope.interleaved or not model.architecture.layout.permuted:
        return rows
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
