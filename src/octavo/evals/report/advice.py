"""The tensors whose errors cost most, and what it would cost to lose less."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

from octavo.errors import QuantFormatError
from octavo.evals.report.findings import ModelFindings, TensorFindings, some_rows, trial_error
from octavo.formats import BlockFormat, by_name
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.quantizers.mix.mixing import Choices, is_kept

MOST = 8
"""Tensors that advice is given on."""

LARGER = ("Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16")
LARGER_OF_32 = ("Q4_0", "Q5_0", "Q8_0", "F16")
"""Types to go to, of rows that are whole blocks of 256, and of others."""


@dataclass(frozen=True)
class Advice:
    """A tensor that loses much.

    type   that would at least halve its error, or bring it nearest to that; None where there is no larger one
    error  with that type, None where there is nothing to try it on
    bytes  that it takes more
    """

    tensor: TensorFindings
    type: str | None = None
    error: float | None = None
    bytes: int = 0


def advise(model: ModelFindings, most: int = MOST) -> list[Advice]:
    """The `most` matrices whose errors cost most, and a larger type for each, tried on a sample of its rows."""
    worst = [t for t in model.matrices if t.error and not is_kept(t.name, t.shape, Choices())]
    worst = sorted(worst, key=lambda t: -model.cost(t))[:most]
    with open_model_file(model.base) if model.base else nullcontext() as base:
        return [_larger(tensor, base) for tensor in worst]


def _larger(tensor: TensorFindings, base: GGUFFile | None) -> Advice:
    own = _format(tensor.error_type)
    if own is None:
        return Advice(tensor)
    larger = [by_name(name) for name in (LARGER_OF_32 if tensor.shape[-1] % 256 else LARGER)]
    options = [fmt for fmt in larger if fmt.bits_per_weight > own.bits_per_weight]
    if base is None:
        options = [fmt for fmt in options if fmt.bits > own.bits]
        return _advice(tensor, options[0]) if options else Advice(tensor)
    rows = some_rows(base.tensor(tensor.name, copy=True))
    best = Advice(tensor)
    for fmt in options:
        error = trial_error(rows, fmt, None)
        if error is None or error >= (best.error or tensor.error or 0):
            continue
        best = _advice(tensor, fmt, error)
        if error <= (tensor.error or 0) / 2:
            break
    return best


def _advice(tensor: TensorFindings, fmt: BlockFormat, error: float | None = None) -> Advice:
    now = by_name(tensor.error_type).bits_per_weight if tensor.error_type != tensor.type else tensor.bits
    return Advice(tensor, fmt.name, error, round(tensor.size * (fmt.bits_per_weight - now) / 8))


def _format(kind: str) -> BlockFormat | None:
    """The format of that name, None for a type that the table has no row for."""
    try:
        return by_name(kind)
    except QuantFormatError:
        return None


def option(advice: Advice, names: Iterable[str]) -> str:
    """The option of `octavo quantize` that follows it, as a shell takes it; of the weights in `names` it means one."""
    name = advice.tensor.name
    short = re.escape(name.removesuffix(".weight"))
    weights = [n for n in names if n.endswith("weight")]  # others are never quantized
    hits = [n for n in weights if re.search(short, n, re.IGNORECASE)]
    pattern = short if hits == [name] else f"^{re.escape(name)}$"
    return f"--tensor-type {shlex.quote(f'{pattern}={advice.type}')}"


def command(model: ModelFindings, advice: Iterable[Advice], text: str | None = None) -> str | None:
    """The command that makes the model anew, as large as it is with all of the advice.

    Types are left to `--target-bpw`, which weighs all tensors against one another; with a `text` it measures what they
    cost. None where there is no base that a model can be made of, or nothing to do.
    """
    more = sum(a.bytes for a in advice if a.type)
    if not more or not model.base or os.path.isdir(model.base):
        return None
    nbytes = model.nbytes
    if model.basis == "trial":
        nbytes = round(sum(t.size * _trial_bits(t) for t in model.tensors) / 8)
    bits = math.ceil(800 * (nbytes + more) / model.size) / 100
    target = f"{os.path.splitext(os.path.basename(model.path))[0]}-better.gguf"
    words = ["octavo", "quantize", model.base, target, "--target-bpw", f"{bits:g}"]
    for name, value in (("--text", text), ("--imatrix", model.imatrix)):
        words += [name, value] if value else []
    return shlex.join(words)


def _trial_bits(tensor: TensorFindings) -> float:
    fmt = _format(tensor.error_type)
    return tensor.bits if fmt is None or tensor.error_type == tensor.type else fmt.bits_per_weight
