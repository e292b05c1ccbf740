"""The demo model in plain torch: the Qwen3 architecture with tied embeddings, named as in Hugging Face checkpoints.

Less the norms of queries and keys it is Llama's; with experts for a feed-forward Qwen3-MoE's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes; every row of a matrix (width, heads * head_width, ffn) is a multiple of 256, as K-quants want.

    qk_norm  queries and keys are normalized
    tied     the embedding is the output matrix too
    experts  feed-forwards of a layer, of which a token goes through two; 0: one, for all
    """

    vocabulary: int = 1024
    width: int = 256
    layers: int = 10
    heads: int = 8
    kv_heads: int = 2
    head_width: int = 64
    ffn: int = 512
    context: int = 1024
    rope_base: float = 10_000.0
    eps: float = 1e-6
    qk_norm: bool = True
    tied: bool = True
    experts: int = 0


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


def rotations(positions: Tensor, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin, [positions, head_width]: dimension i turns with i + head_width / 2 (NEOX order)."""
    half = torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32) / head_width
    angles = torch.outer(positions.float(), base**-half).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.head_width = c.head_width
        self.q_proj = nn.Linear(c.width, c.heads * c.head_width, bias=False)
        self.k_proj = nn.Linear(c.width, c.kv_heads * c.head_width, bias=False)
        self.v_proj = nn.Linear(c.width, c.kv_heads * c.head_width, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_width, c.width, bias=False)
        self.q_norm = RMSNorm(c.head_width, c.eps) if c.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(c.head_width, c.eps) if c.qk_norm else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.head_width)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.width, c.ffn, bias=False)
        self.up_proj = nn.Linear(c.width, c.ffn, bias=False)
        self.down_proj = nn.Linear(c.ffn, c.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Experts(nn.Module):
    """The feed-forwards that a router finds likeliest, each times its share."""

    USED = 2

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(c.width, c.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(c) for _ in range(c.experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        shares, chosen = self.gate(flat).softmax(-1).topk(self.USED)
        shares = shares / shares.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            out = out.index_add(0, token, expert(flat[token]) * shares[token, place, None])
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c.width, c.eps), RMSNorm(c.width, c.eps)
        self.self_attn, self.mlp = Attention(c), Experts(c) if c.experts else FeedForward(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """tokens [batch, n] -> logits [batch, n, vocabulary]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.eps)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * config.layers) ** 0.5 if residual else 0.02)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What logits are made of, [batch, n, width]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        cos, sin = rotations(positions, self.config.head_width, self.config.rope_base)
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.norm(x)
        return out

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.hidden(tokens), (self.lm_head or self.embed_tokens).weight)


@torch.inference_mode()
def answer_greedily(model: Decoder, prompts: list[list[int]], end: int, longest: int = 64) -> list[list[int]]:
    """The tokens that follow each prompt up to `end` (left out), the likeliest at each step; no KV cache."""
    device = model.embed_tokens.weight.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    tokens = torch.full((len(prompts), int(lengths.max()) + longest), end, device=device)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt, device=device)
    rows = torch.arange(len(prompts), device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for step in range(longest):
        upto = int(lengths.max()) + step
        best = model(tokens[:, :upto])[rows, lengths + step - 1].argmax(-1)
        tokens[rows, lengths + step] = torch.where(done, end, best)
        done |= best == end
        if done.all():
            break
    answers = [row[n : n + longest].tolist() for row, n in zip(tokens, lengths.tolist(), strict=True)]
    return [a[: a.index(end)] if end in a else a for a in answers]
