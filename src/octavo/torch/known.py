"""The folds of models of Hugging Face's transformers, by the classes of their layers. transformers is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from octavo.errors import UsageError
from octavo.torch.folds import Fold

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


@dataclass(frozen=True)
class Layer:
    """Where folds are in a layer, by names of its parts.

    norms  norms, and the linear layers that read each; one that is None or missing in a layer is passed over
    values  what makes the values of heads, and where their sums go: heads may share values, and be the last outputs of
            a layer that makes queries and keys too
    up     what is multiplied with the gate, and what reads it; the second half of a layer that makes both
    offset  what norms add to their weights
    """

    norms: tuple[tuple[str, tuple[str, ...]], ...]
    values: tuple[str, str] = ("self_attn.v_proj", "self_attn.o_proj")
    up: tuple[str, str] | None = ("mlp.up_proj", "mlp.down_proj")
    offset: float = 0.0


_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_LLAMA = Layer((("input_layernorm", QKV), ("post_attention_layernorm", _GATE_UP)))
_GEMMA = replace(_LLAMA, offset=1.0)
_GEMMA2 = Layer((("input_layernorm", QKV), ("pre_feedforward_layernorm", _GATE_UP)), offset=1.0)
_HALVES = ("mlp.gate_up_proj", "mlp.down_proj")
_PHI3 = Layer(
    (("input_layernorm", ("self_attn.qkv_proj",)), ("post_attention_layernorm", _HALVES[:1])),
    ("self_attn.qkv_proj", "self_attn.o_proj"), _HALVES,
)
_GLM = Layer((("input_layernorm", QKV), ("post_attention_layernorm", _HALVES[:1])), up=_HALVES)
_COHERE = Layer((("input_layernorm", (*QKV, *_GATE_UP)),))
_OLMO = Layer(())
_STARCODER2 = Layer((("input_layernorm", QKV), ("post_attention_layernorm", ("mlp.c_fc",))), up=None)
_ARCEE = Layer((("input_layernorm", QKV), ("post_attention_layernorm", ("mlp.up_proj",))), up=None)
_NEMOTRON = replace(_ARCEE, offset=1.0)
_APERTUS = Layer((("attention_layernorm", QKV), ("feedforward_layernorm", ("mlp.up_proj",))), up=None)
_ATTENTION = Layer((("input_layernorm", QKV),), up=None)

LAYERS = {
    **dict.fromkeys((
        "LlamaDecoderLayer", "MistralDecoderLayer", "MinistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer",
        "SmolLM3DecoderLayer", "GraniteDecoderLayer", "SeedOssDecoderLayer", "Ernie4_5DecoderLayer",
        "HeliumDecoderLayer", "HunYuanDenseV1DecoderLayer",
    ), _LLAMA),
    "GemmaDecoderLayer": _GEMMA,
    **dict.fromkeys(("Gemma2DecoderLayer", "Gemma3DecoderLayer"), _GEMMA2),
    "Phi3DecoderLayer": _PHI3,
    **dict.fromkeys(("GlmDecoderLayer", "Glm4DecoderLayer"), _GLM),
    **dict.fromkeys(("CohereDecoderLayer", "Cohere2DecoderLayer"), _COHERE),
    **dict.fromkeys((
        "OlmoDecoderLayer", "Olmo2DecoderLayer", "Olmo3DecoderLayer", "Exaone4DecoderLayer",
    ), _OLMO),
    "Starcoder2DecoderLayer": _STARCODER2,
    "ArceeDecoderLayer": _ARCEE,
    "NemotronDecoderLayer": _NEMOTRON,
    "ApertusDecoderLayer": _APERTUS,
    **dict.fromkeys(("MixtralDecoderLayer", "Qwen3MoeDecoderLayer"), _ATTENTION),
}
"""By the names of their classes. Layers of experts have folds around attention only: their experts aren't nn.Linear."""


def folds_of(model: nn.Module) -> list[Fold]:
    """The folds of a model of transformers, or of a part of one, for `quantize_`: norms and what reads them, values and
    the output of attention, up and down.

    Raises UsageError for a model none of whose layers is known, and for layers with other parts than their classes had.
    """
    layers = {name: part for name, part in model.named_modules() if type(part).__name__ in LAYERS}
    if not layers:
        known = ", ".join(sorted(name.removesuffix("DecoderLayer") for name in LAYERS))
        problem = f"folds of {type(model).__name__}: its layers are none that are known"
        raise UsageError(f"{problem} (allowed: {known}; folds=[Fold(...)] for others)")
    return [fold for name, part in layers.items() for fold in _folds(f"{name}." if name else "", part)]


def _folds(prefix: str, layer: nn.Module) -> Iterator[Fold]:
    kind = LAYERS[type(layer).__name__]
    for norm, readers in kind.norms:
        if getattr(layer, norm, None) is not None:
            yield Fold(prefix + norm, [prefix + name for name in readers], offset=kind.offset)
    v, o = (_linear(layer, name, prefix) for name in kind.values)
    head = getattr(layer.get_submodule(kind.values[0].rpartition(".")[0]), "head_dim", None)
    if not isinstance(head, int):
        raise UsageError(f"{prefix}{kind.values[0]}: the attention has no head_dim (allowed: folds=[Fold(...)])")
    width = v.out_features if kind.values[0] in QKV else (v.out_features - o.in_features) // 2
    heads = np.arange(o.in_features // head) // (o.in_features // width)
    index = v.out_features - width + heads[:, None] * head + np.arange(head)
    yield Fold(prefix + kind.values[0], [prefix + kind.values[1]], index.ravel().tolist())
    if kind.up is not None:
        up, down = (_linear(layer, name, prefix) for name in kind.up)
        first = up.out_features - down.in_features
        yield Fold(prefix + kind.up[0], [prefix + kind.up[1]], list(range(first, up.out_features)))


def _linear(layer: nn.Module, name: str, prefix: str) -> nn.Linear:
    try:
        part = layer.get_submodule(name)
    except AttributeError:
        part = None
    if not isinstance(part, nn.Linear):
        found = "missing" if part is None else f"a {type(part).__name__}"
        allowed = "nn.Linear; folds=[Fold(...)]"
        raise UsageError(f"{prefix}{name} of a {type(layer).__name__} is {found} (allowed: {allowed})")
    return part
