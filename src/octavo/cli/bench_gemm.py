"""`octavo bench gemm`: check a product of 8-bit activations, and time it next to the library's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from octavo.cli.plain import to_json

SCHEMES = "int8, w4a8, w4a8-g128, fp8, fp8-blocks, or a stored format by its name, as q8_0, q4_k or mxfp4"


def gemm(
    m: Annotated[int, typer.Argument(metavar="M", help="Tokens.")] = 512,
    n: Annotated[int, typer.Argument(metavar="N", help="Outputs.")] = 512,
    k: Annotated[int, typer.Argument(metavar="K", help="Inputs.")] = 1024,
    scheme: Annotated[str, typer.Option(help=f"How both operands are quantized: {SCHEMES}.")] = "int8",
    device: Annotated[
        Literal["auto", "cpu", "gpu"], typer.Option(help="Where to run; auto: the GPU if there is one.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Check and time y = x w of Gaussian values, x [M, K] and w [N, K]: `octavo bench gemm 512 4096 4096`.

    Exit status 1 if the result is further from the product of the floats than the scheme allows, or further than 1e-3 \
from the exact product of the same quantized numbers.
    """
    from octavo.backends.gpu.device import unusable
    from octavo.bench.gemm.measure import bench_gemm

    where = ("gpu" if unusable() is None else "cpu") if device == "auto" else device
    result = bench_gemm(m, n, k, scheme, where)
    print(to_json(result) if as_json else "\n".join(_lines(result)))
    return 0 if result["passed"] else 1


def _lines(r: dict[str, Any]) -> list[str]:
    allowed = "too few results to judge" if r["bound"] is None else f"allowed: rel_L2 {r['bound']}"
    limit = "" if r["limit"] is None else f"  Limit: {r['share_of_limit']:.0%} of {r['limit']}"
    return [
        f"{r['scheme']} on {r['device']}, {r['m']} x {r['n']} x {r['k']}",
        f"Validation: rel_L2={r['rel_l2']:.6f}, max_abs_err={r['max_abs_err']:.6f} ({allowed})",
        f"Kernel: rel_L2={r['own_error']:.2e} against the exact product of the same codes (allowed: {r['own_bound']})",
        f"Time: {r['seconds'] * 1e3:.4f} ms  Throughput: {r['gops']:,.1f} GOPS{limit}",
        f"Library: {r['library']} {r['library_seconds'] * 1e3:.4f} ms  Ratio: {r['ratio']:.2f}x",
        "PASSED" if r["passed"] else "FAILED",
    ]
