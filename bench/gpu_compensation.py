"""Times a checkpoint's compensation on a GPU and writes bench/results/gpu-compensation-<date>.json.

    python bench/gpu_compensation.py [--commit HASH] [-o FOLDER] [--layers N] [--samples N] [--context N]
        [--scheme NAME] [--folder FOLDER]

Layers of Llama 3 8B's shape with random weights, over a text of random words, as `octavo quantize MODEL OUT --scheme
w4a16-g128 --method gptq --calibration TEXT --samples 128` does it, with 2,048 tokens a sample: the model is run,
Hessians are added up and factorized, weights are made, and the checkpoint is written and read again. Only parameters
that are quantized are counted: those of the layers, neither embedding nor output. Times are of the whole command, the
compilation of kernels included, and of each layer, that is of its four products; the first has all that is done once.
The command is run twice, with kernels that are not compiled yet, unless something compiled them before, and then again.

`weights` has the making of one layer's weights alone, of Hessians that are there, next to the published loop in torch:
columns one after the other in blocks of 128, all rows at once, with scales of the extremes.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import results_file
from octavo.backends.gpu import GpuBackend
from octavo.bench import gpu, machine, synthetic
from octavo.calibrate import gptq
from octavo.calibrate.hessian import factorize
from octavo.calibrate.methods.gptq import DAMP
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.formats import QTensor, by_name
from octavo.formats.group import row_named
from octavo.io.gguf import LazyTensor, write_gguf
from octavo.quantizers import quantize_checkpoint

SHAPE = "llama3-8b"
VOCABULARY = 4096
STAGES = 4
"""Products of a layer one after the other: q, k and v, the output of attention, gate and up, down."""


def made(path: Path, layers: int) -> int:
    """Write the model; the parameters of its layers' matrices."""
    shape = replace(synthetic.SHAPES[SHAPE], n_layer=layers, n_vocab=VOCABULARY)
    torch.manual_seed(0)
    parts = [drawn(part) if len(part.shape) == 2 else part for part in synthetic.tensors(shape, "F16")]
    write_gguf(path, shape.arch, synthetic.metadata(SHAPE, shape), parts)
    return sum(int(np.prod(part.shape)) for part in parts if part.name.startswith("blk.") and len(part.shape) == 2)


def drawn(part: LazyTensor) -> LazyTensor:
    """A matrix whose numbers are all drawn."""

    def load() -> QTensor:
        values = torch.randn(part.shape, device="cuda").mul_(part.shape[-1] ** -0.5).half().cpu().numpy()
        return QTensor(by_name("F16"), part.shape, values.view(np.uint8), part.name)

    return LazyTensor(part.name, by_name("F16"), part.shape, load)


def words(path: Path, tokens: int) -> None:
    """Write a text of random words of up to two letters, each of which is a token."""
    letters = np.random.default_rng(0).integers(0, 26, (tokens, 2)) + ord("a")
    path.write_text(" ".join(map("".join, np.vectorize(chr)(letters))), encoding="utf-8")


class Times:
    """When samples of stages were done, as progress is told."""

    def __init__(self, samples: int) -> None:
        self._samples, self._done = samples, dict[int, list[float]]()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "calibration":
            if done % self._samples == 0:
                torch.cuda.synchronize()  # what is under way belongs to the stage
            self._done.setdefault((done - 1) // self._samples, []).append(perf_counter())

    def around(self, began: float) -> tuple[float, float]:
        """Seconds from the beginning on to the first layer, and to the end of the last."""
        return self._done[0][-1] - began, self._done[max(self._done)][-1] - began

    def layers(self, began: float) -> Iterator[dict[str, float]]:
        """Seconds of each layer, of which its stages were running and its weights being made."""
        stages = [self._done[stage] for stage in sorted(self._done)]
        starts = [began, *(times[-1] for times in stages)]
        for first, last in pairwise(range(1, len(stages) + 1, STAGES)):
            running = sum(times[-1] - times[0] for times in stages[first:last])
            seconds = starts[last] - starts[first]
            yield {"seconds": seconds, "running": running, "making": seconds - running}


def measure(options: argparse.Namespace, folder: Path, parameters: int) -> dict[str, Any]:
    """One run of the command."""
    model, text, out = folder / "model.gguf", folder / "text.txt", folder / "out"
    times = Times(options.samples)
    torch.cuda.reset_peak_memory_stats()
    method = SchemeMethod(str(text), "gptq", samples=options.samples, context=options.context, device="gpu",
                          progress=times)
    began = perf_counter()
    report = quantize_checkpoint(model, out, options.scheme, method=method, progress=times)
    seconds = perf_counter() - began
    layers = list(times.layers(began))
    rows = [row for row in report.rows if row.name.startswith("blk.") and row.error]
    each = parameters / options.layers / 1e9
    steady = [layer["seconds"] / each for layer in layers[1:]]
    before, after = times.around(began)
    return {
        "shape": SHAPE, "layers": options.layers, "samples": options.samples, "context": options.context,
        "scheme": options.scheme, "parameters": parameters, "seconds": seconds,
        "seconds_per_billion": seconds / parameters * 1e9,
        "seconds_per_billion_of_later_layers": sum(steady) / max(1, len(steady)),
        "seconds_before_layers": before, "seconds_after_layers": seconds - after, "of_layers": layers,
        "device_bytes": torch.cuda.max_memory_allocated(),
        "error": float(np.mean([row.error for row in rows])),
    }


def published(weight: torch.Tensor, upper: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Values of a weight [N, K] as GPTQ rounds them (arXiv 2210.17323), by the factor of the inverse Hessian."""
    groups = weight.view(len(weight), -1, 128)
    scales = groups.abs().amax(2).div_(7).repeat_interleave(128, 1)[:, order]
    left, made = weight[:, order].clone(), torch.empty_like(weight)
    for start in range(0, len(order), 128):
        block, errors = slice(start, start + 128), torch.empty_like(left[:, :128])
        inside = left[:, block].clone()
        for j in range(128):
            scale, row = scales[:, start + j], upper[start + j, block]
            value = (inside[:, j] / scale).round_().clamp_(-8, 7) * scale
            made[:, start + j] = value
            errors[:, j] = (inside[:, j] - value) / row[j]
            inside[:, j:] -= errors[:, j, None] * row[j:]
        left[:, start + 128 :] -= errors @ upper[block, start + 128 :]
    return made[:, order.argsort()]


def weights() -> dict[str, float]:
    """Seconds for one layer's weights, and the error tr(E H E^T) over that of outputs, by both ways."""
    shape, found = synthetic.SHAPES[SHAPE], {"own": 0.0, "published": 0.0, "own_error": 0.0, "published_error": 0.0}
    heads, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    layer = [(shape.n_embd, (heads, kv, kv)), (heads, (shape.n_embd,)), (shape.n_embd, (shape.n_ff,) * 2),
             (shape.n_ff, (shape.n_embd,))]
    power = 0.0
    for k, rows in layer:
        mixing = torch.randn(k, k, device="cuda") * torch.rand(k, 1, device="cuda") ** 4
        x = torch.randn(4 * k, k, device="cuda") @ mixing
        h = (x.T @ x).div_(len(x))
        ws = [torch.randn(n, k, device="cuda").mul_(k**-0.5) for n in rows]
        fmt = row_named("GROUP4_128_F16")
        began = synchronized()
        factor = factorize(h, "act", DAMP)
        own = [gptq(w, h, fmt, factor=factor) for w in ws]
        found["own"] += synchronized() - began
        began = synchronized()
        order = torch.argsort(-h.diagonal())
        damped = h[order][:, order]
        damped.diagonal().add_(DAMP * h.diagonal().mean())
        upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
        loop = [published(w, upper, order) for w in ws]
        found["published"] += synchronized() - began
        for w, one, other in zip(ws, own, loop, strict=True):
            found["own_error"] += float(one.after.sum())
            found["published_error"] += float((((other - w) @ h) * (other - w)).sum())
            power += float(((w @ h) * w).sum())
    return {**found, **{name: found[name] / power for name in ("own_error", "published_error")}}


def synchronized() -> float:
    torch.cuda.synchronize()
    return perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--scheme", default="w4a16-g128")
    parser.add_argument("--folder", help="where models are written, with room for 2 bytes a parameter, twice")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="octavo-bench-", dir=options.folder))
    runs = []
    try:
        parameters = made(folder / "model.gguf", options.layers)
        words(folder / "text.txt", options.samples * options.context + 64)
        for caches in ("cold", "warm"):
            runs.append({"caches": caches, **measure(options, folder, parameters)})
            print(runs[-1], flush=True)
            shutil.rmtree(folder / "out")
    finally:
        shutil.rmtree(folder)
    compared = weights()
    print(compared, flush=True)
    described = results_file.described(gpu.describe(GpuBackend()), **gpu.versions(), commit=options.commit)
    results_file.write("gpu-compensation", {**described, "runs": runs, "weights": compared}, options.output)


if __name__ == "__main__":
    main()
