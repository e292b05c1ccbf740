"""Times products of 8-bit numbers against the vendor's library and writes bench/results/gpu-gemm-<date>.json.

    python bench/gpu_gemm.py [--tune] [--schemes NAME ...] [--tokens M ...] [--commit HASH] [-o FOLDER]

Each product has its whole epilogue: scales of tokens and channels, a bias, bfloat16 results. The library has none: int8
is torch._int_mm, fp8 torch._scaled_mm with a scale of 1, and float16 a plain product, with which 4-bit weights are
compared. Calls are captured in one graph over copies of the weights that no cache holds. Both take turns, as a card
that is warm is slower, and the median of all replays counts. `error` is that of the kernel with float32 results,
||y - exact|| / ||exact|| of the quantized factors.

--tune times each of some shapes, prints the fastest for each product, and records those that fail too.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

import results_file
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.matmul.w8a8 import gemm
from octavo.backends.gpu.matmul.w8a8.shapes import GemmShape, Scheme
from octavo.bench import gpu, machine

COLD_BYTES = 250e6
MULTIPROCESSORS = 132
TURNS = 3
WIDE = tuple((m, 8192, 21504) for m in (1, 16, 64, 128, 512, 1024, 2048))
SQUARE = ((4096, 4096, 4096), (8192, 8192, 8192), (512, 4096, 14336))
PRODUCTS: dict[Scheme, tuple[tuple[int, int, int], ...]] = {
    "int8": (*SQUARE, *((m, 4096, 14336) for m in (1, 16, 64))),
    "w4a8": WIDE,
    "w4a8_g128": WIDE,
    "fp8": SQUARE,
    "fp8_fast": SQUARE,
    "fp8_blocks": SQUARE,
}
Call = Callable[..., torch.Tensor]


@dataclass
class Case:
    """A product on some copies of its weights: by this package, given a shape; by the library; and what is exact."""

    ours: Sequence[Call]
    library: Sequence[Call]
    exact: torch.Tensor


def codes(*shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8, device="cuda")


def scales(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, device="cuda") * 0.01 + 1e-3


def int8_case(m: int, n: int, k: int, count: int) -> Case:
    a, b, scale_a, scale_b, bias = codes(m, k), codes(n, k), scales(m, 1), scales(n, 1), torch.randn(n, device="cuda")
    copies = [b, *(b.clone() for _ in range(count - 1))]
    common: dict[str, Any] = {"bias": bias, "out_dtype": "bf16", "workspace": gemm.Workspace()}
    wide = a if m > 16 else torch.cat([a, codes(32 - m, k)])  # the library takes no fewer than 17 tokens
    exact = torch._int_mm(wide, b.t())[:m].double() * scale_a * scale_b.t() + bias
    return Case(
        [partial(gemm.int8_gemm, a, w, scale_a, scale_b, **common) for w in copies],
        [partial(torch._int_mm, wide, w.t()) for w in copies],
        exact,
    )


def w4a8_case(grouped: bool, m: int, n: int, k: int, count: int) -> Case:
    a, scale_a, scale_b, bias = codes(m, k), scales(m, 1), scales(n), torch.randn(n, device="cuda")
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
    groups = (torch.rand(k // 128, n, device="cuda") * 15 + 0.1).half().t() if grouped else None
    weights = _int8_of(packed, groups)
    exact = (a.double() @ weights.double().t()) * scale_a * scale_b + bias
    halves = weights.half()
    del weights
    x = torch.randn(m, k, device="cuda").half()
    common: dict[str, Any] = {"bias": bias, "out_dtype": "bf16", "workspace": gemm.Workspace()}
    ours = [
        partial(gemm.w4a8_gemm, a, packed.clone(), scale_a, scale_b, None if groups is None else groups + 0, **common)
        for _ in range(count)
    ]
    library = [partial(torch.matmul, x, w.t()) for w in (halves, halves.clone())]
    return Case(ours, library, exact)


def codes4_of(packed: torch.Tensor) -> torch.Tensor:
    """int8 codes [N, K / 128, 128] of packed ones [N, K / 2]."""
    parts = packed.view(len(packed), -1, 1, 64)
    q = torch.cat([parts << 4, parts & 0xF0], dim=2).view(torch.int8) >> 4
    return q.reshape(len(packed), -1, 128)


def _int8_of(packed: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    q = codes4_of(packed)
    if groups is not None:
        q = torch.round(q.float() * groups.float()[..., None]).to(torch.int8)
    return q.reshape(len(packed), -1)


def fp8_case(scheme: Scheme, m: int, n: int, k: int, count: int) -> Case:
    x, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    bias = torch.randn(n, device="cuda")
    blocks = scheme == "fp8_blocks"
    a, scale_a = gemm.quantize_fp8(x, "e4m3", 128 if blocks else "token")
    b, scale_b = gemm.quantize_fp8(w, "e4m3", "block" if blocks else "channel")
    if blocks:
        left = a.float().double() * scale_a.double().repeat_interleave(128, 1)
        right = b.float().double() * scale_b.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
        exact = left @ right.t() + bias
    else:
        exact = (a.float().double() @ b.float().double().t()) * scale_a * scale_b.t() + bias
    copies = [b, *(b.clone() for _ in range(count - 1))]
    common: dict[str, Any] = {
        "bias": bias,
        "out_dtype": "bf16",
        "workspace": gemm.Workspace(),
        "fast": scheme == "fp8_fast",
    }
    one = torch.ones((), device="cuda")
    how: dict[str, Any] = {"out_dtype": torch.bfloat16, "use_fast_accum": scheme == "fp8_fast"}
    return Case(
        [partial(gemm.fp8_gemm, a, c, scale_a, scale_b, **common) for c in copies],
        [partial(torch._scaled_mm, a, c.t(), one, one, **how) for c in copies],
        exact,
    )


def case_of(scheme: Scheme, m: int, n: int, k: int) -> Case:
    nbytes = n * k / 2 if scheme.startswith("w4a8") else n * k
    count = max(2, min(16, int(COLD_BYTES / nbytes) + 1))
    if scheme == "int8":
        return int8_case(m, n, k, count)
    if scheme.startswith("w4a8"):
        return w4a8_case(scheme == "w4a8_g128", m, n, k, count)
    return fp8_case(scheme, m, n, k, count)


def seconds(calls: Sequence[Call], shape: GemmShape | None = None) -> float:
    """Median seconds of one call; `calls` run in turn inside one graph."""
    given = [partial(call, shape=shape) for call in calls] if shape else calls
    return statistics.median(gpu.seconds(given))


def candidates(scheme: Scheme, m: int, n: int, k: int) -> Iterator[GemmShape]:
    """Shapes that may be fastest: tiles that fit the tokens, with room in shared memory, and few or no splits."""
    packed, few = scheme.startswith("w4a8"), m <= 128
    least = 64 if scheme.startswith("fp8") else 8
    tokens = (max(least, 1 << (m - 1).bit_length()),) if few else (128, 256)
    depths = (128,) if scheme == "fp8_blocks" else (128, 256)
    for t, r, depth, stages, warps in itertools.product(tokens, (64, 128, 256), depths, (3, 4, 5, 6, 8), (4, 8)):
        some = GemmShape(t, r, depth, 8, 1, stages, warps)
        sums = t * r // (32 * warps)  # of a thread
        if stages * some.stage_bytes(packed) > 225 << 10 or sums > 128 or (not few and sums < 64):
            continue
        if warps * 16 > max(r, t) or (r == 256 and few) or (scheme == "fp8_blocks" and r > 128):
            continue
        programs = some.programs(m, n)
        splits = {q for q in range(1, 9) if 110 <= programs * q <= 6 * MULTIPROCESSORS} if few else {1}
        yield from (some.with_split_k(q) for q in sorted(splits))


def tuned(scheme: Scheme, m: int, n: int, k: int, case: Case) -> dict[str, Any]:
    """The fastest shapes, and how many failed to compile or ran out of something."""
    times: list[tuple[float, GemmShape]] = []
    failed: dict[str, str] = {}
    expected = case.ours[0](out_dtype="f32")
    for shape in candidates(scheme, m, n, k):
        try:
            if not torch.allclose(case.ours[0](out_dtype="f32", shape=shape), expected, rtol=1e-2, atol=1e-2):
                failed[str(shape)] = "another result"
                continue
            times.append((seconds(case.ours, shape), shape))
        except (triton.errors.TritonError, RuntimeError) as error:
            failed[str(shape)] = str(error)[:200]
    times.sort(key=lambda pair: pair[0])
    for time, shape in times[:5]:
        print(f"  {time * 1e6:9.1f} us  {shape}", flush=True)
    print(f"  {len(failed)} failed", *sorted(set(failed.values())), flush=True)
    return {"fastest": [{"microseconds": t * 1e6, **asdict(s)} for t, s in times[:5]], "failed": failed}


def measured(scheme: Scheme, m: int, n: int, k: int, tune: bool) -> dict[str, Any]:
    """A row: times of both, their ratio, and the kernel's own error."""
    case = case_of(scheme, m, n, k)
    y, again = (case.ours[0](out_dtype="f32") for _ in range(2))
    error = float((y.double() - case.exact).norm() / case.exact.norm())
    turns = [(gpu.seconds(case.ours), gpu.seconds(case.library)) for _ in range(TURNS)]
    ours, library = (statistics.median(itertools.chain(*times)) for times in zip(*turns, strict=True))
    row: dict[str, Any] = {
        "scheme": scheme, "m": m, "n": n, "k": k, "microseconds": ours * 1e6, "tops": 2 * m * n * k / ours / 1e12,
        "library_microseconds": library * 1e6, "library_tops": 2 * m * n * k / library / 1e12, "ratio": library / ours,
        "error": error, "same_again": bool(torch.equal(y, again)),
    }
    print(
        f"{scheme:10} {m:5} x {n} x {k}: {ours * 1e6:8.1f} us {row['tops']:6.0f} TOPS, library {library * 1e6:8.1f} us"
        f" {row['library_tops']:6.0f}, {row['ratio']:.2f}x, error {error:.1e}, same again {row['same_again']}",
        flush=True,
    )
    if tune:
        row["tune"] = tuned(scheme, m, n, k, case)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--schemes", nargs="*", choices=PRODUCTS, default=list(PRODUCTS))
    parser.add_argument("--tokens", type=int, nargs="*", help="only products of these numbers of tokens")
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    backend = GpuBackend()
    rows = []
    for scheme in options.schemes:
        for m, n, k in PRODUCTS[scheme]:
            if options.tokens and m not in options.tokens:
                continue
            rows.append(measured(scheme, m, n, k, options.tune))
            torch.cuda.empty_cache()
    described = results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit)
    results_file.write("gpu-gemm", {**described, "products": rows}, options.output)


if __name__ == "__main__":
    main()
