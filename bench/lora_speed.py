"""Times a model with and without a LoRA adapter in turns, to bench/results/lora-speed-<model>-<day>.json.

    python bench/lora_speed.py MODEL.gguf [--rank N] [--types F16,F32] [--prompt N] [--steps N] [--turns N]

The adapter is random, of that rank, and changes every matrix of every layer. Its factors are kept in each of the types.
Each model has an engine of its own in this process. A turn is a prompt and that many decode steps of each, in the order
A B B A. `tokens_per_second` and `ratio`, with an adapter over without, are of the fastest turn of each, which other
programs disturbed least; `quartiles` are of the ratios within turns.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np

import results_file
from octavo.backends import select
from octavo.bench.subject import EngineSubject
from octavo.formats import QTensor, by_name, quantize_reference
from octavo.graph.factors import LowRank
from octavo.graph.names import split_layer
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.runtime import Engine, EngineConfig

PLAIN = "none"


def random_adapter(file: GGUFFile, rank: int, kind: str, seed: int = 0) -> dict[str, LowRank]:
    """Factors for every matrix of every layer."""
    rng = np.random.default_rng(seed)

    def factor(*shape: int) -> QTensor:
        return quantize_reference(0.01 * rng.standard_normal(shape), by_name(kind))

    shapes = {info.name: info.shape for info in file.tensors.values() if len(info.shape) == 2}
    return {
        name: LowRank(factor(rank, k), factor(n, rank))
        for name, (n, k) in shapes.items()
        if split_layer(name)[0] is not None
    }


def ready(model: ModelSpec, device: str, most: int, threads: int | None) -> EngineSubject:
    subject = EngineSubject(Engine(model, select(device, threads), EngineConfig(n_ctx=most, n_batch=512)))
    subject.engine.load()
    return subject


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--types", default="F16,F32")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    names = [PLAIN, *options.types.split(",")]
    times: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in names} for kind in ("prompt", "decode")}
    with GGUFFile.open(options.model) as file:
        plain = read_model(file)
        adapters = {kind: random_adapter(file, options.rank, kind) for kind in names[1:]}
        models = {PLAIN: plain, **{kind: replace(plain, added=added) for kind, added in adapters.items()}}
        most = max(options.prompt, options.steps) + 1
        subjects = {name: ready(model, options.device, most, options.threads) for name, model in models.items()}
        for turn in range(-1, options.turns):  # the first one warms up
            for name in names if turn % 2 == 0 else reversed(names):
                prompt = subjects[name].prefill(options.prompt)
                subjects[name].prepare(0, 1)
                decode = subjects[name].decode(options.steps)
                if turn >= 0:
                    times["prompt"][name].append(prompt / options.prompt)
                    times["decode"][name].append(decode / options.steps)
        added = {
            kind: sum(pair.a.nbytes + pair.b.nbytes for pair in found.values()) for kind, found in adapters.items()
        }
    rows = {kind: {name: _compared(found[PLAIN], found[name]) for name in names} for kind, found in times.items()}
    result = {
        **results_file.described(), "model": Path(options.model).name,
        "model_bytes": Path(options.model).stat().st_size, "rank": options.rank,
        "adapter_bytes": added, "prompt_tokens": options.prompt, "device": options.device, **rows,
        "seconds": times,
    }
    results_file.write(f"lora-speed-{Path(options.model).stem}", result, options.output)


def _compared(plain: list[float], found: list[float]) -> dict[str, object]:
    ratios = [a / b for a, b in zip(plain, found, strict=True)]
    return {
        "tokens_per_second": 1 / min(found), "ratio": min(plain) / min(found),
        "quartiles": statistics.quantiles(ratios, n=4)[::2],
    }


if __name__ == "__main__":
    main()
