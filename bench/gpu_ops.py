"""Times the GPU backend's products and attention and writes bench/results/gpu-ops-<date>.json.

    python bench/gpu_ops.py [--commit HASH] [-o FOLDER] [--formats NAME ...]

Calls are captured in one graph over copies of the weights that no cache holds, as many bytes as 5 times the L2, and
the median of some replays counts. The read limit, and the library's float16 product, are measured in the same run.
Kernels are compiled first, on all cores; a matrix is some random rows again and again.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import results_file
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Cache
from octavo.backends.gpu.matmul.launch import library_product, product
from octavo.backends.gpu.matmul.mmq.mmq_shapes import INT8_MAX_TOKENS
from octavo.backends.gpu.ops import BINDERS
from octavo.bench import gpu, machine
from octavo.bench.random_products import activations, copies, matrix
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.formats.group import row_named
from octavo.graph.builder import CacheType, GraphBuilder
from octavo.graph.node import Node

FORMATS = ("Q8_0", "Q4_0", "Q4_K", "Q6_K")
MATVEC = ((4096, 4096), (14336, 4096), (4096, 14336), (128256, 4096))
MATMUL = ((4096, 14336), (14336, 4096))
LATENT_CACHES: tuple[CacheType, ...] = ("f16", "q8_0", "int8", "fp8", "int4")
Call = Callable[[], object]


def seconds(calls: Sequence[Call]) -> float:
    """Median seconds of one call; `calls` run in turn inside one graph."""
    return statistics.median(gpu.seconds(calls))


def numbers_of_tokens(n: int, k: int) -> tuple[int, ...]:
    few = (1, 2, 4, 8, 16, 32) if (n, k) in MATVEC else ()
    return (*few, *((128, 512, 2048) if (n, k) in MATMUL else ()))


def compile_products(name: str, n: int, k: int) -> None:
    """Run each product once, so that its kernel is in Triton's cache."""
    backend = GpuBackend()
    context = Context(backend.target)
    weight, _ = matrix(backend, row_named(name), n, k)
    for tokens in numbers_of_tokens(n, k):
        y = torch.empty(tokens, n, device="cuda")
        for call in product(context, weight, activations(context, tokens, k), y, ()):
            call()
    torch.cuda.synchronize()


def products(backend: GpuBackend, limit: float, formats: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each format, shape and number of tokens."""
    context = Context(backend.target)
    rows = []
    for n, k in dict.fromkeys((*MATVEC, *MATMUL)):
        for name in formats:
            weight, nbytes = matrix(backend, row_named(name), n, k)
            weights = copies(weight, nbytes)
            for tokens in numbers_of_tokens(n, k):
                x, y = activations(context, tokens, k), torch.empty(tokens, n, device="cuda")
                used = weights if tokens <= INT8_MAX_TOKENS else weights[:4]
                calls = [product(context, w, x, y, ()) for w in used]
                time = seconds([together(c) for c in calls])
                gbps = nbytes / time / 1e9
                rows.append({
                    "op": "mul_mat", "format": name, "n": n, "k": k, "tokens": tokens, "microseconds": time * 1e6,
                    "gbps": gbps, "share_of_read_limit": gbps / limit, "tflops": 2 * tokens * n * k / time / 1e12,
                })
                print(rows[-1], flush=True)
            del weight, weights
            torch.cuda.empty_cache()
    return rows


def together(calls: Sequence[Call]) -> Call:
    return lambda: [call() for call in calls]


def library() -> list[dict[str, Any]]:
    """The vendor's float16 product of the same shapes."""
    rows = []
    for n, k in MATMUL:
        weights = [torch.randn(n, k, device="cuda").half() for _ in range(3)]
        for tokens in (512, 2048):
            x, y = torch.randn(tokens, k, device="cuda").half(), torch.empty(tokens, n, device="cuda")
            time = seconds([partial(library_product, x, w, y) for w in weights])
            rows.append({"op": "library f16", "n": n, "k": k, "tokens": tokens, "microseconds": time * 1e6,
                         "tflops": 2 * tokens * n * k / time / 1e12})
    return rows


def attention(backend: GpuBackend, limit: float) -> list[dict[str, Any]]:
    """Decoding over several depths, 32 heads on 8 of 128 values, as in Llama-3-8B; prefill of 2048 tokens."""
    context = Context(backend.target)
    rows = []
    for cache in ("f16", "q8_0"):
        for tokens, depth in ((1, 512), (1, 4096), (1, 32768), (2048, 2048)):
            pages = -(-depth // 64)
            caches = [_cache(pages * 64, cache == "q8_0") for _ in range(2 * (16 if depth < 32768 else 2))]
            node = _attention_node("q8_0" if cache == "q8_0" else "f16")
            q, out = torch.randn(tokens, 32, 128, device="cuda"), torch.empty(tokens, 32 * 128, device="cuda")
            first = depth - tokens
            positions = torch.arange(first, depth, dtype=torch.int32, device="cuda")
            starts = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
            table = torch.randperm(pages, device="cuda").to(torch.int32)[None]
            pairs = list(zip(caches[::2], caches[1::2], strict=True))
            calls = [BINDERS["attention"](context, node, [q, k, v, positions, starts, table], out) for k, v in pairs]
            time = seconds([together(c) for c in calls])
            nbytes = 2 * depth * 8 * 128 * (2 if cache == "f16" else 34 / 32)
            rows.append({
                "op": "attention", "cache": cache, "tokens": tokens, "depth": depth, "microseconds": time * 1e6,
                "gbps": nbytes / time / 1e9, "share_of_read_limit": nbytes / time / 1e9 / limit,
                "tflops": 4 * 32 * 128 * tokens * (depth - tokens / 2) / time / 1e12,
            })
            print(rows[-1], flush=True)
    return rows


def latent_attention(backend: GpuBackend, limit: float) -> list[dict[str, Any]]:
    """Heads of 576 values on one whose first 512 are values too, as in DeepSeek: 16 as in V2 Lite, 128 as in V3."""
    context, dim, size = Context(backend.target), 576, 512
    sizes = ((16, 1, 4096), (16, 1, 32768), (128, 1, 32768), (16, 512, 4096), (128, 128, 4096))
    rows = []
    for kind, (heads, tokens, depth) in itertools.product(LATENT_CACHES, sizes):
        caches = [_latent_cache(backend, kind, depth, dim) for _ in range(16 if depth < 32768 else 6)]
        q, k = (Node("input", (), ("tokens", h, dim), "f32", name=n) for h, n in ((heads, "q"), (1, "k")))
        node = GraphBuilder(kind, 64).attention(q, k, None, 0, dim**-0.5, value_dim=size)
        x, out = torch.randn(tokens, heads, dim, device="cuda"), torch.empty(tokens, heads * size, device="cuda")
        positions = torch.arange(depth - tokens, depth, dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
        table = torch.randperm(depth // 64, device="cuda").to(torch.int32)[None]
        calls = [BINDERS["attention"](context, node, [x, c, c, positions, starts, table], out) for c in caches]
        time, nbytes = seconds([together(c) for c in calls]), depth * CACHE_FORMATS[kind].row_bytes(dim)
        rows.append({
            "op": "latent attention", "cache": kind, "heads": heads, "tokens": tokens, "depth": depth,
            "microseconds": time * 1e6, "gbps": nbytes / time / 1e9, "share_of_read_limit": nbytes / time / 1e9 / limit,
            "tflops": 2 * heads * (dim + size) * tokens * (depth - tokens / 2) / time / 1e12,
        })
        print(rows[-1], flush=True)
    return rows


def _latent_cache(backend: GpuBackend, kind: CacheType, rows: int, dim: int) -> Cache:
    """Random keys of one head, less the largest codes, one of which is NaN in e4m3."""
    cache: Cache = backend.cache((rows, 1, dim), kind)
    if cache.scales is None:
        return replace(cache, data=torch.randn_like(cache.data))
    codes = torch.randint_like(cache.data, -120, 120) & ~0x20
    return replace(cache, data=codes, scales=torch.rand_like(cache.scales) / 100)


def _cache(rows: int, q8: bool) -> Cache:
    if not q8:
        return Cache(torch.randn(rows, 8, 128, device="cuda").half())
    codes = torch.randint(-127, 128, (rows, 8, 128), dtype=torch.int8, device="cuda")
    return Cache(codes, torch.rand(rows, 8, 4, device="cuda").half(), "q8_0")


def _attention_node(cache: Any) -> Node:
    builder = GraphBuilder(cache, 64)
    q, k, v = (Node("input", (), ("tokens", h, 128), "f32", name=n) for h, n in ((32, "q"), (8, "k"), (8, "v")))
    return builder.attention(q, k, v, 0, 128**-0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    options = parser.parse_args()
    shapes = [(name, n, k) for n, k in dict.fromkeys((*MATVEC, *MATMUL)) for name in options.formats]
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_products, *zip(*shapes, strict=True)))
    backend = GpuBackend()
    limit = gpu.read_limit()
    print(f"read limit {limit:.0f} GB/s", flush=True)
    result = {
        **results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit),
        "read_limit_gbps": limit,
        "library": library(),
        "products": products(backend, limit, options.formats),
        "attention": attention(backend, limit) + latent_attention(backend, limit),
    }
    results_file.write("gpu-ops", result, options.output)


if __name__ == "__main__":
    main()
