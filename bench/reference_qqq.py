"""Compares w4a8 and w4a8-g128 with QQQ's authors' rounding, on the same turned model and tokens.

    python bench/reference_qqq.py AUTHORS [demo | MODEL.gguf] [--schemes w4a8,w4a8-g128] [--orders 1]

It writes bench/results/reference-qqq-MODEL-<date>.json. With several orders each row is of the model with its channels
in one of them, which changes nothing but what shares a group; `ratios` are geometric means over all of them.

AUTHORS is a copy of https://github.com/HandH1998/QQQ, whose QQQ/gptq/gptq.py and quant.py are run as they are, with the
settings that its scripts recommend: the model is turned and not smoothed, scales by least error, columns of large
inputs first, scales of groups fixed before. As there, all linear layers of a block are rounded at once, by what they
are given behind the rounded blocks before. Rotations are Octavo's, of one seed for both. What comes of it is measured
as a checkpoint of Octavo's, activations of 8 bits with a scale for each token.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import types
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import references
import results_file
from octavo.evals.schemes import SchemeMethod
from octavo.formats.spec import AnyArray
from octavo.huggingface.coded import Coded
from octavo.huggingface.names import checkpoint_name, is_linear
from octavo.huggingface.schemes import CheckpointScheme
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.quantizers import quantize_checkpoint
from octavo.quantizers.fold import rotate
from octavo.quantizers.job.prepared import MadeWeight, Outline, Prepared
from octavo.runtime import resolve
from scheme_methods import write_order

ZERO = 8
"""The code of 0."""
OWN = (("gptq", True), ("qqq", False), ("qqq", True), ("auto", True))
"""Octavo's methods, without and with rotation."""


@dataclass(frozen=True)
class Authors:
    """The authors' rounding as a method of `quantize_checkpoint`."""

    package: Any
    tokens: list[list[int]]
    kv: None = None
    static: bool = False

    def __call__(self, file: GGUFFile, scheme: CheckpointScheme, work: str) -> Prepared:
        turned = rotate(file)
        source = read_model(turned)
        with tempfile.TemporaryDirectory() as folder:
            path = references.write_floats(source, Path(folder) / "floats")
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        names = {checkpoint_name(name, source.architecture): name for name in turned.tensors if is_linear(name)}
        made = {}
        for at in range(source.hparams.n_layer):
            for module, (values, scales) in self._block(model, f"model.layers.{at}.", scheme.group).items():
                name = names[f"{module}.weight"]
                made[name] = MadeWeight((_coded(values, scales, name, source),), 0.0, 0.0, "authors")
        return Prepared(turned, made)

    def outline(self, file: GGUFFile, scheme: CheckpointScheme) -> Outline:
        raise NotImplementedError("nothing is said beforehand")

    def finish(self, dst: str, work: str, scheme: str) -> bool:
        return False

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
                lambda _, given, out, maker=makers[name]: maker.add_batch(given[0].data, out.data)))  # fmt: skip
        for row in self.tokens:
            model(torch.tensor([row]))
        for hook in hooks:
            hook.remove()
        found = {}
        for name, maker in makers.items():
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


def load(folder: Path) -> Any:
    """The authors' modules, without the rest of their package, which asks for an older transformers."""
    package = types.ModuleType("authors")
    package.__path__ = [str(folder / "QQQ/gptq")]
    sys.modules["authors"] = package
    torch.cuda.synchronize = lambda *given: None  # it is called whether there is a GPU or not
    for name in ("quant", "gptq"):
        setattr(package, name, importlib.import_module(f"authors.{name}"))
    return package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("authors", type=Path, help="folder with QQQ/gptq")
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--schemes", default="w4a8,w4a8-g128")
    parser.add_argument("--samples", type=int, default=16, help="windows of the calibration text")
    parser.add_argument("--chunks", type=int, default=12, help="windows of the held-out text")
    parser.add_argument("--orders", type=int, default=1, help="of channels; the first is the model's own")
    options = parser.parse_args()
    package, source, rows = load(options.authors), resolve(options.model), []
    tokens = references.calibration_tokens(source, options.samples)
    own = {"samples": options.samples, "device": "cpu"}
    files = {name: sha256((options.authors / "QQQ/gptq" / name).read_bytes()).hexdigest()
             for name in ("gptq.py", "quant.py")}  # fmt: skip
    how = {"model": Path(options.model).name, "samples": options.samples, "chunks": options.chunks, "authors": files}
    for order in range(options.orders):
        with tempfile.TemporaryDirectory() as folder:
            base = source
            if order:
                base = f"{folder}/base.gguf"
                write_order(source, Path(base), order)
            for scheme in options.schemes.split(","):
                ways: list[tuple[str, bool, Any]] = [("authors", True, Authors(package, tokens))]
                ways += [(kind, turned, SchemeMethod("demo", kind, turned, **own)) for kind, turned in OWN]
                for i, (kind, turned, method) in enumerate(ways):
                    out = Path(folder) / f"{scheme}-{i}"
                    quantize_checkpoint(base, out, scheme, method=method)
                    kl = references.kl(out, base, options.chunks)
                    rows.append({"order": order, "scheme": scheme, "method": kind, "rotate": turned, "kl": kl})
                    print(rows[-1], flush=True)
                    described = results_file.described(**references.versions("torch", "transformers"))
                    found = {**described, **how, "ratios": ratios(rows), "rows": rows}
                    results_file.write(f"reference-qqq-{Path(options.model).stem}", found)


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Divergences of our methods over the authors', of the orders that have both."""
    found: dict[tuple[str, str, bool, int], float] = {
        (row["scheme"], row["method"], row["rotate"], row["order"]): row["kl"][0] for row in rows
    }
    out: dict[str, list[float]] = {}
    for (scheme, method, turned, order), kl in found.items():
        if method != "authors":
            name = f"{scheme} {method}" + " rotated" * turned
            out.setdefault(name, []).append(np.log(kl / found[scheme, "authors", True, order]))
    return {name: float(np.exp(np.mean(logs))) for name, logs in out.items()}


if __name__ == "__main__":
    main()
