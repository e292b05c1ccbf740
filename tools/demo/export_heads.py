"""Writes a trained drafter of the demo model as a GGUF file, its matrices in Q8_0.

A head's file lacks what it shares with the model: the embedding, and an MTP head the output too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
from export import BLOCK, add_sizes, tensor_name
from heads import Draft, Eagle3, Head, Mtp
from hidden_states import TARGET_LAYERS
from torch import Tensor

from octavo.data import demo_model_path

MTP = {"enorm": "nextn.enorm", "hnorm": "nextn.hnorm", "eh_proj": "nextn.eh_proj", "norm": "nextn.shared_head_norm"}
EAGLE3 = {"fc": "fc", "norm": "output_norm", "lm_head": "output", "hidden_norm": "blk.0.attn_norm_2"}
NAMES = {"mtp": "MTP head", "eagle3": "EAGLE-3 head", "draft": "draft model"}


def write(drafter: Head | Draft, kind: str, out: Path) -> None:
    """Writes the file of a drafter, whose kind is "mtp", "eagle3" or "draft"."""
    writer = gguf.GGUFWriter(out, "eagle3" if kind == "eagle3" else "qwen3")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(f"Octavo demo calculator: {NAMES[kind]}")
    writer.add_author("The Octavo authors")
    writer.add_license("apache-2.0")
    _add_tokenizer(writer, gguf.GGUFReader(demo_model_path()))
    c, names = drafter.config, dict(drafter.named_parameters())
    if isinstance(drafter, Mtp):
        add_sizes(writer, replace(c, layers=c.layers + 1), gguf.LlamaFileType.MOSTLY_Q8_0)
        writer.add_uint32("qwen3.nextn_predict_layers", 1)
        tensors = {f"blk.{c.layers}.{_in_block(name, MTP)}.weight": w for name, w in names.items()}
    elif isinstance(drafter, Eagle3):
        add_sizes(writer, replace(c, layers=1), gguf.LlamaFileType.MOSTLY_Q8_0)
        writer.add_rope_dimension_count(c.head_width)
        writer.add_array("eagle3.target_layers", list(TARGET_LAYERS))
        writer.add_uint32("eagle3.target_hidden_size", c.width)
        writer.add_tensor("d2t", drafter.kept.numpy().astype(np.int64))
        found = {_in_block(name, EAGLE3): w for name, w in names.items()}
        whole = tuple(EAGLE3.values())
        tensors = {f"{n if n in whole else f'blk.0.{n}'}.weight": w for n, w in found.items()}
        for name, heads in (("blk.0.attn_q.weight", c.heads), ("blk.0.attn_k.weight", c.kv_heads)):
            tensors[name] = _neighbours(tensors[name], heads)
    else:
        add_sizes(writer, c, gguf.LlamaFileType.MOSTLY_Q8_0)
        tensors = {tensor_name(name): w for name, w in names.items()}
    for name, weight in tensors.items():
        data = weight.detach().numpy().astype(np.float32)
        if data.ndim == 2:
            q8_0 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(data, q8_0), raw_dtype=q8_0)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _in_block(name: str, own: dict[str, str]) -> str:
    """A parameter's GGUF name, in a layer if there is no other place for it."""
    plain = name.removesuffix(".weight")
    return own.get(plain) or BLOCK[plain]


def _neighbours(rows: Tensor, heads: int) -> Tensor:
    """Rows of q or k in the order in which rope rotates neighbours, where halves were rotated."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


def _add_tokenizer(writer: gguf.GGUFWriter, model: gguf.GGUFReader) -> None:
    """The vocabulary of a model."""
    for name, field in model.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind, value = field.types[0], field.contents()
        writer.add_key_value(name, value, kind, field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None)
