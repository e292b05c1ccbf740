"""Compares the encoders' error and speed with llama.cpp's, and writes bench/results/quantizer-error-<date>.json.

    python bench/quantizer_error.py [--ggml LIBRARY] [--threads N] [--rounds N] [--formats NAME ...] [--no-speed]

The peer is ggml's own `ggml_quantize_chunk`, called through ctypes: `--ggml` names libggml-base, or llama-cpp-python is
found where it is installed. Nothing of the project needs it otherwise.

Errors are sums over 512 x 1024 values, ours over the peer's, so below 1 is better: `weighted` by the weights that
llama.cpp minimises (see `weights`), `squared` by the importance alone (or nothing), `plain` by nothing. Data: Gaussian,
Laplace and Student's t with 4 degrees of freedom, and rows of the demo model's matrices. Formats of grids and of three
levels are compared with importance alone, which some of llama.cpp's encoders can't do without.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from octavo.backends.cores import cores
from octavo.formats import BlockFormat, QTensor, by_name, dequantize
from octavo.io.gguf import GGUFFile
from octavo.quantizers import encode

BLOCKS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
TERNARY = ("TQ1_0", "TQ2_0")
POINTS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", *TERNARY)
ROWS, K = 512, 1024
SPEED_VALUES = 1 << 23
SUPER_SPREAD = {
    "Q2_K": 1, "Q3_K": 2, "Q4_K": 2, "Q5_K": 2, "IQ4_XS": 2, "IQ4_NL": 2,
    "IQ1_S": 2, "IQ1_M": 2, "IQ2_XXS": 1, "IQ2_XS": 1, "IQ2_S": 2, "IQ3_XXS": 2, "IQ3_S": 2,
}
"""How often the mean square goes into llama.cpp's weights with an importance matrix; a block's, a row's for others."""

Array = np.ndarray[Any, Any]


class Peer:
    """ggml's quantizers in a shared library."""

    def __init__(self, path: Path) -> None:
        self.path, library = path, ctypes.CDLL(str(path))
        self._quantize = library.ggml_quantize_chunk
        self._quantize.restype = ctypes.c_size_t
        self._quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def encode(self, x: Array, fmt: BlockFormat, importance: Array | None, threads: int = 1) -> Array:
        """Rows as ggml packs them; each thread a share of the rows, as llama_model_quantize does it."""
        out = np.empty((len(x), fmt.row_bytes(x.shape[1])), np.uint8)
        weights = None if importance is None else importance.ctypes.data

        def share(part: range) -> None:
            rows, packed = x[part.start : part.stop], out[part.start : part.stop]
            if len(rows):
                self._quantize(fmt.gguf, rows.ctypes.data, packed.ctypes.data, 0, len(rows), x.shape[1], weights)

        step = -(-len(x) // (4 * threads))
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(share, [range(i, i + step) for i in range(0, len(x), step)]))
        return out


def find_peer(chosen: Path | None) -> Path:
    """The library's path. Exits where there is none."""
    spec = importlib.util.find_spec("llama_cpp")
    folders = [] if spec is None or spec.origin is None else [Path(spec.origin).parent / "lib"]
    found = [chosen] if chosen else [p for f in folders for p in sorted(f.glob("*ggml-base.*"))]
    if not found or not found[0].exists():
        sys.exit("no libggml-base found: install llama-cpp-python, or say where it is with --ggml")
    return found[0]


def data() -> dict[str, Array]:
    """float32 [ROWS, K] of each kind."""
    rng = np.random.default_rng(0)
    drawn = {
        "gauss": 0.02 * rng.standard_normal((ROWS, K)),
        "laplace": 0.02 * rng.laplace(size=(ROWS, K)),
        "student t": 0.02 * rng.standard_t(4, (ROWS, K)),
        "demo model": demo_rows(rng),
    }
    return {name: np.ascontiguousarray(x, np.float32) for name, x in drawn.items()}


def demo_rows(rng: np.random.Generator) -> Array:
    """Blocks of 256 drawn from all matrices of the demo model."""
    with resources.as_file(resources.files("octavo.data") / "demo.gguf") as path:
        file = GGUFFile.open(path)
        matrices = [n for n, info in file.tensors.items() if len(info.shape) == 2 and info.shape[-1] % 256 == 0]
        blocks = np.concatenate([dequantize(file.tensor(name)).reshape(-1, 256) for name in matrices])
    return blocks[rng.permutation(len(blocks))[: ROWS * K // 256]].reshape(ROWS, K)


def importance_matrix() -> Array:
    """Mean squared activations as calibration texts give them: most alike, some far larger."""
    rng = np.random.default_rng(5)
    return (rng.chisquare(2, K) * np.exp(rng.standard_normal(K))).astype(np.float32)


def weights(fmt: BlockFormat, x: Array, importance: Array | None) -> Array:
    """What llama.cpp weighs squared errors with when it searches (ggml-quants.c), float64 [ROWS, K]."""
    x = x.astype(np.float64)
    if importance is None:
        if fmt.name in ("Q4_K", "Q5_K"):
            return np.repeat(np.sqrt(_mean_square(x, fmt.group)), fmt.group, axis=1) + np.abs(x)
        if fmt.name == "Q2_K":
            return np.abs(x)
        return np.square(x) if fmt.name in ("Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS") else np.ones_like(x)
    if fmt.name in ("Q6_K", "MXFP4", "Q8_0", *TERNARY):  # which ignore it, but for the first
        return np.broadcast_to(importance.astype(np.float64), x.shape)
    if fmt.name in SUPER_SPREAD:
        spread = np.repeat(SUPER_SPREAD[fmt.name] * _mean_square(x, fmt.block), fmt.block, axis=1)
    else:
        spread = _mean_square(x, K)
    return importance * np.sqrt(spread + np.square(x))


def _mean_square(x: Array, size: int) -> Array:
    return np.square(x.reshape(len(x), -1, size)).mean(axis=-1)


def errors(packed: Array, fmt: BlockFormat, x: Array, importance: Array | None) -> dict[str, float]:
    """The three sums of squared errors."""
    squared = np.square(dequantize(QTensor(fmt, x.shape, packed)).astype(np.float64) - x)
    return {
        "weighted": float((weights(fmt, x, importance) * squared).sum()),
        "squared": float((squared if importance is None else importance * squared).sum()),
        "plain": float(squared.sum()),
    }


def with_importance(name: str) -> list[Array | None]:
    """What a format is compared with: no importance and an importance matrix, or this alone."""
    matrix = importance_matrix()
    return [matrix] if name in POINTS else [None, matrix]


def compare(peer: Peer, formats: Sequence[str]) -> list[dict[str, Any]]:
    """For each format, data and importance: our errors over the peer's."""
    rows = []
    for name in formats:
        fmt = by_name(name)
        for kind, x in data().items():
            for importance in with_importance(name):
                ours = errors(encode(x, fmt, importance=importance), fmt, x, importance)
                theirs = errors(peer.encode(x, fmt, importance), fmt, x, importance)
                ratios = {key: round(ours[key] / theirs[key], 4) for key in ours}
                rows.append({"format": name, "data": kind, "imatrix": importance is not None, **ratios})
    return rows


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def speed(peer: Peer, formats: Sequence[str], threads: int, rounds: int) -> list[dict[str, Any]]:
    """Million values a second, ours and the peer's in turn, medians of rounds; and what a first call takes."""
    x = (0.02 * np.random.default_rng(1).standard_normal((SPEED_VALUES // K, K))).astype(np.float32)
    encode(x[:1], "F16")  # compiles what all formats share
    rows = []
    for name in formats:
        fmt = by_name(name)
        for importance in with_importance(name):
            first = timed(lambda: encode(x[:1], fmt, importance=importance))  # noqa: B023
            pairs = [
                (
                    timed(lambda: encode(x, fmt, importance=importance, threads=threads)),  # noqa: B023
                    timed(lambda: peer.encode(x, fmt, importance, threads)),  # noqa: B023
                )
                for _ in range(rounds)
            ]
            ours, theirs = (x.size / statistics.median(t) / 1e6 for t in zip(*pairs, strict=True))
            rows.append({"format": name, "imatrix": importance is not None, "octavo": round(ours, 1),
                         "llama.cpp": round(theirs, 1), "ratio": round(ours / theirs, 2),
                         "first_call_seconds": round(first, 2)})
    return rows


def show(result: dict[str, Any]) -> None:
    for row in result["errors"]:
        print(f"{row['format']:7} {row['data']:11} {'imatrix' if row['imatrix'] else '-':8}"
              f"{row['weighted']:8.3f}{row['squared']:8.3f}{row['plain']:8.3f}")
    for row in result["million_values_per_second"]:
        print(f"{row['format']:7} {'imatrix' if row['imatrix'] else '-':8}{row['octavo']:9.1f}{row['llama.cpp']:9.1f}"
              f"{row['ratio']:7.2f}x   first call {row['first_call_seconds']} s")


def peer_version() -> str | None:
    try:
        return version("llama_cpp_python")
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", type=Path, default=None, help="libggml-base of the peer")
    parser.add_argument("--peer-version", default=None, help="what to call it, where it is not installed here")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", nargs="+", default=[*BLOCKS, *POINTS], choices=[*BLOCKS, *POINTS], metavar="NAME")
    parser.add_argument("--no-speed", action="store_true", help="errors alone, which other programs don't change")
    options = parser.parse_args()
    peer = Peer(find_peer(options.ggml))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OCTAVO_CACHE"] = folder  # nothing is compiled yet
        rates = [] if options.no_speed else speed(peer, options.formats, options.threads, options.rounds)
        comparison = compare(peer, options.formats)
    result = {
        **results_file.described(**{"llama-cpp-python": options.peer_version or peer_version()}),
        "threads": options.threads,
        "rounds": options.rounds,
        "errors": comparison,
        "million_values_per_second": rates,
    }
    show(result)
    results_file.write("quantizer-error", result)


if __name__ == "__main__":
    main()
