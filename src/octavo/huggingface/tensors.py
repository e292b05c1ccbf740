"""The tensors of a checkpoint under GGUF's names: renamed, q and k reordered, experts stacked."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from octavo.errors import ModelError, shown
from octavo.formats import BlockFormat, QTensor, by_name, dequantize, quantize_reference
from octavo.formats.spec import F32
from octavo.huggingface.compressed import stored_tensors
from octavo.huggingface.config import Config, Family
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import Checkpoint
from octavo.models.hparams import Hyperparams
from octavo.models.weights import Tensors

OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
BLOCK = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}  # fmt: skip
EXPERT = {
    "w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps", "gate_proj": "ffn_gate_exps",
    "down_proj": "ffn_down_exps", "up_proj": "ffn_up_exps",
}  # fmt: skip
IGNORED = ("rotary_emb.inv_freq",)
"""Ends of names of tensors that follow from the configuration."""

_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,4})\.(.+)")
_EXPERT = re.compile(r"(?:block_sparse_moe|mlp)\.experts\.(0|[1-9][0-9]{0,4})\.(\w+)\.weight")
_FUSED = re.compile(r"(?:block_sparse_moe|mlp)\.experts\.(gate_up_proj|down_proj)(?:\.weight)?")


@dataclass
class _Found:
    """The tensors of a checkpoint by GGUF name: one each, or one an expert, or a half of a tensor for all experts."""

    single: dict[str, LazyTensor] = field(default_factory=dict)
    experts: dict[str, dict[int, LazyTensor]] = field(default_factory=dict)
    halves: dict[str, tuple[LazyTensor, int]] = field(default_factory=dict)


def gguf_tensors(
    checkpoint: Checkpoint, config: Config, hp: Hyperparams, family: Family, *, divisors: F32 | None = None
) -> tuple[LazyTensor, ...]:
    """The tensors in the order of the model: vectors and routers as F32, matrices as they are stored.

    Where config.json says that the embedding is the output matrix, one in the checkpoint is left out.

    divisors  of rope frequencies, which become a tensor

    Raises ModelError for a tensor that is missing, not known, or of another shape than the configuration says.
    """
    tied = config.flag("tie_word_embeddings", False)
    found = _find(stored_tensors(checkpoint, config, _left_out(tied)))
    expected: Tensors = importlib.import_module(f"octavo.models.{hp.arch}").tensors(hp)
    if not tied and "output.weight" not in found.single:
        raise _fault(checkpoint, "lm_head.weight", "is missing", "with tie_word_embeddings")
    made: list[LazyTensor] = []
    for name, want in expected.items():
        if name == "rope_freqs.weight" and divisors is not None:
            made.append(_constant(name, divisors))
            continue
        tensor = _made(checkpoint, found, name, hp, family)
        if tensor is None and not want.optional:
            raise _fault(checkpoint, name, "is missing", f"shape {list(want.shape)}")
        if tensor is not None and tensor.shape != want.shape:
            problem = f"shape {list(tensor.shape)} contradicts the configuration"
            raise _fault(checkpoint, name, problem, f"shape {list(want.shape)}")
        if tensor is not None:
            made.append(tensor)
    _refuse_others(checkpoint, found, expected)
    return tuple(made)


def _left_out(tied: bool) -> Callable[[str], bool]:
    return lambda name: name.endswith(IGNORED) or (tied and name.startswith("lm_head."))


def _find(tensors: Mapping[str, LazyTensor]) -> _Found:
    found = _Found()
    for name, tensor in tensors.items():
        layer = _LAYER.fullmatch(name)
        if layer is None or not _find_in_layer(found, f"blk.{layer[1]}.", layer[2], tensor):
            found.single[OUTER.get(name, name)] = tensor
    return found


def _find_in_layer(found: _Found, prefix: str, part: str, tensor: LazyTensor) -> bool:
    """Put a layer's tensor where it belongs; whether it is known."""
    if (expert := _EXPERT.fullmatch(part)) and expert[2] in EXPERT:
        found.experts.setdefault(f"{prefix}{EXPERT[expert[2]]}.weight", {})[int(expert[1])] = tensor
        return True
    if fused := _FUSED.fullmatch(part):
        if fused[1] == "down_proj":
            found.single[f"{prefix}ffn_down_exps.weight"] = tensor
        else:
            for half, kind in enumerate(("gate", "up")):
                found.halves[f"{prefix}ffn_{kind}_exps.weight"] = tensor, half
        return True
    stem, _, kind = part.rpartition(".")
    if stem not in BLOCK or kind not in ("weight", "bias"):
        return False
    found.single[f"{prefix}{BLOCK[stem]}.{kind}"] = tensor
    return True


def _made(checkpoint: Checkpoint, found: _Found, name: str, hp: Hyperparams, family: Family) -> LazyTensor | None:
    """The tensor called `name`, to be made when its turn comes; None where the checkpoint has nothing for it."""
    if name in found.experts:
        parts = found.experts[name]
        rows = [parts[i] for i in range(hp.n_expert) if i in parts]
        if len(rows) < hp.n_expert or len(parts) > hp.n_expert:
            raise _fault(checkpoint, name, f"has experts {_few(sorted(parts))}", f"0 to {hp.n_expert - 1}")
        if len({(t.format, t.shape) for t in rows}) > 1:
            raise _fault(checkpoint, name, "has experts of different shapes or types", "one shape and type")
        if not rows[0].format.is_float:
            raise _fault(checkpoint, name, f"has experts of {rows[0].format.name}", "experts of F32, F16 or BF16")
        return _source(name, rows[0].format, (len(rows), *rows[0].shape), lambda: _stacked(rows))
    if name in found.halves:
        both, half = found.halves[name]
        if len(both.shape) != 3 or both.shape[1] % 2:
            raise _fault(checkpoint, name, f"has shape {list(both.shape)} for gate and up", "two halves of rows")
        shape = both.shape[0], both.shape[1] // 2, both.shape[2]
        return _source(name, both.format, shape, lambda: _half(both, half))
    if name not in found.single:
        return None
    tensor = found.single[name]
    heads = {"attn_q": hp.n_head, "attn_k": hp.n_head_kv}.get(name.rpartition(".")[0].rpartition(".")[2])
    if family.permuted and heads and tensor.shape[0] % (2 * heads) == 0:
        return _source(name, tensor.format, tensor.shape, lambda: _interleaved(tensor.load(), heads))
    return _source(name, tensor.format, tensor.shape, tensor.load)


def _source(name: str, fmt: BlockFormat, shape: tuple[int, ...], load: Callable[[], QTensor]) -> LazyTensor:
    if len(shape) > 1 and not name.endswith("ffn_gate_inp.weight"):
        return LazyTensor(name, fmt, shape, lambda: _named(load(), name))
    return LazyTensor(name, by_name("F32"), shape, lambda: _named(_as_f32(load()), name))


def _named(tensor: QTensor, name: str) -> QTensor:
    return QTensor(tensor.format, tensor.shape, tensor.data, name)


def _as_f32(tensor: QTensor) -> QTensor:
    values = np.ascontiguousarray(dequantize(tensor))
    return QTensor(by_name("F32"), tensor.shape, values.view(np.uint8))


def _constant(name: str, values: F32) -> LazyTensor:
    plain = by_name("F32")
    return LazyTensor(name, plain, values.shape, lambda: quantize_reference(values, plain, name))


def _stacked(parts: list[LazyTensor]) -> QTensor:
    """Experts [N, K] each as one tensor [E, N, K]."""
    first = parts[0]
    fmt, shape = first.format, (len(parts), *first.shape)
    data = np.empty((*shape[:-1], fmt.row_bytes(shape[-1])), dtype=np.uint8)
    for i, part in enumerate(parts):
        data[i] = part.load().data
    return QTensor(fmt, shape, data)


def _half(both: LazyTensor, half: int) -> QTensor:
    """The gate's rows or the up projection's of [E, 2 N, K]."""
    loaded = both.load()
    n = loaded.shape[1] // 2
    data = np.ascontiguousarray(loaded.data[:, half * n : (half + 1) * n])
    return QTensor(loaded.format, (loaded.shape[0], n, loaded.shape[2]), data)


def _interleaved(tensor: QTensor, heads: int) -> QTensor:
    """Rows (or values of a bias) of q or k from rope on halves of a head to rope on neighbours."""
    rows = tensor.data.reshape(tensor.shape[0], -1)
    turned = rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2)
    return QTensor(tensor.format, tensor.shape, np.ascontiguousarray(turned).reshape(tensor.data.shape))


def _refuse_others(checkpoint: Checkpoint, found: _Found, expected: Mapping[str, object]) -> None:
    others = [name for names in (found.single, found.experts, found.halves) for name in names if name not in expected]
    if others:
        raise _fault(checkpoint, others[0], f"and {len(others) - 1} more are not part of this architecture", None)


def _few(numbers: list[int]) -> str:
    first = ", ".join(map(str, numbers[:4]))
    return first if len(numbers) <= 4 else f"{first}, ... ({len(numbers)})"


def _fault(checkpoint: Checkpoint, name: str, problem: str, allowed: str | None) -> ModelError:
    return ModelError(problem, file=checkpoint.folder, field=f"tensor {shown(name)}", allowed=allowed)
