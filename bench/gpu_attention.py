"""Times decoding attention from each type of KV cache and writes bench/results/gpu-attention-<date>.json.

    python bench/gpu_attention.py [--commit HASH] [-o FOLDER] [--depths N ...] [--sequences N ...] [--caches TYPE ...]

32 heads on 8 of 128 values, as in Llama-3-8B. Calls are captured in one graph over caches that no L2 holds together,
and the median of some replays counts; kernels are compiled first, on all cores. Each result is held to attention in
float64. Times are of whole nodes: all launches of them, and as in a model's step each may begin before the one before
it ends.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

import results_file
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Cache
from octavo.backends.gpu.ops import BINDERS
from octavo.bench import gpu, machine
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import PAGE_SIZE, Node

HEADS, KV_HEADS, DIM = 32, 8, 128
TYPES = ("f16", "q8_0", "int8", "int8 static", "fp8", "fp8 static")
COLD_BYTES = 250e6
TOLERANCE = 5e-7
Call = Callable[[], object]


class Filled(NamedTuple):
    """A cache of random numbers, and the values that they stand for, float16 or float32 [rows, heads, dim]."""

    cache: Cache
    numbers: torch.Tensor


def filled(kind: str, rows: int, dim: int = DIM) -> Filled:
    """A cache of `rows` rows, of a type of TYPES, with heads of `dim` values."""
    if kind == "f16":
        halves = torch.randn(rows, KV_HEADS, dim, device="cuda").half()
        return Filled(Cache(halves), halves)
    codes = torch.randint(-127, 128, (rows, KV_HEADS, dim), dtype=torch.int8, device="cuda")
    numbers = codes.float()
    name = kind.removesuffix(" static")
    if name == "fp8":
        scaled = torch.randn(rows, KV_HEADS, dim, device="cuda").mul_(100).clamp_(-448, 448).to(torch.float8_e4m3fn)
        codes, numbers = scaled.view(torch.int8), scaled.float()
    if name == "q8_0":
        scales = torch.rand(rows, KV_HEADS, dim // 32, device="cuda").add_(0.5).mul_(1 / 64).half()
        return Filled(Cache(codes, scales, name), numbers * scales.float().repeat_interleave(32, 2))
    if kind.endswith("static"):
        scales = torch.rand(KV_HEADS, device="cuda").add_(0.5).mul_(1 / 64)
        return Filled(Cache(codes, scales, name), numbers * scales[None, :, None])
    scales = torch.rand(rows // PAGE_SIZE, KV_HEADS, PAGE_SIZE, device="cuda").add_(0.5).mul_(1 / 64)
    return Filled(Cache(codes, scales, name), numbers * scales.transpose(1, 2).reshape(rows, KV_HEADS, 1))


def node() -> Node:
    """Attention of float16; of which type a cache is, it says itself."""
    builder = GraphBuilder("f16", 64)
    sizes = (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
    q, k, v = (Node("input", (), ("tokens", heads, DIM), "f32", name=name) for name, heads in sizes)
    return builder.attention(q, k, v, 0, DIM**-0.5)


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Attention [sequences, heads * dim] in float64, of whole pages."""
    place = torch.arange(PAGE_SIZE, device="cuda")
    out = []
    for row, table in zip(q.double(), pages.long(), strict=True):
        rows = (table[:, None] * PAGE_SIZE + place).flatten()
        keys, values = (x[rows].double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
        weights = torch.einsum("hd,thd->ht", row, keys).mul_(DIM**-0.5).softmax(1)
        out.append(torch.einsum("ht,thd->hd", weights, values).flatten())
    return torch.stack(out)


def compile_case(kind: str, sequences: int, depth: int) -> None:
    """Run a node once, so that its kernels are in Triton's cache."""
    measure(Context(GpuBackend().target), kind, sequences, depth, cold_bytes=0)


def measure(context: Context, kind: str, sequences: int, depth: int, cold_bytes: float = COLD_BYTES) -> dict[str, Any]:
    """Microseconds of a node, bytes that it must read, and its error."""
    pages = depth // PAGE_SIZE
    nbytes = sequences * depth * KV_HEADS * 2 * bytes_of_row(kind)
    count = max(2, min(16, int(cold_bytes / nbytes) + 1))
    pairs = [(filled(kind, sequences * depth), filled(kind, sequences * depth)) for _ in range(count)]
    q, out = torch.randn(sequences, HEADS, DIM, device="cuda"), torch.empty(sequences, HEADS * DIM, device="cuda")
    positions = torch.full((sequences,), depth - 1, dtype=torch.int32, device="cuda")
    starts = torch.arange(sequences + 1, dtype=torch.int32, device="cuda")
    table = torch.randperm(sequences * pages, device="cuda").to(torch.int32).view(sequences, pages)
    attention = node()
    calls = [
        BINDERS["attention"](context, attention, [q, k.cache, v.cache, positions, starts, table], out) for k, v in pairs
    ]
    out.fill_(float("nan"))
    together(calls[0])()
    wanted = expected(q, pairs[0][0].numbers, pairs[0][1].numbers, table)
    error = float((out.double() - wanted).square().sum() / wanted.square().sum())
    if not error <= TOLERANCE:
        raise SystemExit(f"{kind}, {sequences} sequences of {depth}: error {error:.2e}, at most {TOLERANCE} is allowed")
    time = statistics.median(gpu.seconds([together(c) for c in calls]))
    return {"cache": kind, "sequences": sequences, "depth": depth, "microseconds": time * 1e6, "nmse": error,
            "gbps": nbytes / time / 1e9}


def bytes_of_row(kind: str) -> float:
    """Bytes of a head's key or value, with the scales that are read with it."""
    if kind == "f16":
        return 2 * DIM
    return DIM + (DIM / 16 if kind == "q8_0" else 0 if kind.endswith("static") else 4)


def together(calls: Sequence[Call]) -> Call:
    return lambda: [call() for call in calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    parser.add_argument("--depths", nargs="*", type=int, default=(512, 4096, 32768))
    parser.add_argument("--sequences", nargs="*", type=int, default=(1, 8, 32))
    parser.add_argument("--caches", nargs="*", choices=TYPES, default=TYPES)
    options = parser.parse_args()
    sizes = [(n, depth) for n in options.sequences for depth in options.depths if n * depth <= 1 << 18]
    cases = [(kind, *size) for size in sizes for kind in options.caches]
    with ProcessPoolExecutor(min(14, os.cpu_count() or 1), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_case, *zip(*cases, strict=True)))
    backend = GpuBackend()
    context, limit, rows = Context(backend.target), gpu.read_limit(), []
    print(f"read limit {limit:.0f} GB/s", flush=True)
    for kind, sequences, depth in cases:
        row = measure(context, kind, sequences, depth)
        rows.append({**row, "share_of_read_limit": row["gbps"] / limit})
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
    described = results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit)
    results_file.write("gpu-attention", {**described, "read_limit_gbps": limit, "rows": rows}, options.output)


if __name__ == "__main__":
    main()
