"""NeoBERT in torch, as its paper (arXiv 2502.19587) and its authors' checkpoints have it, with the names of these."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional


class NeoBERTConfig(transformers.PretrainedConfig):  # type: ignore[misc]
    model_type = "neobert"


def turned(x: torch.Tensor) -> torch.Tensor:
    """Each pair of neighbours of [T, H, D] as a complex number, turned by its position."""
    tokens, heads, size = x.shape
    angle = torch.arange(tokens)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
    pairs = torch.view_as_complex(x.reshape(tokens, heads, -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)[:, None]).reshape(x.shape)


class Block(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        d, width = config.hidden_size, 8 * ((int(2 * config.intermediate_size / 3) + 7) // 8)
        self.qkv, self.wo = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        up, down = nn.Linear(d, 2 * width, bias=False), nn.Linear(width, d, bias=False)
        self.ffn = nn.ModuleDict({"w12": up, "w3": down})
        self.attention_norm, self.ffn_norm = (nn.RMSNorm(d, config.norm_eps) for _ in range(2))
        self.heads = config.num_attention_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).view(len(x), self.heads, -1).chunk(3, dim=-1)
        parts = (part.transpose(0, 1) for part in (turned(q), turned(k), v))
        x = x + self.wo(functional.scaled_dot_product_attention(*parts).transpose(0, 1).reshape(x.shape))
        gate, up = self.ffn["w12"](self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.ffn["w3"](functional.silu(gate) * up)  # type: ignore[no-any-return]


class NeoBERT(transformers.PreTrainedModel):  # type: ignore[misc]
    config_class = NeoBERTConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size)
        self.transformer_encoder = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.layer_norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.post_init()

    def forward(self, ids: torch.Tensor) -> SimpleNamespace:
        x = self.encoder(ids[0])
        for block in self.transformer_encoder:
            x = block(x)
        return SimpleNamespace(last_hidden_state=self.layer_norm(x)[None])
