"""Times attention of prompts on a GPU, and whole prompts, and writes bench/results/gpu-prefill-<date>.json.

    python bench/gpu_prefill.py [--parts] [--models FOLDER] [--commit HASH] [-o FOLDER]

Attention is causal, of 32 query heads on 8 of 64 or 128 values from a cache whose pages lie in no order, as op
`attention` launches it: of 128 values from caches of each type, exact and by products of 8-bit numbers. Its error is
against float32, over the norm of what it should be; keys of float16 have a mean of their own in each channel. TFLOPS
count half of the products, which is what a causal mask leaves. With --models a synthetic Llama-3-8B in Q4_K_M, made in
FOLDER if it is missing, runs prompts of 2,048 and 8,192 tokens in steps of as many, with each kind of attention. With
--parts there are prompts' parts behind others instead, as a server has them: the kinds of attention take turns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch

import results_file
from gpu_attention import TYPES, filled
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.call import Calls
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.ops import BINDERS
from octavo.bench import gpu, machine
from octavo.bench.subject import EngineSubject
from octavo.bench.synthetic import make
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import PAGE_SIZE, Attention, Node
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig

HEADS, KV_HEADS = 32, 8
CHECKED = 2048  # tokens up to which errors are measured
PARTS, DEPTHS = (256, 512, 1024, 2048, 4096), (0, 2048, 8192, 32768)


class Prompt:
    """Random queries, keys and values of a prompt behind `depth` others, and the call of op `attention` for them."""

    def __init__(
        self, backend: GpuBackend, tokens: int, dim: int, seed: int, kind: str = "f16", attention: Attention = "exact",
        depth: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        shape = (-(-(depth + tokens) // PAGE_SIZE) * PAGE_SIZE, KV_HEADS, dim)
        self.q = torch.randn(tokens, HEADS, dim, device="cuda")
        (keys, self.k), (values, self.v) = filled(kind, shape[0], dim), filled(kind, shape[0], dim)
        if kind == "f16":
            self.k += 2 * torch.randn(*shape[1:], device="cuda").half()
        self.table = torch.randperm(shape[0] // PAGE_SIZE, device="cuda").to(torch.int32)[None]
        self.out = torch.full((tokens, HEADS * dim), torch.nan, device="cuda")
        builder = GraphBuilder("f16", PAGE_SIZE)
        heads = ((HEADS, "q"), (KV_HEADS, "k"), (KV_HEADS, "v"))
        q, k, v = (Node("input", (), ("tokens", h, dim), "f32", name=n) for h, n in heads)
        positions = torch.arange(depth, depth + tokens, dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
        inputs = [self.q, keys, values, positions, starts, self.table]
        node = builder.attention(q, k, v, 0, dim**-0.5)
        self.call = Calls(BINDERS["attention"](Context(backend.target, attention=attention), node, inputs, self.out))

    def error(self) -> float:
        """The norm of what is wrong with the output, over that of what it should be."""
        self.call()
        tokens, _, dim = self.q.shape
        rows = (self.table.long()[0][:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE, device="cuda")).flatten()[:tokens]
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device="cuda").tril()
        wrong = whole = 0.0
        for head in range(HEADS):
            keys, values = (x[rows, head * KV_HEADS // HEADS].float() for x in (self.k, self.v))
            scores = (self.q[:, head] @ keys.T * dim**-0.5).masked_fill(~seen, -torch.inf)
            wanted = torch.softmax(scores, 1) @ values
            wrong += float((self.out[:, head * dim : (head + 1) * dim] - wanted).norm() ** 2)
            whole += float(wanted.norm() ** 2)
        return (wrong / whole) ** 0.5


def attention(backend: GpuBackend) -> Iterator[dict[str, Any]]:
    """A row for each type of cache, size of heads, kind of products and number of tokens."""
    caches = [(kind, 128) for kind in TYPES] + [("f16", 64)]
    for (kind, dim), how, tokens in product(caches, get_args(Attention), (512, 2048, 8192)):
        prompts = [Prompt(backend, tokens, dim, seed, kind, how) for seed in range(2)]
        time = statistics.median(gpu.seconds([p.call for p in prompts]))
        flops = 4 * HEADS * dim * tokens * tokens / 2
        row = {"op": "attention", "cache": kind, "dim": dim, "attention": how, "tokens": tokens,
               "microseconds": time * 1e6, "tflops": flops / time / 1e12}
        if tokens <= CHECKED:
            row["error"] = prompts[0].error()
        yield row


def parts(backend: GpuBackend) -> Iterator[dict[str, Any]]:
    """A row for each type of cache, number of tokens, what is before them, and kind of products."""
    for kind, tokens, depth in product(("f16", "int8"), PARTS, DEPTHS):
        prompts = [Prompt(backend, tokens, 128, 0, kind, how, depth) for how in get_args(Attention)]
        times = [[gpu.seconds([p.call]) for p in prompts] for _ in range(3)]
        flops = 4 * HEADS * 128 * tokens * (depth + tokens / 2)
        for how, of_kind in zip(get_args(Attention), zip(*times, strict=True), strict=True):
            time = statistics.median(t for of_turn in of_kind for t in of_turn)
            yield {"op": "attention", "cache": kind, "dim": 128, "attention": how, "tokens": tokens, "depth": depth,
                   "microseconds": time * 1e6, "tflops": flops / time / 1e12}


def models(folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each kind of attention and number of tokens of a whole prompt."""
    path = folder / "llama3-8b-q4_k_m.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        make("llama3-8b", "Q4_K_M", path)
    for how in get_args(Attention):
        with GGUFFile.open(path) as file:
            config = EngineConfig(n_ctx=8320, n_batch=8192, strict=True)
            subject = EngineSubject(Engine(read_model(file), [GpuBackend(attention=how)], config))
            for tokens in (2048, 8192):
                times = [subject.prefill(tokens) for _ in range(7)][2:]
                yield {"model": "llama3-8b", "format": "Q4_K_M", "attention": how, "tokens": tokens,
                       "tokens_per_second": tokens / statistics.median(times)}
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--models", type=Path)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    backend = GpuBackend()
    rows = []
    alone = parts(backend) if options.parts else attention(backend)
    for part in (alone, models(options.models) if options.models else ()):
        for row in part:
            rows.append(row)
            print(row, flush=True)
    described = results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit)
    results_file.write(f"gpu-prefill{'-parts' * options.parts}", {**described, "rows": rows}, options.output)


if __name__ == "__main__":
    main()
