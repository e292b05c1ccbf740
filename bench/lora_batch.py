"""Times decode steps of a batch in which each sequence has an adapter of its own, beside steps without, in turns.

    python bench/lora_batch.py MODEL.gguf [--adapters N] [--sequences N] [--rank N] [--type F16] [--device cpu|gpu]

The adapters are random, of that rank, and change every matrix of every layer; sequences have them by turns. One engine
computes both kinds of steps, in the order A B B A. `ratio` is the rate with adapters over that without, by the fastest
turn of each, which other programs disturbed least, and `quartiles` are of the ratios within turns. `same_tokens` is the
share of the tokens of greedy replies that are those which each adapter gives alone. It writes
bench/results/lora-batch-<model>-<device>-<day>.json.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import results_file
from lora_speed import random_adapter
from octavo.backends import select
from octavo.bench.subject import EngineSubject
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed

PROMPT = 24


def replies(engine: Engine, slots: list[int | None], tokens: int) -> list[list[int]]:
    """Greedy replies of sequences with these adapters, in steps together; each has a prompt of its own."""
    sequences, found = [Sequence(adapter=slot) for slot in slots], [list[int]() for _ in slots]
    feeds = [Feed(s, [(7 + 31 * (s.adapter or 0) + 3 * at) % 1000 for at in range(PROMPT)]) for s in sequences]
    for _ in range(tokens):
        chosen = engine.step(feeds).argmax(axis=1).tolist()
        for reply, token in zip(found, chosen, strict=True):
            reply.append(token)
        feeds = [Feed(s, [token]) for s, token in zip(sequences, chosen, strict=True)]
    for sequence in sequences:
        engine.release(sequence)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--type", default="F16")
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=8, help="of each reply that is compared")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    config = EngineConfig(
        n_ctx=options.depth + options.steps + 64, n_batch=512, max_sequences=options.sequences,
        max_loras=options.adapters, max_lora_rank=options.rank,
    )
    with GGUFFile.open(options.model) as file:
        engine = Engine(read_model(file), select(options.device, options.threads), config)
        subject = EngineSubject(engine)
        engine.load()
        nbytes = 0
        for slot in range(options.adapters):
            added = random_adapter(file, options.rank, options.type, seed=slot)
            engine.put_adapter(slot, added)
            nbytes = sum(pair.a.nbytes + pair.b.nbytes for pair in added.values())
    slots: dict[str, list[int | None]] = {
        "without": [None] * options.sequences, "with": [i % options.adapters for i in range(options.sequences)],
    }
    alone = [replies(engine, [slot], options.tokens)[0] for slot in range(options.adapters)]
    together = replies(engine, slots["with"], options.tokens)
    same = [a == b for i, reply in enumerate(together)
            for a, b in zip(reply, alone[i % options.adapters], strict=True)]
    times: dict[str, list[float]] = {name: [] for name in slots}
    subject.prepare(options.depth, options.sequences)
    for turn in range(-2, options.turns):  # the first ones warm up
        for name in ("without", "with") if turn % 2 else ("with", "without"):
            for sequence, chosen in zip(subject.sequences, slots[name], strict=True):
                sequence.adapter = chosen
            seconds = subject.decode(options.steps) / options.steps
            if turn >= 0:
                times[name].append(seconds)
    ratios = [a / b for a, b in zip(times["without"], times["with"], strict=True)]
    result = {
        **results_file.described(), "model": Path(options.model).name, "device": options.device,
        "adapters": options.adapters, "sequences": options.sequences, "rank": options.rank, "type": options.type,
        "adapter_bytes": nbytes, "tokens_per_second": {n: options.sequences / min(t) for n, t in times.items()},
        "ratio": min(times["without"]) / min(times["with"]), "median": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2], "same_tokens": sum(same) / len(same), "seconds": times,
    }
    results_file.write(f"lora-batch-{Path(options.model).stem}-{options.device}", result, options.output)


if __name__ == "__main__":
    main()
