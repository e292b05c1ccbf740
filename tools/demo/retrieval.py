"""Trains a small model that looks things up in a context of 8,192 tokens, in minutes of a CPU, and writes it as GGUF.

python tools/demo/retrieval.py build/demo/retrieval.gguf --minutes 15

A row is pairs of a key and its value, each key once, and then questions: a key of before, whose value is the answer;
`octavo eval retrieval` asks the same. Training begins with the known circuit for that, an induction head (Olsson et al.
2022, arXiv 2209.11895), written into otherwise random weights; from random weights alone it takes hours of a CPU. In
the first layer each token fetches the one before it, in the second a key finds the token that came after it.
"""

from __future__ import annotations

import argparse
import time
from itertools import chain
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from export import add_sizes, tensor_name
from model import Config, Decoder
from torch import Tensor

from octavo.evals.retrieval import KEY, VALUE, draw

PLAIN, KEYS, VALUES = 257, 4095, 512
"""Tokens: bytes and a pair of them, as a byte-level vocabulary has a merge at least; keys; values."""
CONFIG = Config(
    vocabulary=PLAIN + KEYS + VALUES, width=128, layers=2, heads=2, kv_heads=2, head_width=128, ffn=256, context=8192,
    rope_base=1e10,
)
TOKENS = 2048
"""Tokens of a step, or as many as a row has."""
SCHEDULE = ((256, 0.4), (1024, 0.4), (2048, 0.2))
"""Lengths of rows, and the share of the time that each is trained for."""

OWN, CONSTANT, BEFORE = slice(63), 63, slice(64, 127)
"""Channels of the residual stream: a token's own vector, a constant, and the vector of the token before it."""
FAST, SLOW = 8, [*range(32, 64), *range(97, 128)]
"""Pairs of a head that turn fast enough to tell tokens beside each other apart; values that hardly turn."""
NEAR, SIMILAR = 2.3, 1.5
"""Weights of the norms of queries and keys, which say how sharply heads look."""


@torch.no_grad()
def write_circuit(model: Decoder) -> None:
    """Adds an induction head to random weights."""
    c = model.config
    for weight in model.layers.parameters():
        if weight.ndim == 2:
            weight.mul_(0.25)
    embedding, half = model.embed_tokens.weight, c.head_width // 2
    embedding.copy_(F.pad(F.normalize(torch.randn(c.vocabulary, 63), dim=1), (0, c.width - 63)))
    embedding[:, CONSTANT] = 0.5
    turns = torch.tensor(c.rope_base) ** (-torch.arange(FAST) / half)
    size = turns.sqrt() / turns.sqrt().sum()
    first, second = (layer.self_attn for layer in model.layers)
    for head in (slice(0, c.head_width), slice(c.head_width, 2 * c.head_width)):
        q, k = first.q_proj.weight[head], first.k_proj.weight[head]
        q[:FAST, CONSTANT], q[half : half + FAST, CONSTANT] = size.sqrt() * turns.cos(), -size.sqrt() * turns.sin()
        k[:FAST, CONSTANT] = size.sqrt()
        eye = torch.eye(63)
        second.q_proj.weight[head][SLOW, OWN] += eye
        second.k_proj.weight[head][SLOW, BEFORE] += eye
        for layer, to, gain in ((first, BEFORE, 0.05), (second, OWN, 0.3)):
            layer.v_proj.weight[head][:63, OWN] += eye
            layer.o_proj.weight[to, head][:, :63] += gain * eye
    for layer, weight in ((first, NEAR), (second, SIMILAR)):
        layer.q_norm.weight.fill_(weight)
        layer.k_norm.weight.fill_(weight)


def batch(rng: np.random.Generator, length: int) -> tuple[Tensor, Tensor]:
    """Tokens [rows, length], and where in them (flat) a question's key is, [questions]."""
    keys, values = np.arange(PLAIN, PLAIN + KEYS), np.arange(PLAIN + KEYS, PLAIN + KEYS + VALUES)
    rows = [draw(rng, keys, values, length) for _ in range(max(1, TOKENS // length))]
    tokens = torch.from_numpy(np.stack([row.tokens for row in rows]))
    asked = torch.from_numpy(np.stack([row.asked for row in rows]).reshape(-1).nonzero()[0])
    return tokens, asked


def train(model: Decoder, seconds: float, lr: float, seed: int) -> None:
    """Updates `model` for so long, by the schedule; the learning rate falls to zero by the clock."""
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.98), weight_decay=0.01)
    ends = np.cumsum([share for _, share in SCHEDULE])
    started, count = time.monotonic(), 0
    while (done := (time.monotonic() - started) / seconds) < 1:
        length = SCHEDULE[min(int(np.searchsorted(ends, done, "right")), len(SCHEDULE) - 1)][0]
        tokens, asked = batch(rng, length)
        hidden = model.hidden(tokens).flatten(0, 1)[asked]
        logits = F.linear(hidden, model.embed_tokens.weight)
        loss = F.cross_entropy(logits, tokens.flatten()[asked + 1])
        loss.backward()
        optimizer.param_groups[0]["lr"] = lr * min(1.0, done / 0.05, (1 - done) / 0.5)
        optimizer.step()
        optimizer.zero_grad()
        count += 1
        if count % 20 == 1:
            right = (logits.argmax(-1) == tokens.flatten()[asked + 1]).float().mean().item()
            print(f"{done:6.1%}  step {count}  rows of {length}  loss {loss.item():.4f}  right {right:.2%}", flush=True)


def export(model: Decoder, out: Path) -> None:
    """Writes `out`: matrices F16, norms F32, tokens of bytes, keys and values."""
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(out, "qwen3")
    writer.add_name("Octavo retrieval")
    writer.add_description("Looks up values of keys in its context; for measuring caches and attention.")
    writer.add_license("apache-2.0")
    add_sizes(writer, model.config)
    texts = [*_byte_texts(), "ab", *(KEY.format(i) for i in range(KEYS)), *(VALUE.format(i) for i in range(VALUES))]
    normal, named = gguf.TokenType.NORMAL, gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(texts)
    writer.add_token_types([normal] * PLAIN + [named] * (KEYS + VALUES))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    for name, weight in model.state_dict().items():
        stored = weight.half() if weight.ndim == 2 else weight.float()
        writer.add_tensor(tensor_name(name), stored.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _byte_texts() -> list[str]:
    """How byte-level vocabularies write the 256 bytes: printable ones as they are, the others from U+0100 on."""
    printable = {*chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    model = Decoder(CONFIG)
    write_circuit(model)
    train(model, options.minutes * 60, options.lr, options.seed)
    export(model, options.out)


if __name__ == "__main__":
    main()
