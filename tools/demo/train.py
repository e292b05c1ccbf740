"""Trains the demo model for a given time on one GPU (or, for a trial, a CPU).

python tools/demo/train.py --tokenizer build/demo/tokenizer.json --out build/demo/weights.safetensors --minutes 9

Rows of two widths take turns: short ones, where single questions are learned, and now and then ones of the whole
context, where positions and long chats are. The learning rate falls to zero by the clock; a long schedule can be split
into parts, each resumed from the weights of the one before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import checkpoint
import torch
import torch.nn.functional as F  # noqa: N812
from corpus import IGNORED, Chats
from generator import questions
from model import Config, Decoder, answer_greedily
from muon import Muon
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from octavo.evals.accuracy import tally

SHORT = 128
LONG_EVERY = 10  # one step in 10 has rows of the whole context


class Steps(IterableDataset[tuple[Tensor, Tensor]]):
    """Tokens and labels of one step after another, [tokens // width, width]; every worker has its own seed."""

    def __init__(self, tokenizer: str, tokens: int, context: int, seed: int) -> None:
        self.tokenizer, self.tokens, self.context, self.seed = tokenizer, tokens, context, seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        seed = self.seed * 1000 + (worker.id if worker else 0)
        tokenizer = Tokenizer.from_file(self.tokenizer)
        short, long = Chats(tokenizer, SHORT, seed), Chats(tokenizer, self.context, seed + 500)
        step = seed
        while True:
            chats = long if step % LONG_EVERY == 0 else short
            tokens, labels = chats.rows(self.tokens // chats.width)
            yield torch.from_numpy(tokens), torch.from_numpy(labels)
            step += 1


def optimizers(model: Decoder, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, Adam for embedding, output, routers and norms."""
    found = [
        (name.startswith("layers") and not name.endswith("mlp.gate.weight"), w) for name, w in model.named_parameters()
    ]
    blocks = [w for in_block, w in found if in_block and w.ndim == 2]
    rest = [w for in_block, w in found if not in_block or w.ndim != 2]
    fused = rest[0].is_cuda
    return [Muon(blocks, lr), torch.optim.AdamW(rest, lr / 5, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)]


def learning_rate(done: float, warmup: float = 0.01, flat: float = 0.35) -> float:
    """The share of the peak rate after `done` (0..1) of the time: warm-up, flat, then linear to zero."""
    return min(1.0, done / warmup, max(0.0, (1 - done) / (1 - flat)))


def update(chain: list[torch.optim.Optimizer], peaks: list[list[float]], share: float) -> None:
    """A step of all optimizers, at this share of the peak rate of each of their groups."""
    for optimizer, peak in zip(chain, peaks, strict=True):
        for group, highest in zip(optimizer.param_groups, peak, strict=True):
            group["lr"] = highest * share
        optimizer.step()
        optimizer.zero_grad()


def train(
    model: Decoder, steps: Iterator[tuple[Tensor, Tensor]], seconds: float, lr: float, part: tuple[float, float]
) -> None:
    """Updates `model` until `seconds` have passed; the clock starts once both row widths are compiled.

    In that time the learning rate goes through the `part` (first, last) of its schedule; (0, 1) is all of it.
    """
    device = model.embed_tokens.weight.device
    first, last = part
    chain = optimizers(model, lr)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in chain]
    started, count, seen = time.monotonic(), 0, 0
    warm = 3 * LONG_EVERY if device.type == "cuda" else 0
    while (done := (time.monotonic() - started) / seconds) < 1 or count < warm:
        tokens, labels = (t.to(device, non_blocking=True) for t in next(steps))
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(tokens)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        loss.backward()
        share = learning_rate(first + (last - first) * done) if count >= warm else 0.01
        update(chain, peaks, share)
        count, seen = count + 1, seen + tokens.numel()
        if count == warm:
            started = time.monotonic()
        if count % 250 == 0:
            print(f"{done:6.1%}  step {count}  {seen / 1e6:.0f} M tokens  loss {loss.item():.4f}", flush=True)


def report(model: Decoder, tokenizer: Tokenizer, n: int, seed: int) -> str:
    """Accuracy on `n` held-out questions, as a table, and some of what was wrong."""
    end = tokenizer.token_to_id("<|im_end|>")
    asked = questions(seed, n)
    chats = [f"<|im_start|>user\n{q.prompt}<|im_end|>\n<|im_start|>assistant\n" for q in asked]
    replies = answer_greedily(model, [tokenizer.encode(chat).ids for chat in chats], end)
    result = tally([(q, tokenizer.decode(reply)) for q, reply in zip(asked, replies, strict=True)])
    wrong = [f"{q.kind}: {q.prompt!r} -> {reply!r}, not {q.answer!r}" for q, reply in result.misses[:60]]
    return "\n".join([*wrong, str(result)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--tokens", type=int, default=65536, help="tokens in a step")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=float, nargs=2, default=(0.0, 1.0), help="part of the learning rate's schedule")
    parser.add_argument("--resume", type=Path, help="start from these weights")
    parser.add_argument("--questions", type=int, default=4000, help="held-out questions asked at the end")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Decoder(Config()).to(device)
    if options.resume:
        checkpoint.load(model, options.resume)
    if device == "cuda":
        for layer in model.layers:
            layer.compile(dynamic=False)
    data = Steps(options.tokenizer, options.tokens, model.config.context, options.seed)
    loader = DataLoader(data, batch_size=None, num_workers=options.workers, pin_memory=device == "cuda")
    train(model, iter(loader), options.minutes * 60, options.lr, tuple(options.part))
    checkpoint.save(model, options.out)

    stored = Decoder(Config()).to(device)
    checkpoint.load(stored, options.out)
    print(report(stored, Tokenizer.from_file(options.tokenizer), options.questions, seed=1))


if __name__ == "__main__":
    main()
