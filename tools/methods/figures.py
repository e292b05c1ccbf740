"""The pictures of docs/calibration.md: numbers of each, by the package's own functions, and how they are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from octavo.calibrate.fold.rotation import RandomRotation
from octavo.calibrate.methods.channel_scales import (
    FoldProducts,
    Rounding,
    awq,
    qqq,
    rptq,
    smoothquant,
    tensor_int8,
    tokens_int8,
)
from octavo.errors import UsageError
from octavo.formats import rows
from octavo.formats.spec import F32

Array = np.ndarray[Any, Any]
Numbers = dict[str, Any]
"""What a picture shows: lists of numbers and words, to three digits."""
RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
CHANNELS, OUTLIERS = 64, (11, 40)
INK, MUTED, FIRST, SECOND = "#7a8290", "#a8b0bc", "#2f7fd8", "#e0762b"
"""Colours that can be seen on white and on black."""


def rows_of_weights(bits: int) -> Rounding:
    """Weights [N, K] with symmetric codes of `bits` and a scale for each row."""
    return lambda w: _symmetric(w, 2 ** (bits - 1) - 1)


def groups_of_weights(bits: int, group: int, *, zero: bool = True) -> Rounding:
    """Weights [N, K] with a scale for each `group` of a row, and a zero point (AWQ) or codes around zero.

    The zero point is a code: the least value of a group of only positive ones is rounded too. Raises UsageError, when
    it is used, for a K that is not a multiple of the group.
    """

    def rounded(w: F32) -> F32:
        n, k = w.shape
        if k % group:
            raise UsageError(f"group is {group} for rows of {k} values (allowed: what divides them)")
        parts = w.reshape(n, k // group, group)
        return (_with_zero(parts, bits) if zero else _symmetric(parts, 2 ** (bits - 1) - 1)).reshape(n, k)

    return rounded


def _symmetric(values: F32, top: int) -> F32:
    codes, scales = rows.symmetric(values, top)
    return codes * scales[..., None]


def _with_zero(groups: F32, bits: int) -> F32:
    """scale = (max - min) / top, zero = round(-min / scale) as a code (arXiv 2306.00978's reference)."""
    top = np.float32(2**bits - 1)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    scale = np.maximum(high - low, np.float32(1e-5)) / top
    zero = np.clip(-np.rint(low / scale), 0, top)
    out: F32 = (np.clip(np.rint(groups / scale) + zero, 0, top) - zero) * scale
    return out


def _digits(values: Any) -> Any:
    return [float(f"{x:.3g}") for x in np.asarray(values).reshape(-1)]


def _pair(weight: Any, activation: Any) -> FoldProducts:
    """A product whose input has two channels that are far larger than the others."""
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(0.0, 0.5, CHANNELS)
    sizes[list(OUTLIERS)] *= (40.0, 15.0)
    inputs = (rng.standard_normal((256, CHANNELS)) * sizes).astype(np.float32)
    weights = rng.standard_normal((48, CHANNELS)).astype(np.float32)
    return FoldProducts((weights,), inputs, weight, activation)


def gptq_numbers() -> Numbers:
    """Two weights between levels, and the errors of all levels near them under a Hessian."""
    w, h = np.array([0.4, 0.35]), np.array([[1.0, 0.85], [0.85, 1.0]])
    second = w[1] + h[0, 1] / h[1, 1] * (w[0] - np.rint(w[0]))
    in_turn = np.array([np.rint(w[0]), np.rint(second)])
    levels = np.array([[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)], float)
    errors = [float((w - p) @ h @ (w - p)) for p in levels]
    found = {"weights": w, "levels": levels, "errors": errors, "nearest": np.rint(w), "in_turn": in_turn}
    return {name: _digits(values) for name, values in found.items()}


def draw_gptq(ax: Any, n: Numbers) -> None:
    w, levels = np.array(n["weights"]), np.reshape(n["levels"], (-1, 2))
    h = np.array([[1.0, 0.85], [0.85, 1.0]])
    x, y = np.meshgrid(np.linspace(-1.2, 1.4, 90), np.linspace(-1.2, 1.4, 90))
    e = np.stack([x - w[0], y - w[1]], axis=-1)
    ax.contour(x, y, np.einsum("abi,ij,abj->ab", e, h, e), levels=[0.05, 0.2, 0.5, 1.0], colors=MUTED, linewidths=0.8)
    ax.plot(levels[:, 0], levels[:, 1], "o", color=INK, markersize=3)
    for (a, b), error in zip(levels, n["errors"], strict=True):
        ax.annotate(f"{error:.2f}", (a, b), (3, 4), textcoords="offset points", fontsize=7, color=INK)
    ax.plot(*w, "x", color=INK)
    ax.plot(*n["nearest"], "s", color=SECOND, markersize=9, fillstyle="none", label="nearest to each weight")
    ax.plot(*n["in_turn"], "o", color=FIRST, markersize=11, fillstyle="none", label="in turn")
    ax.set(xlabel="first weight's level", ylabel="second weight's level")
    ax.legend(fontsize=7, frameon=False, labelcolor=INK)


def qronos_numbers() -> Numbers:
    """One channel as the original model gives it, and as the quantized one does."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(40)
    y = 0.7 * x + 0.25 * rng.standard_normal(40)
    return {"x": _digits(x), "y": _digits(y), "slope": _digits((x @ y) / (y @ y))}


def draw_qronos(ax: Any, n: Numbers) -> None:
    ends = np.array([-2.0, 2.0])
    ax.plot(n["y"], n["x"], "o", color=INK, markersize=3)
    ax.plot(ends, ends, "--", color=SECOND, label="W x~")
    ax.plot(ends, n["slope"][0] * ends, color=FIRST, label="W E[x x~] / E[x~ x~] x~")
    ax.set(xlabel="x~, given by the quantized model", ylabel="W x, wished for (W = 1)")
    ax.legend(fontsize=7, frameon=False, labelcolor=INK)


def _scaled(pair: FoldProducts, method: Callable[[FoldProducts], Any]) -> Numbers:
    found = method(pair)
    after = pair.largest / found.scales
    return {
        "before": _digits(pair.largest), "after": _digits(after), "scales": _digits(found.scales),
        "setting": _digits(found.setting or 0.0), "gain": _digits(found.after / found.before),
    }


def smoothquant_numbers() -> Numbers:
    return _scaled(_pair(rows_of_weights(8), tokens_int8), smoothquant)


def awq_numbers() -> Numbers:
    return _scaled(_pair(groups_of_weights(4, 32), lambda x: x), awq)


def qqq_numbers() -> Numbers:
    return _scaled(_pair(rows_of_weights(4), tokens_int8), qqq)


def rptq_numbers() -> Numbers:
    return _scaled(_pair(rows_of_weights(8), tensor_int8), rptq)


def draw_scaled(ax: Any, n: Numbers) -> None:
    at = np.arange(CHANNELS)
    ax.bar(at - 0.2, n["before"], 0.4, color=SECOND, label="max|x| before")
    ax.bar(at + 0.2, n["after"], 0.4, color=FIRST, label="and after")
    ax.plot(at, n["scales"], ".", color=INK, markersize=4, zorder=3, label="s")
    ax.set(xlabel="channel", yscale="log", title=f"error {n['gain'][0]:.2f} times, setting {n['setting'][0]:g}")
    ax.legend(fontsize=7, frameon=False, labelcolor=INK, ncols=3)


def rotation_numbers() -> Numbers:
    """The same input, each token times Q."""
    inputs = _pair(rows_of_weights(8), tokens_int8).inputs.astype(np.float64)
    turned = RandomRotation.random(CHANNELS, np.random.default_rng(2)).turn(inputs)
    return {"before": _digits(np.abs(inputs).max(axis=0)), "after": _digits(np.abs(turned).max(axis=0))}


def draw_rotation(ax: Any, n: Numbers) -> None:
    at = np.arange(CHANNELS)
    ax.bar(at - 0.2, n["before"], 0.4, color=SECOND, label="max|x|")
    ax.bar(at + 0.2, n["after"], 0.4, color=FIRST, label="max|x Q|")
    ax.set(xlabel="channel", yscale="log")
    ax.legend(fontsize=7, frameon=False, labelcolor=INK)


def size_numbers() -> Numbers:
    """Divergence by preset and way to quantize, of the newest result file of each model."""
    newest = {path.name[:-16]: path for path in sorted(RESULTS.glob("compensation-kl-*-*.json"))}
    found = {}
    for name, path in newest.items():
        rows = [row for row in json.loads(path.read_text())["rows"] if "plain" in row["kl"]]
        for way in rows[0]["kl"] if rows else ():
            sizes = [np.mean([order[way]["bytes"] for order in row["orders"]]) for row in rows]
            values = [[size, row["kl"][way]] for size, row in zip(sizes, rows, strict=True)]
            found.setdefault(name.removeprefix("compensation-kl-"), {})[way] = _digits(values)
    return found


def draw_size(ax: Any, n: Numbers) -> None:
    styles = {"plain": (MUTED, "s"), "imatrix": (SECOND, "^"), "gptq": (FIRST, "o"), "qronos": (INK, "v")}
    for (model, ways), line in zip(n.items(), ("-", "--", ":", "-."), strict=False):
        for way, values in ways.items():
            points = sorted(np.reshape(values, (-1, 2)).tolist())
            colour, marker = styles[way]
            megabytes, kl = zip(*((nbytes / 1e6, value) for nbytes, value in points), strict=True)
            label = way if line == "-" else None
            ax.plot(megabytes, kl, marker, linestyle=line, color=colour, markersize=4, linewidth=0.8, label=label)
        ax.plot([], [], color=INK, linestyle=line, linewidth=0.8, label=model)
    ax.set(xlabel="megabytes of all tensors", ylabel="KL divergence from the original", yscale="log")
    ax.legend(fontsize=7, frameon=False, labelcolor=INK, ncols=2)


FIGURES: dict[str, tuple[Callable[[], Numbers], Callable[[Any, Numbers], None]]] = {
    "gptq": (gptq_numbers, draw_gptq),
    "qronos": (qronos_numbers, draw_qronos),
    "smoothquant": (smoothquant_numbers, draw_scaled),
    "awq": (awq_numbers, draw_scaled),
    "qqq": (qqq_numbers, draw_scaled),
    "rptq": (rptq_numbers, draw_scaled),
    "rotation": (rotation_numbers, draw_rotation),
    "size": (size_numbers, draw_size),
}
"""By the end of their files' names."""
