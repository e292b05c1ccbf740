"""A Llama of transformers with layers as Jais has them, whose embeddings and logits are multiplied."""

from __future__ import annotations

from typing import Any

from alibi import attend_by_distance, put_layer_norms

EMBEDDINGS, LOGITS = 4.0, 0.3


def rebuild_jais(model: Any) -> None:
    put_layer_norms(model, bias=True)
    attend_by_distance(model)
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, found: found * EMBEDDINGS)
    model.lm_head.register_forward_hook(lambda module, inputs, found: found * LOGITS)
    for layer in model.model.layers:
        layer.self_attn.scaling = 1 / layer.self_attn.head_dim
