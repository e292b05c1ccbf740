"""Compares codes with those of GPTQ's authors, on the same weights, Hessian and grid.

    python bench/reference_codes.py AUTHORS [--layers 0,5,9] [--samples 16]

It writes bench/results/reference-codes-<date>.json.

AUTHORS is a copy of https://github.com/IST-DASLab/gptq, whose gptq.py and quant.py are run as they are. Weights and
Hessians are the demo model's. Levels are the authors' own for 4 bits, symmetric: of each row, or of each 128 weights of
one with scales that stay where they are (`static_groups`). Octavo's sweep is run with the same levels and nothing that
comes after it. Errors are tr(E H E^T) over tr(W H W^T).
"""

from __future__ import annotations

import argparse
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

import references
import results_file
from octavo.backends import select
from octavo.calibrate.hessian import Order, factorize
from octavo.calibrate.methods.gptq.gptq_quantize import DAMP
from octavo.calibrate.methods.gptq.gptq_schemes import gptq_row
from octavo.calibrate.methods.gptq.sweep import sweep
from octavo.calibrate.runner import Layerwise
from octavo.calibrate.schemes.scheme_method import samples_of
from octavo.formats import Planes
from octavo.formats.group import row_named
from octavo.huggingface.schemes import checkpoint_scheme
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import resolve

KINDS = ("attn_q", "attn_output", "ffn_up", "ffn_down")
GROUPS = {"channel": None, "g128": 128}
ZERO = 8
"""The code of 0."""

Array = np.ndarray[Any, Any]


def authors_codes(weight: Array, hessian: Array, size: int | None, *, act: bool) -> tuple[Array, Array]:
    """Codes [N, K] and scales [N, K / G] of the authors' implementation."""
    import gptq
    import quant

    torch.cuda.synchronize = lambda *given: None  # it is called whether there is a GPU or not
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = torch.from_numpy(weight.copy())
    made = gptq.GPTQ(layer)
    made.H = torch.from_numpy(hessian.astype(np.float32))
    made.quantizer = quant.Quantizer()
    made.quantizer.configure(4, perchannel=True, sym=True)
    scales = []
    for i in range(0, weight.shape[1], size or weight.shape[1]):
        made.quantizer.find_params(torch.from_numpy(weight[:, i : i + (size or weight.shape[1])]), weight=True)
        scales.append(made.quantizer.scale.numpy().copy())
    made.quantizer.find_params(torch.from_numpy(weight), weight=True)
    made.fasterquant(percdamp=DAMP, groupsize=size or -1, actorder=act, static_groups=size is not None)
    steps = np.concatenate(scales, axis=1)
    values = layer.weight.data.numpy()
    return np.rint(values / spread(steps, weight)).astype(np.int64) + ZERO, steps


def own_codes(weight: Array, hessian: Array, scales: Array, size: int | None, order: Order) -> Array:
    """Codes of Octavo's sweep with these scales."""
    fmt = (
        gptq_row(checkpoint_scheme("w4a16"), weight.shape[1])
        if size is None
        else row_named(f"GROUP4_{size}_F32")
    )
    assert fmt is not None
    nearest = np.clip(np.rint(weight / spread(scales, weight)) + ZERO, 0, 15).astype(np.uint8)
    start = Planes(nearest, d=np.ascontiguousarray(scales, np.float32))
    found = sweep(weight, start, fmt, factorize(hessian, order, DAMP), rounds=0, threads=1)
    return found.planes.q.astype(np.int64)


def spread(scales: Array, weight: Array) -> Array:
    """Scales [N, K / G] as one for each weight."""
    return np.repeat(scales, weight.shape[1] // scales.shape[1], axis=1)


def loss(codes: Array, scales: Array, weight: Array, hessian: Array) -> float:
    """What the product loses, over what it gives."""
    off = (codes - ZERO) * spread(scales, weight) - weight
    return float(np.einsum("nk,nk->", off @ hessian, off) / np.einsum("nk,nk->", weight @ hessian, weight))


def compared(name: str, weight: Array, hessian: Array) -> list[dict[str, Any]]:
    """A matrix, with levels of rows and of groups, columns as they lie and those of large inputs first."""
    rows = []
    for grid, size in GROUPS.items():
        for order in ("natural", "act"):
            theirs, scales = authors_codes(weight, hessian, size, act=order == "act")
            mine = own_codes(weight, hessian, scales, size, order)
            nearest = np.clip(np.rint(weight / spread(scales, weight)) + ZERO, 0, 15)
            losses = {
                author: loss(codes, scales, weight, hessian)
                for author, codes in (("nearest", nearest), ("authors", theirs), ("octavo", mine))
            }
            equal = float((theirs == mine).mean())
            rows.append({"tensor": name, "grid": grid, "order": order, "codes": mine.size, "equal": equal, **losses})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("authors", type=Path, help="folder with gptq.py")
    parser.add_argument("--layers", default="0,5,9")
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    sys.path.insert(0, str(options.authors))
    rows = []
    with GGUFFile.open(resolve("demo")) as file:
        samples = samples_of(file, "demo", options.samples, references.CONTEXT, references.CONTEXT)
        names = {f"blk.{layer}.{kind}.weight" for layer in options.layers.split(",") for kind in KINDS}
        for stage in Layerwise(read_model(file), select("cpu"), samples).run():
            for given in stage.inputs:
                for name in names.intersection(given.names):
                    rows += compared(name, stage.weight(name), np.asarray(given.hessian().matrix(), np.float64))
    least, codes = min(row["equal"] for row in rows), sum(row["codes"] for row in rows)
    equal = sum(row["equal"] * row["codes"] for row in rows) / codes
    files = {name: sha256((options.authors / name).read_bytes()).hexdigest() for name in ("gptq.py", "quant.py")}
    packages = references.versions("torch", "numpy")
    results_file.write(
        "reference-codes",
        {**results_file.described(**packages), "authors": files, "equal": equal, "least": least, "rows": rows},
    )
    print(f"{100 * equal:.4f} % of {codes:,} codes are equal, at least {100 * least:.4f} % of a matrix")


if __name__ == "__main__":
    main()
