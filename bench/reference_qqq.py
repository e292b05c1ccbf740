"""Compares w4a8 and w4a8-g128 with QQQ's authors' rounding, on the same turned model and tokens.

    python bench/reference_qqq.py AUTHORS [demo | MODEL.gguf] [--schemes w4a8,w4a8-g128] [--orders 1] [--first 0]
                                  [--jobs N] [--add RESULT] [-o FOLDER]

It writes bench/results/reference-qqq-MODEL-<date>.json. With several orders each row is of the model with its channels
in one of them, which changes nothing but what shares a group; `ratios` are geometric means over all of them. With
`--jobs` each row is measured by one of N processes, which share the cores; the file is written whenever a row is done,
rows in the same order in any case. `--add` goes on with a result: what it has is not measured again.

AUTHORS is a copy of https://github.com/HandH1998/QQQ, whose QQQ/gptq/gptq.py and quant.py are run as they are, with the
settings that its scripts recommend: the model is turned and not smoothed, scales by least error, columns of large
inputs first, scales of groups fixed before. As there, all linear layers of a block are rounded at once, by what they
are given behind the rounded blocks before. Rotations are Octavo's, of one seed for both. Of experts, which their code
knows nothing of, each is linear layers of its own, given the tokens that the router sends there; theirs makes zeros of
weights that were given none, which are rounded to nearest here instead, with their scales. What comes of it is measured
as a checkpoint of Octavo's, activations of 8 bits with a scale for each token.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import references
import results_file
from jobs import results
from octavo.calibrate.fold import rotate
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.formats.spec import AnyArray
from octavo.huggingface.scheme_weight import Coded
from octavo.huggingface.schemes import CheckpointScheme
from octavo.huggingface.tensors.tensor_names import checkpoint_name, is_linear
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.quantizers import quantize_checkpoint
from octavo.quantizers.job.scheme_method import SchemeResult, SchemeWeight
from octavo.runtime import resolve
from scheme_methods import write_order
from texts import calibration

ZERO = 8
"""The code of 0."""
AUTHORS = "authors"
WAYS = ((AUTHORS, True), ("gptq", True), ("qqq", False), ("qqq", True), ("auto", True))
"""The authors' rounding and Octavo's methods, without and with rotation."""
LONGEST = ("auto", AUTHORS, "qqq", "gptq")
"""What takes longer comes before, so that processes end at about the same time."""
FILES = ("gptq.py", "quant.py")
"""Of the authors' folder QQQ/gptq."""

Row = dict[str, Any]
Task = tuple[int, str, str, bool]
"""Order, scheme, method and whether it is rotated."""


@dataclass(frozen=True)
class Authors:
    """The authors' rounding as a method of `quantize_checkpoint`."""

    package: Any
    tokens: list[list[int]]
    kv: None = None
    static: bool = False

    def __call__(self, file: GGUFFile, scheme: CheckpointScheme, work: str) -> SchemeResult:
        turned = rotate(file)
        source = read_model(turned)
        with tempfile.TemporaryDirectory() as folder:
            path = references.write_floats(source, Path(folder) / "floats")
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        model = self._experts_apart(model)
        names = {checkpoint_name(name, source.architecture): name for name in turned.tensors if is_linear(name)}
        coded: dict[str, list[Coded]] = {}
        for at in range(source.hparams.n_layer):
            for module, (values, scales) in self._block(model, f"model.layers.{at}.", scheme.group).items():
                name = names[f"{references.of_all_experts(module)}.weight"]
                coded.setdefault(name, []).append(_coded(values, scales, name, source))
        assert coded.keys() == {*names.values()}
        made = {name: SchemeWeight(tuple(all_), 0.0, 0.0, AUTHORS) for name, all_ in coded.items()}
        return SchemeResult(turned, made)

    def outline(self, file: GGUFFile, scheme: CheckpointScheme) -> GGUFFile:
        return file

    @torch.no_grad()
    def _experts_apart(self, model: Any) -> Any:
        """The model with linear layers for each expert, which computes the same."""
        row = torch.tensor([self.tokens[0]])
        wanted = model(row).logits
        found = references.experts_apart(model)(row).logits
        assert (found - wanted).abs().max() <= references.SAME * wanted.abs().max()
        return model

    @torch.no_grad()
    def _block(self, model: Any, prefix: str, group: int | None) -> dict[str, tuple[AnyArray, AnyArray]]:
        """Round the linear layers of a block, and give what they became: values [N, K] and scales [N, groups]."""
        layers = {n: m for n, m in model.named_modules() if n.startswith(prefix) and isinstance(m, torch.nn.Linear)}
        makers, hooks = {}, []
        for name, layer in layers.items():
            makers[name] = self.package.gptq.GPTQ(layer)
            makers[name].quantizer = self.package.quant.Quantizer()
            makers[name].quantizer.configure(4, perchannel=True, sym=True, mse=True, groupsize=group or -1)
            hooks.append(layer.register_forward_hook(
                lambda _, given, out, maker=makers[name]: maker.add_batch(given[0].data, out.data)))
        for row in self.tokens:
            model(torch.tensor([row]))
        for hook in hooks:
            hook.remove()
        found = {}
        for name, maker in makers.items():
            if not maker.nsamples:
                maker.H = torch.eye(maker.columns)  # else all channels count as dead, and weights become 0
            scales, *_ = maker.fasterquant(
                percdamp=0.01, groupsize=group or -1, actorder=True, static_groups=group is not None
            )
            found[name] = layers[name].weight.data.numpy().copy(), scales.numpy()
        return found


def _coded(values: AnyArray, scales: AnyArray, name: str, source: ModelSpec) -> Coded:
    """Values as codes, rows as GGUF has them."""
    codes = np.rint(values / np.repeat(scales, values.shape[1] // scales.shape[1], axis=1)) + ZERO
    hp, part = source.hparams, name.split(".")[2]
    heads = {"attn_q": hp.n_head, "attn_k": hp.n_head_kv}.get(part) if hp.rope.interleaved else None
    rows: tuple[AnyArray, ...] = (codes.astype(np.uint8), scales.astype(np.float32))
    if heads:
        halves = (x.reshape(heads, 2, len(x) // heads // 2, -1).swapaxes(1, 2).reshape(x.shape) for x in rows)
        rows = tuple(map(np.ascontiguousarray, halves))
    return Coded(rows[0], rows[1])


@cache
def load(folder: Path) -> Any:
    """The authors' modules, without the rest of their package, which asks for an older transformers."""
    package = types.ModuleType("authors")
    package.__path__ = [str(folder / "QQQ/gptq")]
    sys.modules["authors"] = package
    torch.cuda.synchronize = lambda *given: None  # it is called whether there is a GPU or not
    for name in ("quant", "gptq"):
        setattr(package, name, importlib.import_module(f"authors.{name}"))
    return package


@dataclass(frozen=True)
class Setting:
    """What all rows have in common; `folder` is what models are made in, `text` what they are calibrated with."""

    folder: Path
    authors: Path
    source: str
    text: str
    samples: int
    chunks: int

    def base(self, order: int) -> str:
        """The model with its channels in an order."""
        return str(self.folder / f"base-{order}.gguf") if order else self.source

    def method(self, kind: str, rotate: bool) -> Any:
        if kind != AUTHORS:
            return SchemeMethod(self.text, kind, rotate, samples=self.samples, device="cpu")
        tokens = references.calibration_tokens(self.source, self.text, self.samples)
        return Authors(load(self.authors), tokens)


def prepare(setting: Setting, order: int) -> None:
    """Write the model with its channels in an order."""
    if order:
        write_order(setting.source, Path(setting.base(order)), order)


def measure(setting: Setting, task: Task) -> Row:
    """A row: the divergence of a model that a method made from the model that it was given."""
    order, scheme, kind, rotate = task
    base = setting.base(order)
    with tempfile.TemporaryDirectory() as folder:
        quantize_checkpoint(base, Path(folder) / "made", scheme, method=setting.method(kind, rotate))
        kl = references.kl(Path(folder) / "made", base, setting.chunks)
    return {"order": order, "scheme": scheme, "method": kind, "rotate": rotate, "kl": kl}


def task_of(row: Row) -> Task:
    """What a row is the result of."""
    return row["order"], row["scheme"], row["method"], row["rotate"]


def sorted_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows by order, scheme and method, in whichever order they were measured."""
    return sorted(rows, key=lambda row: (row["order"], row["scheme"], WAYS.index((row["method"], row["rotate"]))))


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """Divergences of our methods over the authors', of the orders that have both."""
    found: dict[Task, float] = {task_of(row): row["kl"][0] for row in rows}
    out: dict[str, list[float]] = {}
    for (order, scheme, method, turned), kl in found.items():
        theirs = found.get((order, scheme, *WAYS[0]))
        if method != AUTHORS and theirs is not None:
            name = f"{scheme} {method}" + " rotated" * turned
            out.setdefault(name, []).append(np.log(kl / theirs))
    return {name: float(np.exp(np.mean(logs))) for name, logs in out.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("authors", type=Path, help="folder with QQQ/gptq")
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--schemes", default="w4a8,w4a8-g128")
    parser.add_argument("--samples", type=int, default=16, help="windows of the calibration text")
    parser.add_argument("--chunks", type=int, default=12, help="windows of the held-out text")
    parser.add_argument("--orders", type=int, default=1, help="of channels")
    parser.add_argument("--first", type=int, default=0, help="the first order; 0 is the model's own")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the cores")
    parser.add_argument("--add", type=Path, help="a result to go on with")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    files = {name: sha256((options.authors / "QQQ/gptq" / name).read_bytes()).hexdigest() for name in FILES}
    how = {"model": Path(options.model).name, "samples": options.samples, "chunks": options.chunks, "authors": files}
    rows, before = references.go_on(options.add, how) if options.add else ([], [])
    more: dict[str, Any] = {"before": before} if before else {}
    orders, done = range(options.first, options.first + options.orders), {task_of(row) for row in rows}
    every = [(order, scheme, *way) for order in orders for scheme in options.schemes.split(",") for way in WAYS]
    tasks = sorted((task for task in every if task not in done), key=lambda task: LONGEST.index(task[2]))
    with tempfile.TemporaryDirectory() as folder:
        text = calibration(options.model, Path(folder))
        setting = Setting(
            Path(folder), options.authors, resolve(options.model), text, options.samples, options.chunks
        )
        list(results(partial(prepare, setting), sorted({task[0] for task in tasks}), options.jobs))
        for _, row in results(partial(measure, setting), tasks, options.jobs):
            print(row, flush=True)
            rows = sorted_rows([*rows, row])
            described = results_file.described(**references.versions("torch", "transformers"))
            found = {**described, **how, **more, "ratios": ratios(rows), "rows": rows}
            results_file.write(f"reference-qqq-{Path(options.model).stem}", found, options.output)
    if missing := {*tasks} - {task_of(row) for row in rows}:
        raise SystemExit(f"not measured: {', '.join(map(str, sorted(missing)))}")


if __name__ == "__main__":
    main()
