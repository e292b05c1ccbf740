"""Measures what errors that make up for each other are worth; writes bench/results/compensation-kl-MODEL-<date>.json.

    python bench/compensation_kl.py [MODEL.gguf] [--orders 8] [--presets Q4_0,...] [--methods gptq,qronos] [--chunks N]

A model in other orders of its channels, which change nothing but which weights share a block, is quantized by the plain
encoders, by those with an importance matrix, and by methods that compensate, with the types of the second (Q4_0: of the
first). Importance and Hessians are of questions that the model was trained on, divergence is of others. What does not
depend on the order is worked out once: the original's logits, and what errors cost in each tensor (`--target-bpw`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from octavo.evals import collect_imatrix, demo_text
from octavo.evals.compensation import Compensation
from octavo.evals.scores import Comparison, compare
from octavo.evals.sensitivity import Measured
from octavo.evals.stats import mean
from octavo.evals.subject import open_subject
from octavo.evals.windows import logits, step_sizes, windows
from octavo.formats import QTensor, dequantize
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.quantizers import Target, quantize_file, quantize_to_size
from octavo.quantizers.fold import shuffle
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.source import Source
from octavo.quantizers.mix.mixing import Choices
from octavo.runtime import resolve

CONTEXT, CALIBRATION_WINDOWS = 512, 32
PRESETS = "Q4_0,Q4_K_M,IQ4_XS,Q3_K_M,Q2_K,4.5"
"""4.5 stands for --target-bpw 4.5."""
SAME = 1e-2
"""How far logits of the model in another order, with keys and values in 16 bits, may be from the original's."""

Found = dict[str, dict[str, Any]]
"""By way to quantize: divergence with its error, bytes, seconds."""


class Subject:
    """A model, its logits over the held-out text, and what errors cost in its tensors."""

    def __init__(self, name: str, chunks: int | None) -> None:
        self.path, self.chunks = resolve(name), chunks
        self.base = list(self._logits(self.path))
        self._slopes: Mapping[str, float] = {}

    def write(self, out: Path, seed: int) -> None:
        """Write the model with its channels in an order drawn by `seed`. Raises where it computes something else."""
        with GGUFFile.open(self.path) as file:
            other = shuffle(file, seed)
            tensors = {name: _as_stored(file.tensor(name), other.tensor(name)) for name in file.tensors}
            metadata = {key: file.metadata.typed(key) for key in file.metadata}
            write_gguf(out, file.metadata["general.architecture"], metadata, tensors)
        (rows, _), (base, _) = next(self._logits(out)), self.base[0]
        if np.abs(rows - base).max() > SAME:
            raise ValueError(f"order {seed}: logits are {np.abs(rows - base).max():g} off (allowed: {SAME:g})")

    def divergence(self, path: Path) -> list[float]:
        """Mean divergence from the original, and its error."""
        pairs = zip(self._logits(path), self.base, strict=True)
        kl = mean(Comparison.join([compare(rows, base, targets) for (rows, targets), (base, _) in pairs]).kl)
        return [kl.value, kl.error]

    def slopes(self, source: Source, names: list[str]) -> Mapping[str, float]:
        """What errors cost, measured once: no order changes it."""
        if not self._slopes:
            self._slopes = Measured("demo", None)(source, names)
        return self._slopes

    def _logits(self, path: str | Path) -> Iterator[tuple[Any, Any]]:
        with open_subject(path, CONTEXT) as model:
            text = demo_text(model.tokenizer, "test").tokens
            for window in windows(model, text, CONTEXT, self.chunks):
                for rows, targets in logits(model.engine, window, *step_sizes(model.engine)):
                    yield rows.copy(), targets


class Order:
    """The subject's channels in one order, written to `source`."""

    def __init__(self, subject: Subject, folder: Path, seed: int) -> None:
        self.subject, self.source, self.out = subject, folder / "source.gguf", folder / "out.gguf"
        subject.write(self.source, seed)

    @cached_property
    def imatrix(self) -> Imatrix:
        with open_subject(self.source, CONTEXT, fuse=False) as model:
            text = demo_text(model.tokenizer, "train").tokens
            return collect_imatrix(model, text, context=CONTEXT, chunks=CALIBRATION_WINDOWS)

    def measure(self, preset: str, methods: list[str]) -> Found:
        """Each way to quantize to a preset, or to a size."""
        choices, found = Choices(), {}
        if preset[0].isdigit():
            target, preset = Target(float(preset)), "Q4_K_M"
            report = quantize_to_size(
                self.source, self.out, target, slopes=self.subject.slopes, imatrix=self.imatrix
            ).report
            choices = Choices(tensor_types=tuple((f"^{row.name}$", row.type) for row in report.rows))
        else:
            found["plain"] = self._measured(preset, choices, None, None)
        found["imatrix"] = self._measured(preset, choices, self.imatrix, None)
        for kind in methods:
            weights = None if preset == "Q4_0" else self.imatrix
            found[kind] = self._measured(preset, choices, weights, Compensation("demo", kind))  # type: ignore[arg-type]
        return found

    def _measured(
        self, preset: str, choices: Choices, imatrix: Imatrix | None, method: Compensation | None
    ) -> dict[str, Any]:
        begun = time.perf_counter()
        report = quantize_file(self.source, self.out, preset, choices=choices, imatrix=imatrix, method=method)
        seconds = time.perf_counter() - begun
        return {"kl": self.subject.divergence(self.out), "bytes": report.nbytes, "seconds": round(seconds, 2)}


def _as_stored(stored: QTensor, changed: QTensor) -> QTensor | np.ndarray[Any, Any]:
    """A tensor in another order, as floats of the type that it was stored in."""
    halves = stored.format.name == "F16"
    return dequantize(changed).astype(np.float16) if halves else changed


def ratio(orders: list[Found], way: str, base: str) -> list[float]:
    """The mean ratio of divergences over all orders, and from where to where it is with 95%."""
    logs = np.log([order[way]["kl"][0] / order[base]["kl"][0] for order in orders])
    spread = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return [float(np.exp(x)) for x in (logs.mean(), logs.mean() - spread, logs.mean() + spread)]


def row(preset: str, orders: list[Found]) -> dict[str, Any]:
    """What all orders of a preset come to."""
    bases = [way for way in ("plain", "imatrix") if way in orders[0]]
    methods = [way for way in orders[0] if way not in ("plain", "imatrix")]
    ratios = {f"{way} over {base}": ratio(orders, way, base) for way in methods for base in bases}
    mean_kl = {way: float(np.mean([order[way]["kl"][0] for order in orders])) for way in orders[0]}
    return {"preset": preset, "ratios": ratios, "kl": mean_kl, "orders": orders}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help="a GGUF file of floats, or demo")
    parser.add_argument("--orders", type=int, default=8)
    parser.add_argument("--presets", default=PRESETS)
    parser.add_argument("--methods", default="gptq,qronos")
    parser.add_argument("--chunks", type=int, default=24, help="windows of the held-out text")
    options = parser.parse_args()
    presets, found = options.presets.split(","), {preset: [] for preset in options.presets.split(",")}
    subject, name = Subject(options.model, options.chunks), f"compensation-kl-{Path(options.model).stem}"
    for seed in range(options.orders):
        with tempfile.TemporaryDirectory() as folder:
            order = Order(subject, Path(folder), seed)
            for preset in presets:
                found[preset].append(order.measure(preset, options.methods.split(",")))
                print(seed, preset, {way: x["kl"][0] for way, x in found[preset][-1].items()}, flush=True)
        rows = [row(preset, found[preset]) for preset in presets]
        described = results_file.described(chunks=options.chunks)
        results_file.write(name, {**described, "model": name, "orders": seed + 1, "rows": rows})
    for each in rows:
        print(each["preset"], each["ratios"])


if __name__ == "__main__":
    main()
