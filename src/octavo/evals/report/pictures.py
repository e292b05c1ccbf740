"""Pictures by matplotlib as SVG within a page: colours from its style sheet, real text, the same bytes each time.

Colours are drawn as markers, which then become names of the page's colours, so one picture serves light and dark.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from octavo.evals.report.cells import text as safe
from octavo.evals.report.findings import EDGES, I64, CodeSteps, ModelFindings, TensorFindings, by_kind, largest
from octavo.evals.report.quality import Quality
from octavo.evals.report.tensor_labels import in_flow, label

T = TypeVar("T")

INK, MUTED, GRID, ACCENT, SECOND = "#010101", "#020202", "#030303", "#040404", "#050505"
PAGE = {
    INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)", ACCENT: "var(--accent)", SECOND: "var(--second)",
}
WIDTH = 4.9
"""Inches of a figure: narrow, so that its text can be read where a phone shrinks it."""
MOST_PANELS, MOST_ROWS, MOST_KINDS = 12, 96, 10
FAR = 8
"""Times the least value from which an axis is logarithmic."""
FAINT, STRONG = 0.06, 0.8
"""Opacity of no error and of the largest one."""

STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "octavo", "text.parse_math": False, "path.simplify": False,
    "font.size": 8.0, "font.family": "DejaVu Sans", "axes.titlesize": 9.0, "axes.labelsize": 9.0,
    "figure.labelsize": 9.0, "axes.titlelocation": "left", "axes.axisbelow": True, "lines.linewidth": 1.2,
    "text.color": INK, "axes.labelcolor": MUTED, "axes.titlecolor": INK, "xtick.color": GRID, "ytick.color": GRID,
    "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED, "axes.edgecolor": GRID, "grid.color": GRID,
    "grid.linewidth": 0.6, "axes.grid": True, "axes.spines.top": False, "axes.spines.right": False,
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none", "legend.frameon": False,
    "axes.formatter.useoffset": False, "axes.formatter.limits": (-9, 9),
}


@contextmanager
def figure(height: float) -> Iterator[Any]:
    """An empty figure of `WIDTH` by `height` inches in the report's style. What is drawn in the block has the style."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own style may not fit the page
        parameters: Any = matplotlib.rcParams
        parameters.update(STYLE)
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def to_svg(fig: Any, key: str, title: str, description: str, tips: Mapping[str, str] | None = None) -> str:
    """The figure as an <svg> element.

    key    begins its ids, so that they are its own within the page
    tips   tool tips, by the gid of what they belong to
    """
    out = io.StringIO()
    fig.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    head, body = out.getvalue().partition("<svg")[2].split(">", 1)
    box = re.findall(r'viewBox="[^"]*"', head)[0]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="|url\(#|href="#', rf"\g<0>{key}-", body)
    for marker, colour in PAGE.items():
        body = body.replace(marker, colour)
    body = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", body)
    for gid, tip in (tips or {}).items():
        body = body.replace(f'<g id="{key}-{gid}">', f'<g id="{key}-{gid}"><title>{safe(tip)}</title>', 1)
    names = f'<title id="{key}-title">{safe(title)}</title><desc id="{key}-desc">{safe(description, 2000)}</desc>'
    labels = f'role="img" aria-labelledby="{key}-title {key}-desc"'
    return f'<svg class="picture" {box} {labels} xmlns="http://www.w3.org/2000/svg">{names}{body}'.strip()


def small_multiples(
    key: str, title: str, about: str, found: Mapping[str, T], draw: Callable[[Any, T], object], x: str, y: str, *,
    height: float = 1.2, shared: bool = False,
) -> str:
    """Panels by name, two in a row, each `height` inches high.

    x, y    what the axes are, said once for all
    shared  all axes go from and to the same values
    """
    found = dict(islice(found.items(), MOST_PANELS))
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    with figure(rows * height + 0.2) as fig:
        axes = fig.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared).reshape(-1)
        for ax in axes[len(found) :]:
            ax.remove()
        for ax, (name, values) in zip(axes, found.items(), strict=False):
            ax.set_title(label(name, 30), fontsize=8)
            draw(ax, values)
        for ax in axes[max(0, len(found) - columns) : len(found)]:
            ax.tick_params(labelbottom=True)  # also where the place below is empty
        fig.supxlabel(x, color=MUTED)
        fig.supylabel(y, color=MUTED)
        names = ", ".join(label(name, 60) for name in found)
        return to_svg(fig, key, title, f"{about}: {names}.")


def scale(ax: Any, values: Sequence[float], room: float = 1.25, *, from_0: bool = True) -> None:
    """A logarithmic axis, with labels that are round, where values lie far apart; `room` is beyond them."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    above = [v for v in values if 0 < v < math.inf] or [1.0]
    low, high = min(above), max(above)
    if high <= FAR * low:
        if from_0:
            ax.set_ylim(0, room * high)
        ax.locator_params(axis="y", nbins=4)
        return
    ax.set(yscale="log", ylim=(low / room, high * room))
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=6))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


class LayerPair(NamedTuple):
    """Two numbers of a layer: before and after, or the least and the largest."""

    layer: int
    low: float
    high: float


Lines = Mapping[str, Sequence[LayerPair]]
"""By kind, layers in order."""


def by_layer(
    key: str, title: str, about: str, lines: Mapping[str, Sequence[tuple[float, ...]]],
    draw: Callable[..., object], y: str, *, shared: bool = False,
) -> str:
    """A panel for each kind: `draw` is given the axes, layers, and what there is of each layer."""

    def panel(ax: Any, rows: Sequence[tuple[float, ...]]) -> None:
        layers, *columns = zip(*rows, strict=True)
        scale(ax, [v for some in (lines.values() if shared else [rows]) for row in some for v in row[1:]])
        draw(ax, layers, *(np.where(np.isfinite(c), c, np.nan) for c in columns))
        ax.xaxis.get_major_locator().set_params(integer=True, nbins=6)

    return small_multiples(key, title, about, lines, panel, "layer", y, shared=shared)


def _before_and_after(ax: Any, layers: Sequence[int], before: Any, after: Any) -> None:
    ax.plot(layers, before, "o--", color=SECOND, markersize=3, markerfacecolor="none")
    ax.plot(layers, after, "o-", color=ACCENT, markersize=3)


def _span(ax: Any, layers: Sequence[int], low: Any, high: Any) -> None:
    ax.axhline(1, color=MUTED, linestyle=":")
    ax.vlines(layers, low, high, color=ACCENT, linewidth=3)


def _band(ax: Any, layers: Sequence[int], low: Any, median: Any, high: Any) -> None:
    ax.fill_between(layers, low, high, color=ACCENT, alpha=0.25)
    ax.plot(layers, median, "o-", color=ACCENT, markersize=3)


def errors_picture(lines: Lines) -> str:
    """Errors before and after, in percent."""
    about = "Errors of products by layer, with nearest codes and as a method made them, in percent"
    title = "Errors of products before and after, by layer"
    return by_layer("made", title, about, lines, _before_and_after, "error, %")


def peaks_picture(lines: Lines) -> str:
    """How far the largest channel of inputs stands out, before and after."""
    about = "The largest channel of inputs over the median one by layer, before and after"
    return by_layer("peaks", "Channels that stand out, by layer", about, lines, _before_and_after, "largest / median")


def spans_picture(lines: Lines) -> str:
    """From where to where scales go."""
    about = "The least and the largest scale of channels by layer"
    return by_layer("spans", "Scales of channels, by layer", about, lines, _span, "scale")


def scales_picture(steps: Mapping[str, Mapping[int, CodeSteps]]) -> str:
    """By kind and layer: the median step, and between which values nine of ten lie."""
    lines = {kind: [(at, s.low, s.median, s.high) for at, s in sorted(of.items())] for kind, of in steps.items()}
    about = "The distance between neighbouring codes by layer: the median, and a band that nine of ten groups lie in"
    title = "How far codes are apart, by layer"
    return by_layer("scales", title, about, lines, _band, "step between codes", shared=True)


def weights_picture(counts: Mapping[str, I64]) -> str:
    """Histograms by kind of tensor, counts over `EDGES`, beside the normal distribution."""
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    normal = np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi)

    def histogram(ax: Any, found: I64) -> None:
        scale(ax, (1e-6, 1))
        density = found / max(1, found.sum()) / np.diff(EDGES)
        ax.stairs(density, EDGES, baseline=1e-9, fill=True, color=ACCENT, alpha=0.5)
        ax.plot(middle, normal, color=MUTED, linestyle="--")
        ax.set(xlim=(-8, 8), ylim=(1e-6, 2), xticks=(-6, -3, 0, 3, 6), yticks=(1e-6, 1e-4, 1e-2, 1))

    about = "Histograms of weights on a logarithmic scale; dashed: a normal distribution"
    title, x = "How weights lie, by kind of tensor", "weight / root mean square"
    return small_multiples("weights", title, about, counts, histogram, x, "density", shared=True)


def codes_picture(codes: Mapping[str, I64]) -> str:
    """How often each code of each type is used; the dotted line is even use."""

    def bars(ax: Any, counts: I64) -> None:
        ax.bar(np.arange(len(counts)), 100 * counts / max(1, counts.sum()), width=0.82, color=ACCENT, alpha=0.75)
        ax.axhline(100 / len(counts), color=MUTED, linestyle=":")
        ax.set(xlim=(-0.5, len(counts) - 0.5))
        ax.set_xticks([*np.linspace(0, len(counts), 5)[:-1].round().tolist(), len(counts) - 1])
        ax.locator_params(axis="y", nbins=4)
        ax.grid(False, axis="x")

    titled = {f"{kind}: {entropy(c):.2f} of {math.log2(len(c)):g} bits": c for kind, c in codes.items()}
    about = "How often each code is used, and how many bits it carries"
    return small_multiples("codes", "How often each code is used, by type", about, titled, bars, "code", "share, %")


def entropy(counts: I64) -> float:
    """Bits that a code carries if each came as often as it did here, without its neighbours."""
    share = counts[counts > 0] / max(1, counts.sum())
    return float(-(share * np.log2(share)).sum()) + 0.0


def quality_picture(quality: Quality) -> str | None:
    """Bits a weight against divergence, and against perplexity below it; None for fewer than two models to compare."""
    points = sorted((p for p in quality.points if p.role != "base"), key=lambda p: p.bits)
    base = next((p for p in quality.points if p.role == "base"), None)
    if len(points) < 2:
        return None
    charts = {"perplexity": [p.perplexity for p in points]}
    if all(p.kl for p in points):
        charts = {"KL divergence from the base, nats": [p.kl for p in points if p.kl], **charts}
    ways = list(dict.fromkeys(p.role for p in quality.points if p.role not in ("base", "model")))
    markers = {**dict(zip(ways, "o^svPX<>*" * len(ways), strict=False)), "model": "D"}
    width = points[-1].bits - points[0].bits or 1.0
    with figure(2.2 * len(charts) + 0.2) as fig:
        axes = fig.subplots(len(charts), 1, squeeze=False, sharex=True).reshape(-1)
        for ax, (what, estimates) in zip(axes, charts.items(), strict=True):
            ax.set(title=what, xlim=(points[0].bits - 0.1 * width, points[-1].bits + 0.15 * width))
            scale(ax, [e.value for e in estimates], 2, from_0=what != "perplexity")
            if what == "perplexity" and base is not None:
                ax.axhline(base.perplexity.value, color=MUTED, linestyle="--")
                ax.set_title(f"perplexity (dashed: the base, {base.perplexity.value:.4f})")
            for role, marker in markers.items():
                line = [(p.bits, e.value, e.error) for p, e in zip(points, estimates, strict=True) if p.role == role]
                bits, values, errors = zip(*line, strict=True) if line else ((), (), ())
                bars = np.minimum(errors, np.multiply(values, 0.99))
                ax.errorbar(bits, values, yerr=bars, color=ACCENT if role in ways else SECOND, marker=marker,
                            markersize=5, linewidth=0.6, label=role if role in ways else None)
            ax.margins(y=0.2)
            _name_points(ax, [(p.name, p.role, p.bits, e.value) for p, e in zip(points, estimates, strict=True)], width)
        if len(ways) > 1:
            axes[0].legend(loc="upper right")
        axes[-1].set_xlabel("bits per weight")
        said = "; ".join(
            f"{label(p.name, 60)}, {p.role}, at {p.bits:.2f} bits per weight has"
            f"{f' a divergence of {p.kl.value:.3g} and' if p.kl else ''} a perplexity of {p.perplexity.value:.4g}"
            for p in points
        )
        return to_svg(fig, "quality", "Size against quality", f"{said}.")


def _name_points(ax: Any, points: Sequence[tuple[str, str, float, float]], width: float) -> None:
    """Names beside points without a method, which lie above or below those with one; in turns above and below where
    points are near one another. The model's is on the other side."""
    first, last, up = points[0][2], -math.inf, 1
    for name, role, bits, value in points:
        if "," in role:
            continue
        if role == "model":
            side = 1 if bits < first + width / 2 else -1
            offset, colour = (6 * side, -7), SECOND
        else:
            up = -up if bits - last < 0.1 * width else 1
            side, last = 1, bits
            offset, colour = (6, 6 * up), INK
        ax.annotate(label(name, 22), (bits, value), offset, textcoords="offset points", va="center", color=colour,
                    ha="left" if side > 0 else "right")


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
    known = sorted((t for t in model.matrices if t.error is not None), key=lambda t: t.error or 0)
    alone = sorted((t for t in known if t.place.layer is None), key=lambda t: in_flow(t.place.kind))[:MOST_KINDS]
    kinds = by_kind([t for t in known if t.place.layer is not None])
    kept = largest(kinds, MOST_KINDS)
    layers = sorted({t.place.layer for members in kinds.values() for t in members if t.place.layer is not None})
    share = max(1, -(-len(layers) // MOST_ROWS))
    groups = [layers[i : i + share] for i in range(0, len(layers), share)]
    row_of = {layer: i for i, group in enumerate(groups) for layer in group}
    worst = {
        (row_of[t.place.layer], column): t for column, members in enumerate(kept.values()) for t in members
        if t.place.layer is not None
    }  # of several the last, with the largest error
    cells = [Cell(row, column, 1, worst[row, column]) for row, column in sorted(worst)]
    cells += [Cell(len(groups) + i, 0, max(1, len(kept)), t) for i, t in enumerate(alone)]
    rows = [f"{g[0]}" if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups] + [label(t.place.kind, 14) for t in alone]
    return HeatMap(rows, list(kept), cells, len(kinds) - len(kept))


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
    size = min(7.5, height * 72 * 0.62)
    names = [label(kind, 14) for kind in found.columns]
    with figure(height * rows + 0.15 + 0.068 * max(map(len, names), default=0)) as fig:
        ax = fig.subplots()
        for i, (row, column, width, tensor) in enumerate(found.cells):
            alpha = FAINT + (STRONG - FAINT) * min(1.0, value(tensor) / top)
            box = Rectangle((column + 0.03, row + 0.05), width - 0.06, 0.9, color=ACCENT, alpha=alpha, gid=f"cell{i}")
            ax.add_patch(box)
            shown = f"{value(tensor):#.3g}".rstrip(".")
            ax.text(column + width / 2, row + 0.52, shown, ha="center", va="center", fontsize=size)
        ax.set(xlim=(0, columns), ylim=(rows, 0), ylabel="layer")
        ax.set_yticks([i + 0.5 for i in range(rows)], found.rows, fontsize=size)
        ax.set_xticks([i + 0.5 for i in range(len(names))], names, rotation=40, ha="left", rotation_mode="anchor")
        ax.xaxis.tick_top()
        ax.tick_params(length=0)
        ax.grid(False)
        ax.spines[:].set_visible(False)
        tips = {f"cell{i}": f"{c.tensor.name}: {tip(c.tensor)}" for i, c in enumerate(found.cells)}
        return to_svg(fig, key, title, about, tips)
