"""Layers of PLaMo 3, in a Llama of transformers: written after the published modelling code and vLLM's.

Modules and parameters have the names of the published folders, within a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Norm(nn.Module):
    """An RMS norm whose weights have a number added."""

    def __init__(self, size: int, eps: float, offset: float) -> None:
        super().__init__()
        self.weight, self.eps, self.offset = nn.Parameter(torch.zeros(size)), eps, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms(x, self.eps) * (self.weight + self.offset)


def turned(x: torch.Tensor, base: float) -> torch.Tensor:
    """x [H, T, D] with rope on halves of a head."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[1]).double(), base ** (-torch.arange(half).double() / half))
    cos, sin = angles.cos().float(), angles.sin().float()
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    """behind is how many tokens before it a token sees, beside itself; None for all."""

    def __init__(self, config: Any, head: int, base: float, behind: int | None) -> None:
        super().__init__()
        self.heads, self.keys, self.head = config.num_attention_heads, config.num_key_value_heads, head
        self.base, self.behind = base, behind
        rows = (self.heads + 2 * self.keys) * head
        self.qkv_proj = nn.Linear(config.hidden_size, rows, bias=False)
        self.o_proj = nn.Linear(self.heads * head, config.hidden_size, bias=False)

    def normed(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        parts = self.qkv_proj(x[0]).reshape(n, -1, self.head).transpose(0, 1)
        q, k, v = parts.split([self.heads, self.keys, self.keys])
        q, k = (turned(part, self.base) for part in self.normed(q, k))
        k, v = (part.repeat_interleave(self.heads // self.keys, 0) for part in (k, v))
        scores = q @ k.transpose(1, 2) / self.head**0.5
        distance = torch.arange(n)[:, None] - torch.arange(n)[None]
        seen = (distance >= 0) & (distance <= (n if self.behind is None else self.behind))
        out = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        return self.o_proj(out.transpose(0, 1).reshape(1, n, -1))


class Attention3(Attention):
    def __init__(self, config: Any, layer: int) -> None:
        whole = (layer + 1) % config.sliding_window_pattern == 0
        base = config.rope_parameters["rope_theta"] if whole else config.rope_local_theta
        super().__init__(config, config.head_dim, base, None if whole else config.window_size - 1)
        self.q_norm, self.k_norm = (Norm(config.head_dim, config.rms_norm_eps, 1.0) for _ in "qk")

    def normed(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.q_norm(q), self.k_norm(k)


class FeedForward(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(functional.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: Any, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer, self.mlp = mixer, FeedForward(config)
        offsets = {"pre_mixer": 1.0, "post_mixer": 1 / 5, "pre_mlp": 1.0, "post_mlp": 5**-1.5}
        for name, offset in offsets.items():
            setattr(self, f"{name}_norm", Norm(config.hidden_size, config.rms_norm_eps, offset))

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        x = x + self.post_mixer_norm(self.mixer(self.pre_mixer_norm(x)))
        return x + self.post_mlp_norm(self.mlp(self.pre_mlp_norm(x)))


def rebuild_plamo3(model: Any) -> None:
    """Give a Llama PLaMo 3's layers."""
    put_layers(model, lambda i: Attention3(model.config, i))


def put_layers(model: Any, mixer: Any) -> None:
    """Give a Llama layers with what `mixer` makes for each number of a layer."""
    config = model.config
    for i in range(config.num_hidden_layers):
        model.model.layers[i] = Layer(config, mixer(i))
    model.model.norm = Norm(config.hidden_size, config.rms_norm_eps, 1.0)
    config.use_cache = False
