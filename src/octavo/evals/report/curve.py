"""The picture of size against quality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.evals.report.quality import Point, Quality
from octavo.evals.report.svg import ACCENT, INK, MUTED, SECOND, figure, plain_ticks, to_svg
from octavo.evals.report.tensor_labels import label

Box = tuple[float, float, float, float]

MARKERS = "o^sDvPX<>*"
"""Marks of ways to quantize, in order."""
LINES = ("", "-", "--", "-.", ":")
"""Lines of the model, which is one point, and of ways to quantize."""
LABEL = 8.0
"""Size of a point's label, in points, of which a letter takes about 0.6."""

SPOTS = ((6, 6), (6, -6), (-6, -6), (-6, 6), (0, 11), (0, -11), (6, 14), (6, -14), (-6, 14), (-6, -14))
"""Where a label may lie, in points from its own."""


def quality_picture(quality: Quality) -> str | None:
    """Bits a weight against divergence, and against perplexity below it; None for fewer than two models to compare."""
    points = [p for p in quality.points if p.role != "base"]
    base = next((p for p in quality.points if p.role == "base"), None)
    if len(points) < 2:
        return None
    charts = {"perplexity": [p.perplexity for p in points]}
    if all(p.kl for p in points):
        charts = {"KL divergence from the base, nats": [p.kl for p in points if p.kl], **charts}
    sizes = [p.bits for p in points]
    margin = 0.1 * (max(sizes) - min(sizes)) or 1.0
    with figure(2.2 * len(charts) + 0.2) as fig:
        axes = fig.subplots(len(charts), 1, squeeze=False, sharex=True).reshape(-1)
        for ax, (what, estimates) in zip(axes, charts.items(), strict=True):
            _points(ax, points, [e.value for e in estimates], [e.error for e in estimates])
            if ax is axes[0] and len(_roles(points)) > 1:
                ax.legend(loc="upper right", frameon=False, fontsize=LABEL)
            ax.set(title=what, xlim=(min(sizes) - margin, max(sizes) + 1.5 * margin))
            if what == "perplexity" and base is not None:
                ax.axhline(base.perplexity.value, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
                ax.set_title(f"perplexity (dashed: the base, {base.perplexity.value:.4f})")
            ax.margins(y=0.2)
        plain_ticks(axes[-1].xaxis)
        axes[-1].set_xlabel("bits per weight")
        fig.draw_without_rendering()  # places of points are known after drawing
        for ax, estimates in zip(axes, charts.values(), strict=True):
            _labels(ax, points, [e.value for e in estimates])
        said = "; ".join(
            f"{label(p.name, 60)}, {p.role}, at {p.bits:.2f} bits per weight {_figures(p)}" for p in points
        )
        return to_svg(fig, "quality", "Size against quality", f"{said}.")


def _figures(point: Point) -> str:
    kl = f"has a divergence of {point.kl.value:.3g} and" if point.kl else "has"
    return f"{kl} a perplexity of {point.perplexity.value:.4g}"


def _points(ax: Any, points: Sequence[Point], values: Sequence[float], errors: Sequence[float]) -> None:
    """Each way to quantize with a mark and a line of its own, the model as a diamond, each with its standard error."""
    if min(values) > 0 and max(values) > 8 * min(values):
        ax.set_yscale("log")
        ax.minorticks_off()
    order = sorted(range(len(points)), key=lambda i: points[i].bits)
    for at, role in enumerate(["model", *_roles(points)]):
        line = [i for i in order if points[i].role == role]
        bits, found = [points[i].bits for i in line], [values[i] for i in line]
        colour, marker, size = (SECOND, "D", 6) if role == "model" else (ACCENT, MARKERS[(at - 1) % len(MARKERS)], 5)
        wide = [min(errors[i], values[i] * 0.99) for i in line]
        ax.errorbar(bits, found, yerr=wide, color=colour, marker=marker, markersize=size, elinewidth=1, linestyle="",
                    label=None if role == "model" else role)
        ax.plot(bits, found, color=colour, alpha=0.35, linewidth=1, zorder=0, linestyle=LINES[at % len(LINES)])
    plain_ticks(ax.yaxis)


def _roles(points: Sequence[Point]) -> list[str]:
    """Ways to quantize, each once."""
    return list(dict.fromkeys(p.role for p in points if p.role != "model"))


def _labels(ax: Any, points: Sequence[Point], values: Sequence[float]) -> None:
    """Names beside the points, each where it meets no point and no other name."""
    scale = ax.figure.dpi / 72
    at = [
        tuple(v / scale for v in ax.transData.transform((p.bits, value)))
        for p, value in zip(points, values, strict=True)
    ]
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    inside = ax.get_window_extent()
    left, right = inside.x0 / scale, inside.x1 / scale
    for point, (x, y) in zip(points, at, strict=True):
        if "," in point.role:
            continue  # it lies above or below the same without a method
        text = label(point.name, 22)
        wide, high = 0.6 * LABEL * len(text), LABEL + 1
        boxes = {
            (dx, dy): (x + dx - (wide if dx < 0 else wide / 2 if dx == 0 else 0), y + dy - high / 2) for dx, dy in SPOTS
        }
        spots = [(offset, (bx, by, bx + wide, by + high)) for offset, (bx, by) in boxes.items()]
        within = [(o, box) for o, box in spots if box[0] >= left - 4 and box[2] <= right + 4] or spots
        (dx, dy), box = min(within, key=lambda spot: sum(_meet(spot[1], other) for other in taken))
        taken.append(box)
        ax.annotate(text, (point.bits, values[points.index(point)]), (dx, dy), textcoords="offset points", va="center",
                    ha="right" if dx < 0 else "center" if dx == 0 else "left", fontsize=LABEL,
                    color=SECOND if point.role == "model" else INK)


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
