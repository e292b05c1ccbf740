"""A model of transformers with the layers of RWKV-6 in place of its own, with modules as its folders have them.

Source: arXiv 2404.05892, and RWKV-v5/src/model.py of github.com/BlinkDL/RWKV-LM.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from tests.models.rwkv7_layers import before

RANK, DECAY_RANK = 32, 64


def shares(width: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(width))


class TimeMix(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width, self.size = config.hidden_size, config.head_size
        self.heads = width // self.size
        self.time_maa_x, self.time_maa_w, self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g = (
            shares(width) for _ in range(6)
        )
        self.time_maa_w1, self.time_maa_w2 = (
            nn.Parameter(torch.zeros(shape)) for shape in ((width, 5 * RANK), (5, RANK, width))
        )
        self.time_decay = nn.Parameter(torch.linspace(-6, 1, width))
        self.time_decay_w1 = nn.Parameter(torch.zeros(width, DECAY_RANK))
        self.time_decay_w2 = nn.Parameter(torch.zeros(DECAY_RANK, width))
        self.time_faaaa = nn.Parameter(torch.zeros(self.heads, self.size))
        self.receptance, self.key, self.value, self.output, self.gate = (
            nn.Linear(width, width, bias=False) for _ in range(5)
        )
        self.ln_x = nn.GroupNorm(self.heads, width, eps=64e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apart = before(x) - x
        of_token = torch.tanh((x + apart * self.time_maa_x) @ self.time_maa_w1).unflatten(1, (5, RANK))
        own = (self.time_maa_w, self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g)
        w, k, v, r, g = (x + apart * (m + of_token[:, i] @ self.time_maa_w2[i]) for i, m in enumerate(own))
        decay = torch.exp(-torch.exp(self.time_decay + torch.tanh(w @ self.time_decay_w1) @ self.time_decay_w2))
        heads = (
            y.unflatten(1, (self.heads, self.size)) for y in (self.receptance(r), decay, self.key(k), self.value(v))
        )
        y = torch.stack(list(self.through(*heads))).flatten(1)
        return self.output(self.ln_x(y) * nn.functional.silu(self.gate(g)))  # type: ignore[no-any-return]

    def through(self, r: Any, decay: Any, k: Any, v: Any) -> Any:
        """[H, N] of each token: r times a head's matrix of keys times values, with the token's own times u."""
        state = torch.zeros(self.heads, self.size, self.size)
        for t in range(len(r)):
            own = k[t][:, :, None] * v[t][:, None]
            yield (r[t][:, None] @ (state + self.time_faaaa[:, :, None] * own))[:, 0]
            state = decay[t][:, :, None] * state + own


class ChannelMix(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.time_maa_k, self.time_maa_r = shares(width), shares(width)
        self.key, self.value = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, r = (x + (before(x) - x) * m for m in (self.time_maa_k, self.time_maa_r))
        return torch.sigmoid(self.receptance(r)) * self.value(torch.relu(self.key(k)) ** 2)


class Block(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_epsilon
        if layer == 0:
            self.pre_ln = nn.LayerNorm(width, eps)
        self.first, self.ln1, self.ln2 = layer == 0, nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attention, self.feed_forward = TimeMix(config), ChannelMix(width, config.intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pre_ln(x) if self.first else x
        x = x + self.attention(self.ln1(x))
        return x + self.feed_forward(self.ln2(x))  # type: ignore[no-any-return]


class Rwkv6(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.ln_out = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)

    def forward(self, input_ids: torch.Tensor, **others: Any) -> BaseModelOutputWithPast:
        x = self.embeddings(input_ids[0])
        for block in self.blocks:
            x = block(x)
        return BaseModelOutputWithPast(last_hidden_state=self.ln_out(x)[None])


def rebuild_rwkv6(model: Any) -> None:
    model.model = Rwkv6(model.config)
