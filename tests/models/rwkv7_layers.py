"""A model of transformers with the layers of RWKV-7 in place of its own, as the authors' NumPy program has them.

Source: arXiv 2503.14456, and RWKV-v7/rwkv_v7_numpy.py of github.com/BlinkDL/RWKV-LM. Modules are called what
flash-linear-attention calls them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

RANKS = {"w": "decay_low_rank_dim", "a": "a_low_rank_dim", "v": "v_low_rank_dim", "g": "gate_low_rank_dim"}


class Factors(nn.Module):
    def __init__(self, width: int, rank: int, between: nn.Module, bias: bool) -> None:
        super().__init__()
        self.lora = nn.Sequential(nn.Linear(width, rank, bias=False), between, nn.Linear(rank, width, bias=bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lora(x)  # type: ignore[no-any-return]


def shares(width: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(width))


def before(x: torch.Tensor) -> torch.Tensor:
    """Of each token [T, C] the one before it, and zeros of the first."""
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]])


class TimeMix(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        width, self.size = config.hidden_size, config.head_dim
        self.gated, normed = getattr(config, "wkv_has_gate", True), getattr(config, "wkv_has_group_norm", True)
        self.heads = width // self.size
        self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g = (shares(width) for _ in range(6))
        self.k_k, self.k_a = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.r_k = nn.Parameter(torch.zeros(self.heads, self.size))
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        between = {"w": nn.Tanh(), "a": nn.Identity(), "v": nn.Identity(), "g": nn.Sigmoid()}
        for name, word in RANKS.items():
            if (layer or name != "v") and (self.gated or name != "g"):
                setattr(self, f"{name}_lora", Factors(width, getattr(config, word), between[name], name != "g"))
        self.w_lora.lora[2].bias.data = torch.linspace(-6, 1, width)
        self.g_norm = nn.GroupNorm(self.heads, width, eps=64e-5) if normed else nn.Identity()

    def forward(self, x: torch.Tensor, first: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        last = before(x)
        r, w, k, v, a, g = (x + m * (last - x) for m in (self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g))
        gate, decay = self.g_lora(g) if self.gated else 1.0, torch.exp(-math.exp(-0.5) * torch.sigmoid(self.w_lora(w)))
        share = None if first is None else torch.sigmoid(self.v_lora(v))
        r, k, v, rate = self.r_proj(r), self.k_proj(k), self.v_proj(v), torch.sigmoid(self.a_lora(a))
        if first is not None and share is not None:
            v = v + (first - v) * share
        unit = nn.functional.normalize((k * self.k_k).unflatten(1, (self.heads, self.size)), dim=-1)
        k = k + k * (rate - 1) * self.k_a
        heads = [y.unflatten(1, (self.heads, self.size)) for y in (r, decay, k, v, rate)]
        y = torch.stack(list(self.through(*heads, unit))).flatten(1)  # [T, C]
        own = (heads[0] * heads[2] * self.r_k).sum(-1, keepdim=True) * heads[3]
        return self.o_proj((self.g_norm(y) + own.flatten(1)) * gate), v if first is None else first

    def through(self, r: Any, decay: Any, k: Any, v: Any, rate: Any, unit: Any) -> Any:
        """[H, N] of each token: a head's matrix of values times keys, times r."""
        state = torch.zeros(self.heads, self.size, self.size)
        for t in range(len(r)):
            known = state @ unit[t][:, :, None]
            state = state * decay[t][:, None] - known * (unit[t] * rate[t])[:, None] + v[t][:, :, None] * k[t][:, None]
            yield (state @ r[t][:, :, None])[:, :, 0]


class ChannelMix(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.x_k = shares(width)
        self.key, self.value = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k = self.key(x + self.x_k * (before(x) - x))
        return self.value(torch.relu(k) ** 2)  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        if layer == 0:
            self.pre_norm = nn.LayerNorm(width, eps)
        self.attn_norm, self.ffn_norm = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attn, self.ffn = TimeMix(config, layer), ChannelMix(width, config.intermediate_size)

    def forward(self, x: torch.Tensor, first: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        x = x if first is not None else self.pre_norm(x)
        y, first = self.attn(self.attn_norm(x), first)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), first


class Rwkv7(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)

    def forward(self, input_ids: torch.Tensor, **others: Any) -> BaseModelOutputWithPast:
        x, first = self.embeddings(input_ids[0]), None
        for block in self.layers:
            x, first = block(x, first)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x)[None])


def rebuild_rwkv7(model: Any) -> None:
    model.model = Rwkv7(model.config)
