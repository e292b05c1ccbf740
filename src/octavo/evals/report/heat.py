"""The heat maps: errors and sensitivities by layer and kind of tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from octavo.evals.report.findings import ModelFindings, TensorFindings
from octavo.evals.report.svg import ACCENT, INK, MUTED, WIDTH, figure, to_svg
from octavo.evals.report.tensor_labels import in_flow, label

MOST_ROWS, MOST_KINDS = 96, 10
FAINT, STRONG = 0.06, 0.8
"""Opacity of no error and of the largest one."""


class Cell(NamedTuple):
    """A rectangle: row and column, how many columns wide, and the tensor with the largest error in it."""

    row: int
    column: int
    width: int
    tensor: TensorFindings


class HeatMap(NamedTuple):
    """Rows and columns by their labels, and what lies in them. `left_out` kinds of tensors had no place."""

    rows: list[str]
    columns: list[str]
    cells: list[Cell]
    left_out: int


def grid(model: ModelFindings) -> HeatMap:
    """A row for each layer (for several, where there are more than `MOST_ROWS`) and one for each tensor in no layer."""
    known = [t for t in model.matrices if t.error is not None]
    within = [t for t in known if t.place.layer is not None]
    alone = sorted((t for t in known if t.place.layer is None), key=lambda t: in_flow(t.place.kind))[:MOST_KINDS]
    nbytes: dict[str, int] = {}
    for t in within:
        nbytes[t.place.kind] = nbytes.get(t.place.kind, 0) + t.nbytes
    kept = set(sorted(nbytes, key=lambda kind: -nbytes[kind])[:MOST_KINDS])
    kinds = sorted((kind for kind in nbytes if kind in kept), key=in_flow)
    layers = sorted({t.place.layer for t in within if t.place.layer is not None})
    share = max(1, -(-len(layers) // MOST_ROWS))
    groups = [layers[i : i + share] for i in range(0, len(layers), share)]
    row_of = {layer: i for i, group in enumerate(groups) for layer in group}
    worst: dict[tuple[int, int], TensorFindings] = {}
    for t in within:
        if t.place.kind in kept and t.place.layer is not None:
            at = row_of[t.place.layer], kinds.index(t.place.kind)
            if at not in worst or (t.error or 0) > (worst[at].error or 0):
                worst[at] = t
    cells = [Cell(row, column, 1, t) for (row, column), t in sorted(worst.items(), key=lambda item: item[0])]
    cells += [Cell(len(groups) + i, 0, max(1, len(kinds)), t) for i, t in enumerate(alone)]
    rows = [str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups]
    return HeatMap(rows + [label(t.place.kind, 14) for t in alone], kinds, cells, len(nbytes) - len(kinds))


def error_map(found: HeatMap) -> str:
    """The picture of errors, in percent."""
    worst = max(found.cells, key=lambda c: c.tensor.error or 0).tensor
    about = "Relative errors in percent, a row for each layer. The largest is "
    about += f"{100 * (worst.error or 0):.3g} %, of {worst.name}."
    return _heat_map(
        found, "heat", "Relative error by layer and kind of tensor", about,
        lambda t: 100 * (t.error or 0), lambda t: f"{t.error_type}, {100 * (t.error or 0):.4g} %",
    )


def sensitivity_map(model: ModelFindings, found: HeatMap) -> str:
    """The picture of sensitivities, in percent of the largest."""
    most = max(model.sensitivity.values(), default=0) or 1.0

    def value(tensor: TensorFindings) -> float:
        return 100 * model.sensitivity[tensor.name] / most

    about = "Sensitivities in percent of the largest, a row for each layer."
    title = "Sensitivity by layer and kind of tensor"
    return _heat_map(found, "sensitivity", title, about, value, lambda t: f"{value(t):.3g} % of the largest")


def _heat_map(
    found: HeatMap, key: str, title: str, about: str, value: Callable[[TensorFindings], float],
    tip: Callable[[TensorFindings], str],
) -> str:
    """A picture. Opacity grows with the value, so the ground shows where there is none, in light and dark alike."""
    from matplotlib.patches import Rectangle

    top = max((value(c.tensor) for c in found.cells), default=0) or 1.0
    columns, rows = max(1, len(found.columns)), len(found.rows)
    height = min(0.21, 14 / rows)  # inches of a row
    names = [label(kind, 14) for kind in found.columns]
    tips = {}
    with figure(height * rows + 0.15 + 0.068 * max(map(len, names), default=0)) as fig:
        ax = fig.subplots()
        for i, (row, column, width, tensor) in enumerate(found.cells):
            alpha = FAINT + (STRONG - FAINT) * min(1.0, value(tensor) / top)
            box = Rectangle((column + 0.03, row + 0.05), width - 0.06, 0.9, facecolor=ACCENT, alpha=alpha, linewidth=0)
            box.set_gid(f"{key}-cell{i}")
            tips[f"{key}-cell{i}"] = f"{tensor.name}: {tip(tensor)}"
            ax.add_patch(box)
            size = min(7.5, height * 72 * 0.62, WIDTH * 72 * 0.8 / columns / 2.6)
            shown = f"{value(tensor):#.3g}".rstrip(".")
            ax.text(column + width / 2, row + 0.52, shown, ha="center", va="center", fontsize=size, color=INK)
        ax.set(xlim=(0, columns), ylim=(rows, 0))
        ax.set_yticks([i + 0.5 for i in range(rows)], found.rows, fontsize=min(8.0, height * 72 * 0.62))
        ax.set_xticks([i + 0.5 for i in range(len(names))], names, rotation=40, ha="left", rotation_mode="anchor")
        ax.xaxis.tick_top()
        ax.tick_params(length=0, pad=2)
        ax.grid(False)
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.annotate(
            "layer", (0, 1), (-4, 5), xycoords="axes fraction", textcoords="offset points", ha="right", color=MUTED
        )
        return to_svg(fig, key, title, about, tips)
