"""Layers of PLaMo 2 and 3, in a Llama of transformers: written after the published modelling code and vLLM's.

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


class Attention2(Attention):
    """Heads of q and k have weights of their own, and nothing is added to them."""

    def __init__(self, config: Any, layer: int) -> None:
        whole = layer in (config.full_attention_idx or [])
        base = config.rope_parameters["rope_theta"] if whole else config.rope_local_theta
        head = config.hidden_size_per_head
        super().__init__(config, head, base, None if whole else config.attention_window_size)
        self.q_weight = nn.Parameter(torch.ones(self.heads, head))
        self.k_weight = nn.Parameter(torch.ones(self.keys, head))

    def normed(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rms(q, 1e-6) * self.q_weight[:, None], rms(k, 1e-6) * self.k_weight[:, None]


class Attention3(Attention):
    def __init__(self, config: Any, layer: int) -> None:
        whole = (layer + 1) % config.sliding_window_pattern == 0
        base = config.rope_parameters["rope_theta"] if whole else config.rope_local_theta
        super().__init__(config, config.head_dim, base, None if whole else config.window_size - 1)
        self.q_norm, self.k_norm = (Norm(config.head_dim, config.rms_norm_eps, 1.0) for _ in "qk")

    def normed(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.q_norm(q), self.k_norm(k)


class Scan(nn.Module):
    """Token by token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.size, self.keys = (
            config.mamba_num_heads, config.hidden_size_per_head, config.mamba_d_state
        )  # fmt: skip
        self.taps, self.eps, self.rank = config.mamba_d_conv, config.rms_norm_eps, max(64, config.hidden_size // 16)
        inner = self.heads * self.size
        self.in_proj = nn.Linear(config.hidden_size, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, self.taps, groups=inner, bias=False)
        self.bcdt_proj = nn.Linear(inner, 2 * self.keys + self.rank, bias=False)
        self.dt_proj = nn.Linear(self.rank, self.heads, bias=False)
        self.dt_bias, self.D = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.ones(self.heads))
        self.A_log = nn.Parameter(torch.arange(1, self.heads + 1).float().log())
        self.B_norm_weight, self.C_norm_weight = (nn.Parameter(torch.ones(self.keys)) for _ in "BC")
        self.dt_norm_weight = nn.Parameter(torch.ones(self.rank))
        self.out_proj = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        gate, x = self.in_proj(x[0]).reshape(n, self.heads, 2, self.size).unbind(2)
        x = functional.pad(x.reshape(n, -1).T, (self.taps - 1, 0))
        x = functional.silu(self.conv1d(x[None])[0].T)
        parts = self.bcdt_proj(x).split([self.keys, self.keys, self.rank], -1)
        b, c, dt = (
            rms(part, self.eps) * weight
            for part, weight in zip(parts, (self.B_norm_weight, self.C_norm_weight, self.dt_norm_weight), strict=True)
        )
        steps = functional.softplus(self.dt_proj(dt) + self.dt_bias)
        x, state, out = x.reshape(n, self.heads, self.size), torch.zeros(self.heads, self.size, self.keys), []
        for t in range(n):
            decay = torch.exp(-steps[t] * self.A_log.exp())
            new = torch.einsum("h,hs,k->hsk", steps[t], x[t], b[t])
            state = state * decay[:, None, None] + new
            y = state @ c[t] + self.D[:, None] * x[t]
            out.append(y * functional.silu(gate[t]))
        return self.out_proj(torch.stack(out).reshape(1, n, -1))


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


def scans(config: Any, layer: int) -> bool:
    if config.num_hidden_layers <= config.mamba_step // 2:
        return bool(layer != config.num_hidden_layers - 1)
    return bool(layer % config.mamba_step != config.mamba_step // 2)


def rebuild_plamo2(model: Any) -> None:
    """Give a Llama PLaMo 2's layers."""
    config = model.config
    _rebuild(model, lambda i: Scan(config) if scans(config, i) else Attention2(config, i))


def rebuild_plamo3(model: Any) -> None:
    """Give a Llama PLaMo 3's layers."""
    _rebuild(model, lambda i: Attention3(model.config, i))


def _rebuild(model: Any, mixer: Any) -> None:
    config = model.config
    for i in range(config.num_hidden_layers):
        model.model.layers[i] = Layer(config, mixer(i))
    model.model.norm = Norm(config.hidden_size, config.rms_norm_eps, 1.0)
    config.use_cache = False
