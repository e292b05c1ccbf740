"""Layers of PLaMo 2, in a Llama of transformers: written after the published modelling code and vLLM's.

Modules and parameters have the names of the published folders, within a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.models.plamo3_layers import Attention, put_layers, rms


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


class Scan(nn.Module):
    """Token by token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.size, self.keys = (
            config.mamba_num_heads, config.hidden_size_per_head, config.mamba_d_state
        )
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


def scans(config: Any, layer: int) -> bool:
    if config.num_hidden_layers <= config.mamba_step // 2:
        return bool(layer != config.num_hidden_layers - 1)
    return bool(layer % config.mamba_step != config.mamba_step // 2)


def rebuild_plamo2(model: Any) -> None:
    """Give a Llama PLaMo 2's layers."""
    config = model.config
    put_layers(model, lambda i: Scan(config) if scans(config, i) else Attention2(config, i))
