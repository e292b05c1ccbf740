"""Products of 8-bit activations: are they right, how fast are they, and how fast is the library's product."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from octavo import ops
from octavo.backends.cores import cores
from octavo.bench.gemm import limits, stored
from octavo.bench.gemm.limits import Limit
from octavo.bench.gemm.subject import Calls, GemmSubject
from octavo.bench.ops import COLD_BYTES, MOST_COPIES
from octavo.errors import UsageError
from octavo.formats.spec import F32, AnyArray
from octavo.ops import definition
from octavo.ops.place import to_torch
from octavo.ops.w4a8 import W4A8Weight

OWN_BOUND = 1e-3
"""The bound of a kernel's own error: that of a product against the exact one of the same quantized operands."""

JUDGED, OUTPUTS = 256, 8
"""Results and outputs that a product has at least if its quantization is judged: errors of fewer don't average out."""

COPIES_MAX_TOKENS = 16
"""Up to this many tokens copies of the weights, too many for any cache, take turns."""

CHECKED_ROWS = 256
"""Tokens whose results are compared, at most."""

SECONDS, ROUNDS = 1.0, 100
MOST = 1 << 31
"""Values of an operand or of the result, at most: 8 GiB of float32."""

Operand = AnyArray | W4A8Weight


@dataclass(frozen=True)
class Product:
    """A product of `octavo.ops`: how both operands are quantized, and what multiplies them.

    bound     of the error against the product of the floats (rel_L2)
    product   name of the function, in `octavo.ops` and in its definition
    quantize  activations and weights, to its arguments: codes of both, and scales of tokens before those of channels
    multiple  what K has to be a multiple of
    """

    bound: float
    product: str
    quantize: Callable[[F32, F32], tuple[Operand, ...]]
    multiple: int = 1


def _int8(x: F32, w: F32) -> tuple[Operand, ...]:
    (a, scale_a), (b, scale_b) = ops.quantize_int8(x, "token"), ops.quantize_int8(w, "channel")
    return a, b, scale_a, scale_b


def _w4a8(group: Any, x: F32, w: F32) -> tuple[Operand, ...]:
    a, scale_a = ops.quantize_int8(x, "token")
    return a, ops.quantize_w4a8(w, group), scale_a


def _fp8(by: tuple[Any, Any], x: F32, w: F32) -> tuple[Operand, ...]:
    (a, scale_a), (b, scale_b) = ops.quantize_fp8(x, by[0]), ops.quantize_fp8(w, by[1])
    return a, b, scale_a, scale_b


PRODUCTS = {
    "int8": Product(0.03, "int8_gemm", _int8),
    "w4a8": Product(0.2, "w4a8_gemm", partial(_w4a8, None), 128),
    "w4a8-g128": Product(0.15, "w4a8_gemm", partial(_w4a8, 128), 128),
    "fp8": Product(0.05, "fp8_gemm", partial(_fp8, ("token", "channel"))),
    "fp8-blocks": Product(0.05, "fp8_gemm", partial(_fp8, (128, "block")), 128),
}


def bench_gemm(m: int, n: int, k: int, scheme: str, device: str) -> dict[str, Any]:
    """Check and time a product [m, k] x [n, k] of Gaussian values on "cpu" or "gpu".

    `scheme` is a name in PRODUCTS, or a stored format's in lower or upper case. Returns
    rel_l2, max_abs_err  against the float32 product
    bound                of rel_l2; None where results are too few to judge
    own_error            rel_L2 against the exact product of the same operands
    own_bound            of own_error
    passed               whether errors are within their bounds
    seconds, gops        the median of a call
    share_of_limit       what the machine could do, in `limit`
    library, library_seconds, ratio

    Raises UsageError for schemes and sizes that there is no product of, BackendError where the device is missing.
    """
    scheme = scheme.lower()
    x, w = drawn(m, n, k, _whole(scheme))
    subject = subject_of(scheme, x, w, device)
    checked = errors(subject, x, w)
    seconds = median_seconds(subject.calls(copies_of(m, subject.weight_bytes)), device)
    library, calls = library_calls(scheme, x, w, subject.operands, device)
    library_seconds = median_seconds(calls, device)
    operations = 2 * m * n * k
    limit = limits.limit(operations, subject.bytes, cores() if device == "cpu" else 0, scheme)
    return {
        "m": m, "n": n, "k": k, "scheme": scheme, "device": device, **checked, "seconds": seconds,
        "gops": operations / seconds / 1e9, **share(limit, seconds), "library": library,
        "library_seconds": library_seconds, "ratio": library_seconds / seconds,
    }  # fmt: skip


def subject_of(scheme: str, x: F32, w: F32, device: str) -> GemmSubject:
    """The product of x and w in a scheme, on "cpu" or "gpu"."""
    fmt = stored.STORED.get(scheme)
    return stored.subject(fmt, x, w, device) if fmt else _subject(PRODUCTS[scheme], x, w, device)


def _whole(scheme: str) -> int:
    """What K has to be a multiple of. Raises UsageError for an unknown scheme."""
    if scheme in stored.STORED:
        return stored.STORED[scheme].block
    if scheme not in PRODUCTS:
        raise UsageError(f"scheme {scheme!r} (allowed: {', '.join((*PRODUCTS, *stored.STORED))})")
    return PRODUCTS[scheme].multiple


def drawn(m: int, n: int, k: int, whole: int = 1) -> tuple[F32, F32]:
    """Gaussian activations [m, k] and weights [n, k]. Raises UsageError unless K is a multiple of `whole`."""
    if min(m, n, k) < 1 or k % whole or max(m * n, m * k, n * k) > MOST:
        multiple = f", K a multiple of {whole}" if whole > 1 else ""
        raise UsageError(f"a product of {m} x {n} x {k} (allowed: from 1 on, up to 2^31 values of a matrix{multiple})")
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)


def _subject(how: Product, x: F32, w: F32, device: str) -> GemmSubject:
    """A product of `octavo.ops`."""
    operands = how.quantize(x, w)
    place = _on_gpu if device == "gpu" else _on_cpu
    function, define = getattr(ops, how.product), getattr(definition, how.product)
    placed = tuple(place(o) for o in operands)
    a, weight, scale_a, *rest = operands
    assert not isinstance(a, W4A8Weight)
    assert not isinstance(scale_a, W4A8Weight)

    def calls(copies: int) -> Calls:
        weights = [placed[1], *(place(weight, copy=True) for _ in range(copies - 1))]
        return [partial(function, placed[0], each, *placed[2:]) for each in weights]

    nbytes = sum(int(o.nbytes) for o in operands) + 4 * len(x) * len(w)
    return GemmSubject(
        how.bound, lambda: np.asarray(_host(function(*placed))),
        lambda rows: np.asarray(define(a[rows], weight, scale_a[rows], *rest)), calls, placed, int(weight.nbytes),
        nbytes,
    )  # fmt: skip


def errors(subject: GemmSubject, x: F32, w: F32) -> dict[str, Any]:
    """How far results are from the product of the floats, and from what they should be, and whether that is allowed."""
    rows = np.linspace(0, len(x) - 1, min(len(x), CHECKED_ROWS)).astype(np.intp)
    floats, got = x[rows] @ w.T, subject.run()[rows]
    error, own = _rel_l2(got, floats), _rel_l2(got, subject.exact(rows))
    bound = subject.bound if len(w) >= OUTPUTS and len(x) * len(w) >= JUDGED else None
    return {
        "rel_l2": error, "max_abs_err": float(np.abs(got - floats).max()), "bound": bound, "own_error": own,
        "own_bound": OWN_BOUND, "passed": (bound is None or error <= bound) and own <= OWN_BOUND,
    }  # fmt: skip


def _rel_l2(y: F32, expected: F32) -> float:
    """|y - expected| / |expected|; infinite where y is not finite."""
    if not np.isfinite(y).all():
        return float("inf")
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(y - expected)) / norm if norm else float(np.linalg.norm(y))


def share(limit: Limit | None, seconds: float) -> dict[str, Any]:
    """The part of a limit that is reached, and the limit in words; None where it is not known."""
    if limit is None:
        return {"share_of_limit": None, "limit": None}
    return {"share_of_limit": limit.seconds / seconds, "limit": limit.name}


def _on_cpu(operand: Operand, copy: bool = False) -> Operand:
    if not copy:
        return operand
    if isinstance(operand, W4A8Weight):
        groups = operand.group_scale
        return W4A8Weight(operand.packed.copy(), operand.channel_scale, None if groups is None else groups.copy())
    return operand.copy()


def _on_gpu(operand: Operand, copy: bool = False) -> Any:
    from octavo.backends.gpu.device import target

    where = target().device
    return operand.to(where) if isinstance(operand, W4A8Weight) else to_torch(operand).to(where, copy=copy)


def _host(y: Any) -> Any:
    return y if isinstance(y, np.ndarray) else y.cpu().numpy()


def copies_of(tokens: int, nbytes: int) -> int:
    """How many copies of a weight take turns."""
    return min(MOST_COPIES, -(-COLD_BYTES // nbytes)) if tokens <= COPIES_MAX_TOKENS else 1


def library_calls(scheme: str, x: F32, w: F32, placed: tuple[Any, ...], device: str) -> tuple[str, Calls]:
    """The library's product next to which a scheme's is set, by name, and calls of it over copies of the weights."""
    copies = copies_of(len(x), w.nbytes)
    if device == "cpu":
        out = np.empty((len(x), len(w)), np.float32)
        all_weights = [w, *(w.copy() for _ in range(min(copies, 8) - 1))]
        return "float32 BLAS", [partial(np.matmul, x, each.T, out=out) for each in all_weights]
    from octavo.bench.gemm import library

    return library.calls(scheme, x, w, placed, copies)


def median_seconds(calls: Calls, device: str) -> float:
    """The median time of a call."""
    if device == "gpu":
        from octavo.backends.gpu.device import interpreted
        from octavo.bench import gpu

        if not interpreted():
            return statistics.median(gpu.seconds(calls))
    for call in calls:
        call()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    for call in itertools.cycle(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        if len(times) >= ROUNDS or time.perf_counter() > end:
            break
    return statistics.median(times)
