"""Drafters of the demo model in plain torch: an MTP head, an EAGLE-3 head, and a small model.

At position i a head reads the token after it and the model's hidden state of i, and guesses the token after the next
one. A longer draft takes a pass for each token, in which the head's own state of the pass before is in place of the
model's.
Training does the same (DeepSeek-V3, arXiv 2412.19437, section 2.2; EAGLE-3, arXiv 2503.01840, section 3): the states of
pass k are those that k guesses in a row have left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812
from hidden_states import TARGET_LAYERS, States
from model import Attention, Config, Decoder, FeedForward, RMSNorm, rotate, rotations
from torch import Tensor, nn

BEHIND = 2
"""Places from a head's position to the token that it guesses there."""
Turns = tuple[Tensor, Tensor]
Seen = list[tuple[Tensor, Tensor]]
"""Keys and values of each pass, [batch, heads, n, D]."""


def behind(x: Tensor, n: int) -> Tensor:
    """x [..., positions, D] moved back by n positions; zeros before."""
    return F.pad(x, (0, 0, n, 0))[..., : x.shape[-2], :]


class PassAttention(Attention):
    """Attention to what the model has computed up to k positions ago, and to the head's own states since then."""

    def __init__(self, c: Config, inputs: int) -> None:
        super().__init__(c)
        self.q_proj = nn.Linear(inputs, c.heads * c.head_width, bias=False)
        self.k_proj = nn.Linear(inputs, c.kv_heads * c.head_width, bias=False)
        self.v_proj = nn.Linear(inputs, c.kv_heads * c.head_width, bias=False)

    def attend(self, x: Tensor, turns: Turns, seen: Seen) -> Tensor:
        """x [batch, n, inputs] of pass k -> [batch, n, width]; `seen` has keys and values of passes, k of them before
        and k + 1 after."""
        q, k, v = (p(x).unflatten(-1, (-1, self.head_width)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)
        q, k = rotate(q, *turns), rotate(k, *turns)
        shared = q.shape[1] // k.shape[1]
        seen.append((k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)))
        n, number = x.shape[1], len(seen) - 1
        (first_k, first_v), *own = seen
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1 - number)
        scores = [(q @ first_k.mT).masked_fill(hidden, -torch.inf)]
        scores += [(q * behind(key, number - m)).sum(-1, keepdim=True) for m, (key, _) in enumerate(own, 1)]
        shares = (torch.cat(scores, -1) * self.head_width**-0.5).softmax(-1)
        mixed = shares[..., :n] @ first_v
        for m, (_, value) in enumerate(own, 1):
            mixed = mixed + shares[..., n + m - 1 : n + m] * behind(value, number - m)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class Head(nn.Module):
    """What both kinds of heads have: a layer, a norm and logits of the `n_draft` tokens that it can guess."""

    inputs: int

    def __init__(self, model: Decoder, c: Config, inputs: int) -> None:
        super().__init__()
        self.config, self.model = c, (model,)  # in a tuple: its weights are not the head's
        self.self_attn, self.mlp = PassAttention(c, inputs), FeedForward(c)
        self.post_attention_layernorm, self.norm = RMSNorm(c.width, c.eps), RMSNorm(c.width, c.eps)
        self.kept = torch.arange(c.vocabulary)
        """The tokens that it can guess."""

    def state(self, given: States) -> Tensor:
        """What stands for the model's hidden state in the first pass, [batch, n, width]."""
        raise NotImplementedError

    def layer(self, tokens: Tensor, state: Tensor, turns: Turns, seen: Seen) -> Tensor:
        """The head's own state, [batch, n, width], of embeddings and states."""
        raise NotImplementedError

    def logits(self, state: Tensor) -> Tensor:
        """[..., width] -> [..., len(kept)]."""
        raise NotImplementedError

    def passes(self, given: States, n: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each of n passes: where a draft may have its token, [batch, n], and the logits there, [places, kept]."""
        c = self.config
        turns = rotations(torch.arange(given.tokens.shape[1]), c.head_width, c.rope_base)
        embedded = self.model[0].embed_tokens(given.tokens.roll(-1, 1))
        state, seen = self.state(given), Seen()
        for number in range(n):
            state = self.layer(embedded, state, turns, seen)
            places = guessed(given.learned, number, BEHIND)
            yield places, self.logits(state[places])
            state = behind(state, 1)


def guessed(learned: Tensor, number: int, ahead: int) -> Tensor:
    """Where the token `ahead` of a position is of an answer, whose first token a draft of `number` more comes after."""
    places = learned.roll(-ahead, 1) & learned.roll(number + 1 - ahead, 1)
    places[:, learned.shape[1] - ahead :] = False
    places[:, :number] = False
    return places


class Mtp(Head):
    """A layer that guesses tokens, as DeepSeek-V3 has it; states are those behind the last norms."""

    def __init__(self, model: Decoder) -> None:
        c = model.config
        super().__init__(model, c, c.width)
        self.enorm, self.hnorm = RMSNorm(c.width, c.eps), RMSNorm(c.width, c.eps)
        self.eh_proj = nn.Linear(2 * c.width, c.width, bias=False)
        self.input_layernorm = RMSNorm(c.width, c.eps)

    def state(self, given: States) -> Tensor:
        out: Tensor = self.model[0].norm(given.final)
        return out

    def layer(self, tokens: Tensor, state: Tensor, turns: Turns, seen: Seen) -> Tensor:
        x: Tensor = self.eh_proj(torch.cat((self.enorm(tokens), self.hnorm(state)), -1))
        x = x + self.self_attn.attend(self.input_layernorm(x), turns, seen)
        out: Tensor = self.norm(x + self.mlp(self.post_attention_layernorm(x)))
        return out

    def logits(self, state: Tensor) -> Tensor:
        return F.linear(state, self.model[0].embed_tokens.weight)


class Eagle3(Head):
    """A layer whose attention reads embeddings beside states, in the first pass those of three layers."""

    def __init__(self, model: Decoder, kept: Tensor) -> None:
        c = replace(model.config, qk_norm=False)
        super().__init__(model, c, 2 * c.width)
        self.fc = nn.Linear(len(TARGET_LAYERS) * c.width, c.width, bias=False)
        self.input_layernorm, self.hidden_norm = RMSNorm(c.width, c.eps), RMSNorm(c.width, c.eps)
        self.kept, self.lm_head = kept, nn.Linear(c.width, len(kept), bias=False)
        self.lm_head.weight.data.copy_(model.embed_tokens.weight[kept])

    def state(self, given: States) -> Tensor:
        out: Tensor = self.fc(given.layers)
        return out

    def layer(self, tokens: Tensor, state: Tensor, turns: Turns, seen: Seen) -> Tensor:
        both = torch.cat((self.input_layernorm(tokens), self.hidden_norm(state)), -1)
        x = state + self.self_attn.attend(both, turns, seen)
        return x + self.mlp(self.post_attention_layernorm(x))

    def logits(self, state: Tensor) -> Tensor:
        out: Tensor = self.lm_head(self.norm(state))
        return out


class Draft(Decoder):
    """A model of few layers, which begin as those of the large one that are named."""

    def __init__(self, model: Decoder, layers: tuple[int, ...]) -> None:
        super().__init__(replace(model.config, layers=len(layers)))
        self.embed_tokens.load_state_dict(model.embed_tokens.state_dict())
        self.norm.load_state_dict(model.norm.state_dict())
        for own, number in zip(self.layers, layers, strict=True):
            own.load_state_dict(model.layers[number].state_dict())
        self.kept = torch.arange(model.config.vocabulary)

    def passes(self, given: States, n: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass: each guess of a model reads only tokens."""
        places = guessed(given.learned, 0, 1)
        yield places, F.linear(self.hidden(given.tokens)[places], self.embed_tokens.weight)
