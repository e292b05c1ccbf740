"""Takes products by matrix tiles (AMX) apart, and writes bench/results/cpu-tiles-<date>.json.

    python bench/cpu_tiles.py [--threads 1 8 16] [--layers 14] [--dry] [-o FOLDER]

1. What tiles reach: products of zeros, weights in the first cache and in the second, for each number of threads; and of
   two threads on pairs of processors, which tells what shares a core.
2. Products of 512 tokens, 6144 x 2048 and 2048 x 6144: the whole, with 2, 4 and 8 panels a task, and each part alone:
   rounding tokens, unpacking weights, tiles' products with what is unpacked, storing sums in two orders. Also what
   rounding takes after products that read the tokens, with one memory for them and with four in turn.
3. A step of 512 tokens of Qwen3 1.7B's shape by kernel: milliseconds, of which a thread works and waits.
4. Few tokens by vectors and by tiles, with weights that no cache holds.

Kernels are compiled anew. `--dry` does it all with small numbers and with tiles in memory, on any CPU with AVX2: its
times say nothing. Without tiles and `--dry` it ends with a line.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import octavo
import results_file
import tile_parts
from cpu_cores import add, by_kernel
from octavo.backends.cores import cores
from octavo.backends.cpu.device.large_pages import Arena
from octavo.bench import machine, synthetic
from octavo.bench.limits import fastest, read_limit
from octavo.formats import by_name
from octavo.io.cpu_topology import memory_nodes, physical_cores, processors, second_cache
from octavo.jit import host_cpu
from octavo.jit.compile import Kernel
from octavo.jit.parallel_compile import compile_together
from octavo.jit.prepare import prepare
from octavo.jit.program import KernelCall, Program, timed

ROOT = Path(__file__).resolve().parents[1]
SHAPES = (6144, 2048), (2048, 6144)
FORMATS = "Q4_K", "Q8_0", "BF16"
FEW = 4, 8, 16, 32, 48
COLD_BYTES = 200e6
PLACES = {"first cache": (2, 8), "second cache": (8, 16)}
"""Panels and tiles of K of a square."""


class Sizes:
    """How much is done, and whether tiles are in memory."""

    shapes: tuple[tuple[int, int], ...] = SHAPES
    few: tuple[int, ...] = FEW
    tokens, cold_bytes, repeat, rounds, vocabulary, dry = 512, COLD_BYTES, 4000, 5, 32768, False
    model: ClassVar[dict[str, Any]] = {}


def emulate() -> None:
    """Tiles in memory, and numbers so small that all takes two minutes."""
    sys.path.insert(0, str(ROOT))
    from tests.jit import tile_emulation

    tile_emulation.pytest_configure()
    Sizes.shapes, Sizes.few, Sizes.tokens, Sizes.cold_bytes = ((64, 256),), (4, 16), 64, 0
    Sizes.repeat, Sizes.rounds, Sizes.vocabulary, Sizes.dry = 2, 1, 512, True
    Sizes.model = {"n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2, "head_dim": 64}


def make_ready(kernels: Iterable[Kernel]) -> None:
    """Compile kernels; other processes would not emulate."""
    if not Sizes.dry:
        compile_together(kernels, cores())


def topology() -> dict[str, Any]:
    """What the system tells of cores."""
    allowed = processors()
    told = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    known = {line.split(":")[0].strip(): line.split(":")[1].strip() for line in lines if ":" in line}
    return {
        "processors": sorted(allowed), "physical_cores": physical_cores(allowed), "threads": cores(),
        "second_cache": second_cache(), "nodes": {n: sorted(c) for n, c in memory_nodes(allowed).items()},
        "siblings of 0": told.read_text().strip() if told.exists() else None,
        **{name: known.get(name) for name in ("model name", "siblings", "cpu cores", "cache size")},
    }


def reach(kind: str, panels: int, steps: int, threads: int) -> float:
    """TOPS of all threads together."""
    done = np.zeros(1)
    repeat = max(1, Sizes.repeat * 16 // (panels * steps))
    call = KernelCall(
        tile_parts.reach_kernel(kind), threads, panels=panels, steps=steps, repeat=repeat, done=done
    )
    operations = threads * repeat * panels * steps * 2 * 32 * 16 * (32 if kind == "bf16" else 64)
    return operations / fastest(Program([call], threads), Sizes.rounds) / 1e12


def pair(first: int, second: int) -> float:
    """TOPS of bfloat16 of two threads on two processors, each measured in a process of its own."""
    env = os.environ | {"CPU_TILES_PAIR": f"{first},{second}", "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, __file__, *(["--dry"] if Sizes.dry else [])]
    return float(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])


class Product:
    """A weight [n, k] of a format, and the calls of its product with some tokens."""

    def __init__(self, fmt: str, n: int, k: int, copies: int = 1) -> None:
        from octavo.backends.cpu.weights.pack import pack

        tensor = synthetic.random_matrix("w", by_name(fmt), (n, k), np.random.default_rng(0))
        memory = Arena()
        self.n, self.k, self.nbytes = n, k, tensor.nbytes
        count = copies or max(2, int(Sizes.cold_bytes / self.nbytes))
        self.weights = [pack(tensor, cores(), memory) for _ in range(count)]

    def calls(self, tokens: int, *, tiles: bool) -> list[KernelCall]:
        """Quantizing tokens to blocks, where weights have some; rounding them, with tiles; the products."""
        from octavo.backends.cpu.launch.calls import quantize_rows
        from octavo.backends.cpu.launch.plan_memory import PlanMemory
        from octavo.backends.cpu.matmul.launch import product, tile_product
        from octavo.backends.cpu.matmul.quantize_kernel import TILES, TOKEN_BYTES
        from octavo.backends.cpu.weights.pack import TiledWeight

        x: Any = np.random.default_rng(1).standard_normal((tokens, self.k), np.float32)
        y, found = np.empty((tokens, self.n), np.float32), []
        shared = PlanMemory(exact=not tiles, threads=cores())
        if isinstance(self.weights[0], TiledWeight):
            codes = np.empty(tokens * (self.k // 32) * TOKEN_BYTES + 64, np.uint8)
            codes = codes[-codes.ctypes.data % 64 :][:-64]
            found.append(quantize_rows(x, codes, TILES[0]))
            x = codes
        for weight in self.weights:
            if tiles:
                found += tile_product(weight, x, y, (), shared, "x")
            else:
                found += product(weight, x, y, (), shared)
        return found


def parts_of(product: Product) -> list[tuple[str, KernelCall]]:
    """The calls of 512 tokens, by what they do, and products of which all but a part is left out."""
    from octavo.backends.cpu.weights.pack import TiledWeight

    (weight,), calls = product.weights, product.calls(Sizes.tokens, tiles=True)
    whole = calls[-1]
    names = ("quantize", "round", "product") if isinstance(weight, TiledWeight) else ("round", "product")
    found = list(zip(names, calls, strict=True))
    given = {name: value for name, value in whole._keep[1].items() if name != "panels"}
    for panels in (2, 4, 8):
        tasks = -(-weight.n // (16 * panels))
        found.append((f"{panels} panels", KernelCall(whole.kernel, tasks, (whole,), **given, panels=panels)))
    key = weight.layout if isinstance(weight, TiledWeight) else weight.kind
    panels = whole._keep[1]["panels"]
    for part in tile_parts.PARTS:
        kernel = tile_parts.part_kernel(part, key)
        found.append((part, KernelCall(kernel, whole.tasks, (whole,), **given, panels=panels)))
    return found


def rounding(threads: int) -> dict[str, float]:
    """Milliseconds that a call of rounding takes of a program of such calls and products, by memories for tokens."""
    n, k = Sizes.shapes[0]
    product = Product("Q4_K", n, k)
    found: dict[str, float] = {}
    for memories in (1, 4):
        some = [call for _ in range(memories) for call in product.calls(Sizes.tokens, tiles=True)[1:]]
        program = Program(some * (8 // memories), threads)
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 5)
        program()
        with timed(program) as times:
            start = time.perf_counter()
            program()
            add(sums, program, times, time.perf_counter() - start)
        found[f"{memories} memories"] = next(row[1] / 8 for kernel, row in sums.items() if "tokens" in kernel)
    return found


def int8_parts(n: int, k: int) -> list[tuple[str, KernelCall]]:
    """The same of int8: its rows are made tiles in the product."""
    from octavo.backends.cpu.matmul.w8a8 import gemm
    from octavo.formats.spec import AnyArray

    rng = np.random.default_rng(0)
    a: AnyArray = rng.integers(-127, 128, (Sizes.tokens, k), np.int8)
    w = gemm.Weight(rng.integers(-127, 128, (n, k), np.int8))
    y, ones = np.empty((Sizes.tokens, n), np.float32), np.ones(max(n, Sizes.tokens), np.float32)
    plan = gemm._plan(w.kind, Sizes.tokens, n)
    at = gemm.address(ones)
    plan._fill_end(plan._end, gemm.epilogue_arguments(y, plan.begins, at, at, None, None))
    kept = plan._fill(a, w.place), a, w, y, ones, plan
    for call in plan.calls:
        call._keep = kept, call._keep
    return [("round", plan.calls[0]), ("product", plan.calls[-1])]


def products(threads: list[int]) -> list[dict[str, Any]]:
    """Milliseconds of the parts of each product, by number of threads."""
    rows: list[dict[str, Any]] = []
    for n, k in Sizes.shapes:
        made = {name: parts_of(Product(name, n, k)) for name in FORMATS} | {"int8": int8_parts(n, k)}
        make_ready({call.kernel for calls in made.values() for _, call in calls})
        for name, calls in made.items():
            for count in threads:
                ms = {part: 1e3 * fastest(Program([call], count), Sizes.rounds) for part, call in calls}
                tera = 2 * Sizes.tokens * n * k / ms["product"] / 1e9
                rows.append({"format": name, "n": n, "k": k, "threads": count, "ms": ms, "tops": tera})
                parts = "  ".join(f"{part} {value:.2f}" for part, value in ms.items())
                print(f"{name:5} {n} x {k} {count:2} threads {tera:5.2f} TOPS, ms: {parts}", flush=True)
    return rows


def step(layers: int, threads: list[int]) -> list[dict[str, Any]]:
    """A step of 512 tokens, by kernel."""
    synthetic.SHAPES["cut"] = replace(
        synthetic.SHAPES["qwen3-1.7b"], n_layer=layers, n_vocab=Sizes.vocabulary, **Sizes.model
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "cut.gguf")
        synthetic.make("cut", "Q4_K_M", path)
        for count in threads:
            with octavo.load(path, device="cpu", threads=count, n_ctx=max(512, Sizes.tokens)) as model:
                kernels = by_kernel(model.engine, Sizes.tokens, 0, 1 if count == 1 else 5)
            total = sum(row["ms"] for row in kernels)
            rows.append({"threads": count, "layers": layers, "ms": total, "kernels": kernels})
            print(f"{layers} layers, {count} threads: {total:.1f} ms, {Sizes.tokens / total * 1e3:.0f} tokens/s")
            for row in kernels[:14]:
                times = f"{row['ms']:8.2f} ms, works {row['work_ms']:8.2f}, waits {row['wait_ms']:7.2f}"
                print(f"  {times}, {row['calls']:4.0f} x {short(row['kernel'])}", flush=True)
    return rows


def short(kernel: str) -> str:
    """A kernel's name without most of its constants."""
    return kernel if len(kernel) < 70 else f"{kernel[:46]} ... {kernel[-16:]}"


def few(threads: list[int]) -> list[dict[str, Any]]:
    """Microseconds of a product of few tokens by vectors and by tiles."""
    rows: list[dict[str, Any]] = []
    n, k = Sizes.shapes[0]
    for name in FORMATS[:2]:
        product = Product(name, n, k, 0)
        made = {(m, tiles): product.calls(m, tiles=tiles) for m in Sizes.few for tiles in (False, True)}
        make_ready({kernel for calls in made.values() for c in calls for kernel in (c.kernel, *c.other_kernels())})
        for count in threads:
            for (m, tiles), calls in made.items():
                us = 1e6 * fastest(Program(calls, count), max(2, Sizes.rounds // 2)) / len(product.weights)
                gbps = product.nbytes / us / 1e3
                rows.append({"format": name, "threads": count, "tokens": m, "tiles": tiles, "us": us, "gbps": gbps})
            line = "  ".join(
                f"{row['tokens']} {'tiles' if row['tiles'] else 'vectors'} {row['us']:.0f}" for row in rows
                if (row["format"], row["threads"]) == (name, count)
            )
            print(f"{name:5} {n} x {k} {count:2} threads, us of tokens: {line}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, max(1, cores() // 2), cores()}))
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    if options.dry:
        emulate()
    if why := host_cpu.why_no_tiles():
        raise SystemExit(f"nothing is measured: {why}")
    if chosen := os.environ.get("CPU_TILES_PAIR"):
        os.sched_setaffinity(0, map(int, chosen.split(",")))
        prepare()
        print(reach("bf16", *PLACES["first cache"], 2))
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ["OCTAVO_CACHE"] = cache
        prepare()
        results_file.write("cpu-tiles", measured(options), options.output)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    result = results_file.described(commit=options.commit) | {"topology": topology(), "load": os.getloadavg()}
    print({name: value for name, value in result["topology"].items() if name != "processors"})
    make_ready([tile_parts.reach_kernel(kind) for kind in tile_parts.ADD])
    result["reach"] = [
        {"kind": kind, "in": place, "threads": count, "tops": reach(kind, *sizes, count)}
        for kind in tile_parts.ADD for place, sizes in PLACES.items() for count in options.threads
    ]
    for row in result["reach"]:
        print(f"{row['kind']} {row['in']:12} {row['threads']:2} threads {row['tops']:6.2f} TOPS")
    known = sorted(processors())
    seconds = dict.fromkeys(known[i] for i in (1, 2, len(known) // 2) if 0 < i < len(known))
    result["pairs"] = {f"{known[0]} and {other}": pair(known[0], other) for other in seconds}
    print("two threads, bf16 TOPS:", {name: round(tera, 2) for name, tera in result["pairs"].items()}, flush=True)
    result["rounding"] = rounding(max(options.threads))
    print("rounding, ms of a call:", {name: round(ms, 3) for name, ms in result["rounding"].items()}, flush=True)
    result["read_limit"] = read_limit(max(options.threads))
    ends = sorted({min(options.threads), max(options.threads)})
    measures: dict[str, Any] = {"products": products, "few": few, "step": partial(step, options.layers)}
    for name, measure in measures.items():
        result[name] = measure(options.threads if measure is products else ends)
        print(f"after {time.perf_counter() - start:.0f} s", flush=True)
    return result


if __name__ == "__main__":
    main()
