"""`octavo bench gemm`: check a product of 8-bit activations, and time it next to the library's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from octavo.cli.columns import show_counters
from octavo.cli.options import AsJson
from octavo.cli.plain import to_json
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.bench.gemm.gemm_subject import How

SCHEMES = "int8, w4a8, w4a8-g128, fp8, fp8-blocks, or a stored format by its name, as q8_0, q4_k or mxfp4"


@dataclass
class GemmOptions:
    """What is asked of a product besides its scheme."""

    scale_a: Annotated[
        str,
        typer.Option(metavar="WHICH", help="What shares a scale: token, tensor, or with int8 a number of values of K.")
    ] = "token"
    fp8: Annotated[
        Literal["e4m3", "e5m2", "e4m3-e5m2", "e5m2-e4m3"], typer.Option(help="The type of fp8, or of A and of B.")
    ] = "e4m3"
    bias: Annotated[bool, typer.Option("--bias", help="Add a bias [N].")] = False
    activation: Annotated[
        Literal["relu", "gelu", "silu"] | None, typer.Option(help="Between the bias and the residual.")
    ] = None
    residual: Annotated[bool, typer.Option("--residual", help="Add a residual [M, N].")] = False
    seed: Annotated[int, typer.Option("-s", "--seed", min=0, help="Seed of all that is drawn.")] = 0

    @property
    def how(self) -> How:
        """Raises UsageError for scales of anything else."""
        from octavo.bench.gemm.gemm_subject import How

        scale: Any = int(self.scale_a) if self.scale_a.isdecimal() else self.scale_a
        if isinstance(scale, str) and scale not in ("token", "tensor"):
            raise UsageError(f"--scale-a is {scale!r} (allowed: token, tensor, or how many values of K share a scale)")
        left, _, right = self.fp8.partition("-")
        kinds: Any = (left, right or left)
        return How(scale, kinds, self.bias, self.activation, self.residual, self.seed)


def gemm(
    m: Annotated[int, typer.Argument(metavar="M", help="Tokens.")] = 512,
    n: Annotated[int, typer.Argument(metavar="N", help="Outputs.")] = 512,
    k: Annotated[int, typer.Argument(metavar="K", help="Inputs.")] = 1024,
    scheme: Annotated[str, typer.Option(help=f"How both operands are quantized: {SCHEMES}.")] = "int8",
    *, how: GemmOptions,
    device: Annotated[
        Literal["auto", "cpu", "gpu"], typer.Option(help="Where to run; auto: the GPU if there is one.")
    ] = "auto",
    counters: Annotated[
        bool, typer.Option("--counters", help="Read an NVIDIA GPU's counters instead, by its program ncu.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check and time y = x w of Gaussian values, x [M, K] and w [N, K]: `octavo bench gemm 512 4096 4096`.

    Products of libraries are measured beside it, of floats and with nothing after the sums: float32 BLAS on the CPU, \
as no BLAS there has float16; on a GPU float16, and the vendor's of 8 bits.

    Exit status 1 if the result is further from the product of the floats than the scheme allows, or further than 1e-3 \
from the exact product of the same quantized numbers.
    """
    from octavo.backends.gpu.device.torch_device import unusable
    from octavo.bench.counters import count_gemm
    from octavo.bench.gemm.measure import bench_gemm

    where = ("gpu" if unusable() is None else "cpu") if device == "auto" else device
    if counters:
        counted = count_gemm(m, n, k, scheme, where, how.how)
        if as_json:
            print(to_json(counted))
        else:
            show_counters(counted["kernels"], "product", "kernel")
        return 0
    result = bench_gemm(m, n, k, scheme, where, how.how)
    print(to_json(result) if as_json else "\n".join(_lines(result)))
    return 0 if result["passed"] else 1


def _lines(r: dict[str, Any]) -> list[str]:
    allowed = "too few results to judge" if r["bound"] is None else f"allowed: rel_L2 {r['bound']}"
    lines = [
        f"{r['scheme']} on {r['device']}, {r['m']} x {r['n']} x {r['k']}{_asked(r)}",
        f"Validation: rel_L2={r['rel_l2']:.6f}, max_abs_err={r['max_abs_err']:.6f} ({allowed})",
        f"Kernel: rel_L2={r['own_error']:.2e} against the exact product of the same codes (allowed: {r['own_bound']})",
    ]
    verdict = "PASSED" if r["passed"] else "FAILED"
    if r["gops"] is None:
        return [*lines, f"Time: {r['seconds']:.1f} s, in the interpreter, not on a GPU", verdict]
    shown = r["withheld"] is None
    limit = (
        "" if r["limit"] is None else f"  Limit: {format(r['share_of_limit'], '.0%') if shown else '?'} of {r['limit']}"
    )
    lines.append(f"Time: {r['seconds'] * 1e3:.4f} ms  Throughput: {r['gops']:,.1f} GOPS{limit}")
    for each in r["libraries"]:
        ratio = f"{each['ratio']:.2f}x" if shown else "withheld"
        lines.append(f"Library: {each['name']} {each['seconds'] * 1e3:.4f} ms  Ratio: {ratio}")
    return [*lines, *([] if shown else [f"Busy machine: {r['withheld']}; rates mislead."]), verdict]


def _asked(r: dict[str, Any]) -> str:
    """What is not as it is without options."""
    parts = [] if r["scale_a"] == "token" else [f"A by {'the tensor' if r['scale_a'] == 'tensor' else r['scale_a']}"]
    if r["fp8"] not in (None, "e4m3-e4m3"):
        parts.append(" by ".join(r["fp8"].split("-")))
    parts += [name for name in ("bias", "residual") if r[name]]
    parts[len(parts) - bool(r["residual"]) : len(parts) - bool(r["residual"])] = (
        [r["activation"]] if r["activation"] else []
    )
    return f"; {', '.join(parts)}" if parts else ""
