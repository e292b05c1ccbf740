"""Pictures of what a method did, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from octavo.evals.report.pictures import round_values
from octavo.evals.report.svg import ACCENT, MUTED, SECOND, panels, plain_ticks, to_svg
from octavo.evals.report.tensor_labels import label

MOST_PANELS = 12
FAR = 8
"""Times the least value from which an axis is logarithmic."""
TITLE = 30
"""Letters of a panel's title, at most."""


class LayerPair(NamedTuple):
    """Two numbers of a layer: before and after, or the least and the largest."""

    layer: int
    low: float
    high: float


Lines = Mapping[str, Sequence[LayerPair]]
"""By kind, layers in order."""


def errors_picture(lines: Lines) -> str:
    """Errors before and after, in percent."""
    about = f"Errors of products of {_names(lines)} by layer, with nearest codes and as a method made them, in percent."
    with panels(len(_shown(lines)), 1.15, "layer", "error, %") as (fig, axes):
        for ax, (kind, pairs) in zip(axes, _shown(lines).items(), strict=True):
            _before_and_after(ax, kind, pairs)
            ax.set_ylim(0, 1.12 * max((max(p.low, p.high) for p in pairs), default=1) or 1)
            ax.locator_params(axis="y", nbins=4)
        return to_svg(fig, "made", "Errors of products before and after, by layer", about)


def peaks_picture(lines: Lines) -> str:
    """How far the largest channel of inputs stands out, before and after."""
    about = f"The largest channel over the median one in the inputs of {_names(lines)}, by layer, before and after."
    with panels(len(_shown(lines)), 1.15, "layer", "largest / median") as (fig, axes):
        for ax, (kind, pairs) in zip(axes, _shown(lines).items(), strict=True):
            _before_and_after(ax, kind, pairs)
            _around(ax, [x for p in pairs for x in p[1:]])
        return to_svg(fig, "peaks", "Channels that stand out, by layer", about)


def spans_picture(lines: Lines) -> str:
    """From where to where scales go."""
    about = f"The least and the largest scale of channels of {_names(lines)}, by layer."
    with panels(len(_shown(lines)), 1.15, "layer", "scale") as (fig, axes):
        for ax, (kind, pairs) in zip(axes, _shown(lines).items(), strict=True):
            layers = [p.layer for p in pairs]
            width = max(1.5, min(6.0, 90 / max(1, len(layers))))
            ax.axhline(1, color=MUTED, linewidth=1, linestyle=(0, (1, 1.5)))
            ax.vlines(layers, [p.low for p in pairs], [p.high for p in pairs], color=ACCENT, alpha=0.6, linewidth=width)
            for end in (1, 2):
                ax.plot(layers, [p[end] for p in pairs], color=ACCENT, marker="_", markersize=width + 3, linestyle="")
            _frame(ax, kind, pairs)
            _around(ax, [1.0, *(x for p in pairs for x in p[1:])])
        return to_svg(fig, "spans", "Scales of channels, by layer", about)


def _before_and_after(ax: Any, kind: str, pairs: Sequence[LayerPair]) -> None:
    """Two lines, or two points where there is a single layer."""
    layers = [p.layer for p in pairs]
    marker = "o" if len(layers) < 24 else ""
    ax.plot(layers, [p.low for p in pairs], color=SECOND, linewidth=1.2, linestyle=(0, (3, 2)), marker=marker,
            markersize=3.5, markerfacecolor="none")
    ax.plot(layers, [p.high for p in pairs], color=ACCENT, linewidth=1.5, marker=marker, markersize=3)
    _frame(ax, kind, pairs)


def _frame(ax: Any, kind: str, pairs: Sequence[LayerPair]) -> None:
    first, last = pairs[0].layer, pairs[-1].layer
    margin = max(0.5, 0.04 * (last - first))
    ax.set(title=label(kind, TITLE), xlim=(first - margin, last + margin))
    ax.title.set_fontsize(8)
    ax.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    plain_ticks(ax.yaxis)


def _around(ax: Any, values: Sequence[float]) -> None:
    """An axis around values with few labels that are round; a logarithmic one where they go far apart."""
    above = [x for x in values if 0 < x < math.inf] or [1.0]
    low, high = min(above), max(above)
    if high > FAR * low:
        ax.set(yscale="log", ylim=(low / 1.25, high * 1.25))
        ax.minorticks_off()
        ax.set_yticks(round_values(low / 1.25, high * 1.25))
    else:
        margin = 0.12 * (high - low) or 0.1 * high
        ax.set_ylim(low - margin, high + margin)
        ax.locator_params(axis="y", nbins=4)
    plain_ticks(ax.yaxis)


def _shown(lines: Lines) -> dict[str, Sequence[LayerPair]]:
    return dict(list(lines.items())[:MOST_PANELS])


def _names(lines: Lines) -> str:
    return ", ".join(label(kind, 60) for kind in _shown(lines))
