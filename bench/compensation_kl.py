"""Measures what errors that make up for each other are worth; writes bench/results/compensation-kl-MODEL-<date>.json.

    python bench/compensation_kl.py [MODEL.gguf ...] [--orders 8] [--first 0] [--presets Q4_0,...]
                                    [--methods gptq,qronos] [--chunks N] [--jobs N] [--commit HASH] [-o FOLDER]

A model in other orders of its channels, which change nothing but which weights share a block, is quantized by the plain
encoders, by those with an importance matrix, and by methods that compensate, with the types of the second (Q4_0: of the
first; with a size: the cheapest type whose errors can be compensated). Importance and Hessians are of one text,
questions that the model was trained on, and divergence is of others (`texts.py`). What does not depend on the order is
worked out once: the original's logits, and what errors cost in each tensor (`--target-bpw`).

Presets are gone through in the order given, each for all models and orders; files are written whenever one is done.
Their names have the presets, too, where these are not all.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from jobs import results
from octavo.bench import machine
from octavo.calibrate.fold import shuffle
from octavo.calibrate.gguf.gguf_method import GgufMethod
from octavo.evals import collect_imatrix
from octavo.evals.eval_model import open_subject
from octavo.evals.scores import Comparison, compare
from octavo.evals.sensitivity import MeasuredSlopes
from octavo.evals.stats import mean
from octavo.evals.windows import logits, step_sizes, windows
from octavo.formats import QTensor, dequantize
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.quantizers import Target, quantize_file, quantize_to_size
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.job_report import Report
from octavo.quantizers.job.job_source import ModelSource
from octavo.runtime import resolve
from texts import calibration, held_out, tokens_of

CONTEXT, CALIBRATION_WINDOWS = 512, 32
PRESETS = "Q4_0,Q4_K_M,IQ4_XS,Q3_K_M,Q2_K,4.5"
"""4.5 stands for --target-bpw 4.5."""
SAME = 1e-2
"""How far logits of the model in another order, with keys and values in 16 bits, may be from the original's."""

Found = dict[str, dict[str, Any]]
"""By way to quantize: divergence with its error, bytes, seconds."""


class Subject:
    """A model, and its logits over the held-out text."""

    def __init__(self, name: str, chunks: int | None) -> None:
        self.name, self.path, self.chunks = name, resolve(name), chunks

    @cached_property
    def base(self) -> list[tuple[Any, Any]]:
        return list(self._logits(self.path))

    def write(self, out: Path, seed: int) -> None:
        """Write the model with its channels in an order drawn by `seed`. Raises where it computes something else."""
        with GGUFFile.open(self.path) as file:
            other = shuffle(file, seed)
            tensors = {name: _as_stored(file.tensor(name), other.tensor(name)) for name in file.tensors}
            metadata = {key: file.metadata.typed(key) for key in file.metadata}
            write_gguf(out, file.metadata["general.architecture"], metadata, tensors)
        (rows, _), (base, _) = next(self._logits(out)), next(self._logits(self.path))
        if np.abs(rows - base).max() > SAME:
            raise ValueError(f"order {seed}: logits are {np.abs(rows - base).max():g} off (allowed: {SAME:g})")

    def divergence(self, path: Path) -> list[float]:
        """Mean divergence from the original, and its error."""
        pairs = zip(self._logits(path), self.base, strict=True)
        kl = mean(Comparison.join([compare(rows, base, targets) for (rows, targets), (base, _) in pairs]).kl)
        return [kl.value, kl.error]

    def _logits(self, path: str | Path) -> Iterator[tuple[Any, Any]]:
        with open_subject(path, CONTEXT, device="cpu") as model:
            for window in windows(model, held_out(self.name), CONTEXT, self.chunks):
                for rows, targets in logits(model.engine, window, *step_sizes(model.engine)):
                    yield rows.copy(), targets


subject = cache(Subject)


@dataclass(frozen=True)
class Setting:
    """What all tasks have in common; `folder` is what files are made in, `texts` what models are calibrated with."""

    folder: Path
    texts: Mapping[str, str]
    methods: tuple[str, ...]
    chunks: int | None

    def file(self, model: str, seed: int, kind: str) -> Path:
        return self.folder / f"{Path(model).stem}-{seed}.{kind}"

    def slopes(self, model: str) -> Path:
        """What errors cost in each tensor: no order changes it."""
        return self.folder / f"{Path(model).stem}.json"


def prepare(setting: Setting, task: tuple[str, int | None]) -> None:
    """Write a model's channels in an order, with the importance matrix; of None what errors cost."""
    model, seed = task
    if seed is None:
        measure_slopes(model, setting)
        return
    out = setting.file(model, seed, "gguf")
    subject(model, setting.chunks).write(out, seed)
    with open_subject(out, CONTEXT, device="cpu", fuse=False) as opened:
        text = tokens_of(opened.tokenizer, "train")
        found = collect_imatrix(opened, text, context=CONTEXT, chunks=CALIBRATION_WINDOWS)
        found.save(setting.file(model, seed, "imatrix"))


def measure_slopes(model: str, setting: Setting) -> None:
    out, text = setting.slopes(model), setting.texts[model]

    def kept(source: ModelSource, names: list[str]) -> Mapping[str, float]:
        found = MeasuredSlopes(text, None, device="cpu")(source, names)
        out.write_text(json.dumps(found))
        return found

    quantize_to_size(resolve(model), out.with_suffix(".gguf"), Target(4.5), slopes=kept, dry_run=True)


def measure(setting: Setting, task: tuple[str, str, int]) -> Found:
    """Each way to quantize a model in an order to a preset, or to a size."""
    model, preset, seed = task
    source, imatrix = setting.file(model, seed, "gguf"), Imatrix.load(setting.file(model, seed, "imatrix"))
    if preset[0].isdigit():
        costs = json.loads(setting.slopes(model).read_text())
        write = partial(to_size, source, float(preset), costs)
    else:
        write = partial(quantize_file, source, preset=preset)
    text, ways = setting.texts[model], {} if preset[0].isdigit() else {"plain": write}
    ways["imatrix"] = partial(write, imatrix=imatrix)
    for kind in setting.methods:
        method = GgufMethod(text, kind, device="cpu")  # type: ignore[arg-type]
        ways[kind] = partial(write, imatrix=None if preset == "Q4_0" else imatrix, method=method)
    with tempfile.TemporaryDirectory() as folder:
        return {way: _measured(subject(model, setting.chunks), Path(folder) / "out.gguf", ways[way]) for way in ways}


def to_size(source: Path, bits: float, costs: Mapping[str, float], out: Path, **how: Any) -> Report:
    """Of a given number of bits a weight, with the types that cost least."""
    return quantize_to_size(source, out, Target(bits), slopes=lambda *_: costs, **how).report


def _measured(model: Subject, out: Path, write: Callable[..., Report]) -> dict[str, Any]:
    begun = time.perf_counter()
    report = write(out)
    seconds = time.perf_counter() - begun
    return {"kl": model.divergence(out), "bytes": report.nbytes, "seconds": round(seconds, 2)}


def _as_stored(stored: QTensor, changed: QTensor) -> QTensor | np.ndarray[Any, Any]:
    """A tensor in another order, as floats of the type that it was stored in."""
    halves = stored.format.name == "F16"
    return dequantize(changed).astype(np.float16) if halves else changed


def ratio(orders: list[Found], way: str, base: str) -> list[float]:
    """The mean ratio of divergences over all orders, and from where to where it is with 95%."""
    logs = np.log([order[way]["kl"][0] / order[base]["kl"][0] for order in orders])
    spread = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return [float(np.exp(x)) for x in (logs.mean(), logs.mean() - spread, logs.mean() + spread)]


def row(preset: str, found: Mapping[int, Found]) -> dict[str, Any]:
    """What all orders of a preset come to."""
    orders = [found[seed] for seed in sorted(found)]
    bases = [way for way in ("plain", "imatrix") if way in orders[0]]
    methods = [way for way in orders[0] if way not in ("plain", "imatrix")]
    ratios = {f"{way} over {base}": ratio(orders, way, base) for way in methods for base in bases}
    mean_kl = {way: float(np.mean([order[way]["kl"][0] for order in orders])) for way in orders[0]}
    each = [{"order": seed, **found[seed]} for seed in sorted(found)]
    return {"preset": preset, "ratios": ratios, "kl": mean_kl, "orders": each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["demo"], help="GGUF files of floats, or demo")
    parser.add_argument("--orders", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="the first order")
    parser.add_argument("--presets", default=PRESETS)
    parser.add_argument("--methods", default="gptq,qronos")
    parser.add_argument("--chunks", type=int, default=24, help="windows of the held-out text")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the cores")
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    presets, seeds = options.presets.split(","), range(options.first, options.first + options.orders)
    others = [options.presets.replace(",", "-")] * (set(presets) != set(PRESETS.split(",")))
    rows: dict[str, dict[str, dict[int, Found]]] = {model: {} for model in options.models}
    with tempfile.TemporaryDirectory() as folder:
        texts = {model: calibration(model, Path(folder)) for model in rows}
        setting = Setting(Path(folder), texts, tuple(options.methods.split(",")), options.chunks)
        costs = [(model, None) for model in rows] if any(preset[0].isdigit() for preset in presets) else []
        first = [*costs, *((model, seed) for model in rows for seed in seeds)]
        list(results(partial(prepare, setting), first, options.jobs))
        tasks = [(model, preset, seed) for preset in presets for model in rows for seed in seeds]
        for (model, preset, seed), found in results(partial(measure, setting), tasks, options.jobs):
            rows[model].setdefault(preset, {})[seed] = found
            print(model, seed, preset, {way: x["kl"][0] for way, x in found.items()}, flush=True)
            name = "-".join(["compensation-kl", Path(model).stem, *others])
            described = results_file.described(commit=options.commit)
            how = {"model": name, "chunks": options.chunks, "jobs": options.jobs}
            each = [row(preset, rows[model][preset]) for preset in presets if preset in rows[model]]
            results_file.write(name, {**described, **how, "rows": each}, options.output)
    for model, by_preset in rows.items():
        for preset, orders in by_preset.items():
            print(model, preset, row(preset, orders)["ratios"])


if __name__ == "__main__":
    main()
