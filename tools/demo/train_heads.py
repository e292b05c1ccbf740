"""Trains drafters of the demo model on what it says itself, each in a few minutes of one core, and writes their files.

python tools/demo/train_heads.py mtp eagle3 draft --out src/octavo/data

The likeliest tokens of the model are learned where it answers questions of the train split. Steps are counted and seeds
fixed, so that one machine and one version of torch make the same bytes each time.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from corpus import Chats
from export_heads import write
from heads import BEHIND, Draft, Eagle3, Head, Mtp
from hidden_states import States, collect, read_demo
from model import Decoder
from muon import Muon
from torch import Tensor, nn
from train import SHORT, learning_rate, update

from octavo.data import demo_model_path

KINDS = ("mtp", "eagle3", "draft")
ROWS, TRAINED, HELD_OUT = 16, 3000, 64
PASSES, DECAY = 4, 0.9
"""Tokens of a draft that is learned, and what each weighs next to the one before it."""
LR = 0.02
STEPS = {"mtp": 360, "eagle3": 360, "draft": 240}
FEWEST = 2
"""Times that a token has to be in answers to be among those that an EAGLE-3 head guesses."""


def targets(model: Decoder, given: States, ahead: int) -> Tensor:
    """The model's logits of the token `ahead` of each position, [batch, n, vocabulary]."""
    states = model.norm(given.final)
    return F.linear(states, model.embed_tokens.weight).roll(1 - ahead, 1)


def optimizers(drafter: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for matrices, Adam for embeddings, logits and norms."""
    found = [(n, w) for n, w in drafter.named_parameters()]
    apart = ("embed_tokens.weight", "lm_head.weight")
    matrices = [w for n, w in found if w.ndim == 2 and n not in apart]
    rest = [w for n, w in found if w.ndim != 2 or n in apart]
    return [Muon(matrices, LR), torch.optim.AdamW(rest, LR / 10, betas=(0.9, 0.98), weight_decay=0.0)]


def train(drafter: Head | Draft, model: Decoder, states: States, steps: int, seed: int) -> None:
    """Update a drafter, `ROWS` rows a step."""
    ahead, kept = _ahead(drafter), drafter.kept
    order = torch.Generator().manual_seed(seed)
    chain = optimizers(drafter)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in chain]
    for step in range(steps):
        given = states.rows(torch.randint(len(states.tokens), (ROWS,), generator=order))
        loss = torch.zeros(())
        with torch.autocast("cpu", torch.bfloat16):
            wanted = targets(model, given, ahead).float()
            for number, (places, logits) in enumerate(drafter.passes(given, PASSES)):
                loss = loss + DECAY**number * F.cross_entropy(logits.float(), wanted[places][:, kept].softmax(-1))
        loss.backward()
        share = learning_rate((step + 1) / (steps + 1), warmup=0.05)
        update(chain, peaks, share)
        if (step + 1) % 40 == 0:
            print(f"step {step + 1}  loss {loss.item():.4f}  {time.process_time():.0f} s of CPU", flush=True)


@torch.inference_mode()
def agreement(drafter: Head | Draft, model: Decoder, states: States) -> list[float]:
    """How often the likeliest token of each pass is the model's, if the tokens before it are."""
    right, all_ = [0] * PASSES, [0] * PASSES
    for start in range(0, len(states.tokens), ROWS):
        given = states.rows(slice(start, start + ROWS))
        wanted = targets(model, given, _ahead(drafter)).argmax(-1)
        for number, (places, logits) in enumerate(drafter.passes(given, PASSES)):
            right[number] += int((drafter.kept[logits.argmax(-1)] == wanted[places]).sum())
            all_[number] += int(places.sum())
    return [a / b for a, b in zip(right, all_, strict=True) if b]


def _ahead(drafter: Head | Draft) -> int:
    return BEHIND if isinstance(drafter, Head) else 1


def made(kind: str, model: Decoder, states: States) -> Head | Draft:
    """A drafter of a kind before it learns."""
    if kind == "mtp":
        return Mtp(model)
    if kind == "draft":
        return Draft(model, (0, 9))
    counts = torch.bincount(states.tokens[states.learned], minlength=model.config.vocabulary)
    return Eagle3(model, torch.nonzero(counts >= FEWEST).flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the files")
    parser.add_argument("--states", type=Path, help="a file that keeps the model's states between runs")
    parser.add_argument("--rows", type=int, default=TRAINED)
    parser.add_argument("--steps", type=int, help="default: what takes a few minutes")
    parser.add_argument("--resume", type=Path, help="a folder whose weights, demo-<kind>.pt, to start from")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = read_demo(str(demo_model_path()))
    if options.states is not None and options.states.exists():
        states = States(**torch.load(options.states))
    else:
        states = collect(model, Chats(tokenizer, SHORT, options.seed), options.rows + HELD_OUT)
        if options.states is not None:
            torch.save(vars(states), options.states)
    print(f"{int(states.learned.sum())} tokens of answers, {time.process_time():.0f} s of CPU", flush=True)
    tokens = len(states.tokens)
    trained = States(*(part[: tokens - HELD_OUT] for part in vars(states).values()))
    held_out = States(*(part[tokens - HELD_OUT :] for part in vars(states).values()))
    for kind in options.kinds:
        torch.manual_seed(options.seed)
        drafter = made(kind, model, trained)
        if options.resume is not None:
            drafter.load_state_dict(torch.load(options.resume / f"demo-{kind}.pt"))
        train(drafter, model, trained, options.steps or STEPS[kind], options.seed)
        print(kind, " ".join(f"{share:.3f}" for share in agreement(drafter, model, held_out)), flush=True)
        torch.save(drafter.state_dict(), options.out / f"demo-{kind}.pt")
        write(drafter, kind, options.out / f"demo-{kind}.gguf")


if __name__ == "__main__":
    main()
