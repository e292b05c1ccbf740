"""Products of 8-bit activations: are they right, how fast are they, and how fast is the library's product."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from octavo.backends.cores import cores
from octavo.bench.gemm import gemm_limits, stored_formats, timed_products
from octavo.bench.gemm.gemm_limits import Limit
from octavo.bench.gemm.gemm_subject import Calls, GemmSubject, How
from octavo.bench.gemm.timed_products import PRODUCTS
from octavo.bench.op_bench import COLD_BYTES, MOST_COPIES
from octavo.bench.others import LoadWatch, misleading
from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.ops import definition

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

MOST_INTERPRETED, MOST_STORED_INTERPRETED = 1 << 25, 1 << 19
"""M x N x K that Triton's interpreter multiplies in seconds, of the functions of `ops` and of stored formats."""


def bench_gemm(m: int, n: int, k: int, scheme: str, device: str, how: How | None = None) -> dict[str, Any]:
    """Check and time a product [m, k] x [n, k] of Gaussian values on "cpu" or "gpu".

    `scheme` is a name in PRODUCTS, or a stored format's in lower or upper case. Returns
    rel_l2, max_abs_err  against the float32 product, with all that follows its sums
    bound                of rel_l2; None where results are too few to judge
    own_error            rel_L2 against the exact product of the same operands
    own_bound            of own_error
    passed               whether errors are within their bounds
    seconds, gops        the median of a call; of Triton's interpreter the seconds of one, and None
    share_of_limit       what the machine could do, in `limit`, measured before and after; the most counts
    libraries            products of libraries: name, seconds, ratio; on the CPU float32 BLAS, on a GPU float16 and, of
                         int8 and fp8, the vendor's; none beside the interpreter
    others_cpu           the share of the CPU that other programs took, or None
    withheld             why ratios and the share say nothing, or None

    Raises UsageError for schemes, sizes and options that there is no product of, BackendError where the device is
    missing.
    """
    scheme, how = scheme.lower(), how or How()
    interpreted = device == "gpu" and is_interpreted()
    if interpreted:
        _require_small(m * n * k, scheme)
    x, w = drawn(m, n, k, _whole(scheme), how.seed)
    subject = subject_of(scheme, x, w, device, how)
    start = time.perf_counter()
    checked = errors(subject, x, w)
    asked = {
        "m": m, "n": n, "k": k, "scheme": scheme, "device": "Triton's interpreter" if interpreted else device,
        "scale_a": how.scale_a, "fp8": "-".join(how.kinds) if scheme.startswith("fp8") else None, "bias": how.bias,
        "activation": how.activation, "residual": how.residual, "seed": how.seed, **checked,
    }
    if interpreted:
        seconds = time.perf_counter() - start
        nothing = {"others_cpu": None, "withheld": "timed in the interpreter, not on a GPU"}
        return {**asked, "seconds": seconds, "gops": None, **share(None, seconds), "libraries": [], **nothing}
    return {**asked, **_timed(subject, x, w, scheme, device)}


def products_of(m: int, n: int, k: int, scheme: str, how: How) -> dict[str, Callable[[], object]]:
    """A call on the GPU of a product of Gaussian values, and of each of the libraries' beside it, by name."""
    x, w = drawn(m, n, k, _whole(scheme), how.seed)
    subject = subject_of(scheme, x, w, "gpu", how)
    beside = library_calls(scheme, x, w, subject.operands, "gpu")
    return {scheme: subject.calls(1)[0], **{name: calls[0] for name, calls in beside.items()}}


def _timed(subject: GemmSubject, x: F32, w: F32, scheme: str, device: str) -> dict[str, Any]:
    """How fast a product is, beside the limit and the libraries'."""
    m, n, k = len(x), len(w), x.shape[1]
    operations, threads = 2 * m * n * k, cores() if device == "cpu" else 0

    def limit() -> Limit | None:
        return gemm_limits.limit(operations, subject.bytes, threads, scheme)

    watch, before = LoadWatch([os.getpid()]), limit()
    seconds = median_seconds(subject.calls(copies_of(m, subject.weight_bytes)), device)
    after = limit()
    best = min((each for each in (before, after) if each), key=lambda each: each.seconds, default=None)
    libraries = []
    for name, calls in library_calls(scheme, x, w, subject.operands, device).items():
        theirs = median_seconds(calls, device)
        libraries.append({"name": name, "seconds": theirs, "ratio": theirs / seconds})
    others, reached = watch.others(), share(best, seconds)
    return {
        "seconds": seconds, "gops": operations / seconds / 1e9, **reached, "libraries": libraries,
        "others_cpu": others, "withheld": misleading(others, reached["share_of_limit"]),
    }


def is_interpreted() -> bool:
    from octavo.backends.gpu.device.torch_device import interpreted, target

    target()  # raises where there is neither a GPU nor an interpreter
    return interpreted()


def _require_small(size: int, scheme: str) -> None:
    """Raise UsageError for a product that Triton's interpreter would take minutes for."""
    most = MOST_STORED_INTERPRETED if scheme in stored_formats.STORED else MOST_INTERPRETED
    if size > most:
        raise UsageError(
            f"M x N x K is {size:,} with scheme {scheme} in Triton's interpreter, as TRITON_INTERPRET=1 says (allowed:"
            f" up to {most:,}, or a GPU)"
        )


def subject_of(scheme: str, x: F32, w: F32, device: str, how: How | None = None) -> GemmSubject:
    """The product of x and w in a scheme, on "cpu" or "gpu"."""
    how = how or How()
    fmt = stored_formats.STORED.get(scheme)
    if fmt:
        stored_formats.require_plain(scheme, how)
        return stored_formats.subject(fmt, x, w, device)
    timed_products.require(scheme, x.shape[1], how)
    return timed_products.subject(scheme, x, w, device, how)


def _whole(scheme: str) -> int:
    """What K has to be a multiple of. Raises UsageError for an unknown scheme."""
    if scheme in stored_formats.STORED:
        return stored_formats.STORED[scheme].block
    if scheme not in PRODUCTS:
        raise UsageError(f"scheme {scheme!r} (allowed: {', '.join((*PRODUCTS, *stored_formats.STORED))})")
    return PRODUCTS[scheme].multiple


def drawn(m: int, n: int, k: int, whole: int = 1, seed: int = 0) -> tuple[F32, F32]:
    """Gaussian activations [m, k] and weights [n, k]. Raises UsageError unless K is a multiple of `whole`."""
    if min(m, n, k) < 1 or k % whole or max(m * n, m * k, n * k) > MOST:
        multiple = f", K a multiple of {whole}" if whole > 1 else ""
        raise UsageError(f"a product of {m} x {n} x {k} (allowed: from 1 on, up to 2^31 values of a matrix{multiple})")
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)


def errors(subject: GemmSubject, x: F32, w: F32) -> dict[str, Any]:
    """How far results are from the product of the floats, and from what they should be, and whether that is allowed."""
    rows = np.linspace(0, len(x) - 1, min(len(x), CHECKED_ROWS)).astype(np.intp)
    one, nothing = np.ones((), np.float32), {"bias": None, "activation": None, "residual": None}
    after = {**nothing, **timed_products.rows_of(subject.after, rows)}
    floats = definition.epilogue(x[rows] @ w.T, one, one, **after, out_dtype="f32")
    got = subject.run()[rows]
    error, own = _rel_l2(got, floats), _rel_l2(got, subject.exact(rows))
    bound = subject.bound if len(w) >= OUTPUTS and len(x) * len(w) >= JUDGED else None
    return {
        "rel_l2": error, "max_abs_err": float(np.abs(got - floats).max()), "bound": bound, "own_error": own,
        "own_bound": OWN_BOUND, "passed": (bound is None or error <= bound) and own <= OWN_BOUND,
    }


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


def copies_of(tokens: int, nbytes: int) -> int:
    """How many copies of a weight take turns."""
    return min(MOST_COPIES, -(-COLD_BYTES // nbytes)) if tokens <= COPIES_MAX_TOKENS else 1


def library_calls(scheme: str, x: F32, w: F32, placed: tuple[Any, ...], device: str) -> dict[str, Calls]:
    """The products next to which a scheme's is set, by name: calls of each over copies of the weights.

    They are of the floats alone, without what follows the sums. No BLAS of a CPU has a float16 product.
    """
    copies = copies_of(len(x), w.nbytes)
    if device == "cpu":
        out = np.empty((len(x), len(w)), np.float32)
        all_weights = [w, *(w.copy() for _ in range(min(copies, 8) - 1))]
        return {"float32 BLAS": [partial(np.matmul, x, each.T, out=out) for each in all_weights]}
    from octavo.bench.gemm import library

    return library.calls(scheme, x, w, placed, copies)


def median_seconds(calls: Calls, device: str) -> float:
    """The median time of a call."""
    if device == "gpu":
        from octavo.backends.gpu.device.torch_device import interpreted
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
