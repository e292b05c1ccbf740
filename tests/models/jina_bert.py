"""JinaBERT 2 in torch, as its paper (arXiv 2310.19923) describes it, with the names that its checkpoints have."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn


def slopes(heads: int) -> list[float]:
    """Those of ALiBi's own code: powers for a power of two, and every second of twice as many heads for the rest."""
    if math.log2(heads).is_integer():
        return [2 ** (-8 / heads * (i + 1)) for i in range(heads)]
    whole = 2 ** math.floor(math.log2(heads))
    return slopes(whole) + slopes(2 * whole)[0::2][: heads - whole]


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        d, f, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        own = nn.ModuleDict({name: nn.Linear(d, d) for name in ("query", "key", "value")})
        norm = nn.LayerNorm(d, eps=eps)
        self.attention = nn.ModuleDict(
            {"self": own, "output": nn.ModuleDict({"dense": nn.Linear(d, d), "LayerNorm": norm})}
        )
        self.mlp = nn.ModuleDict({
            "gated_layers": nn.Linear(d, 2 * f, bias=False), "wo": nn.Linear(f, d),
            "layernorm": nn.LayerNorm(d, eps=eps),
        })
        self.heads = config.num_attention_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, d = x.shape
        own, output = self.attention["self"], self.attention["output"]
        q, k, v = (own[n](x).view(tokens, self.heads, -1).transpose(0, 1) for n in ("query", "key", "value"))
        at = torch.arange(tokens)
        away = (at[None, :] - at[:, None]).abs() * torch.tensor(slopes(self.heads))[:, None, None]
        shares = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(d // self.heads) - away, -1)
        x = output["LayerNorm"](x + output["dense"]((shares @ v).transpose(0, 1).reshape(tokens, d)))
        gate, up = self.mlp["gated_layers"](x).chunk(2, -1)
        return self.mlp["layernorm"](x + self.mlp["wo"](nn.functional.gelu(gate) * up))  # type: ignore[no-any-return]


class JinaBertModel(transformers.PreTrainedModel):
    config_class = transformers.BertConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.embeddings = nn.ModuleDict({
            "word_embeddings": nn.Embedding(config.vocab_size, d), "token_type_embeddings": nn.Embedding(2, d),
            "LayerNorm": nn.LayerNorm(d, eps=config.layer_norm_eps),
        })
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))})

    def forward(self, ids: torch.Tensor) -> Any:
        parts = self.embeddings
        x = parts["LayerNorm"](parts["word_embeddings"](ids[0]) + parts["token_type_embeddings"].weight[0])
        for layer in self.encoder["layer"]:
            x = layer(x)
        return SimpleNamespace(last_hidden_state=x[None])
