"""Pictures of how weights, codes and scales lie."""

from __future__ import annotations

import math

import numpy as np

from octavo.evals.report.findings import EDGES, I64, CodeSteps
from octavo.evals.report.svg import ACCENT, MUTED, panels, plain_ticks, to_svg
from octavo.evals.report.tensor_labels import label


def weights_picture(counts: dict[str, I64]) -> str:
    """Histograms by kind of tensor, counts over `EDGES`, beside the normal distribution."""
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    normal = np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi)
    with panels(len(counts), 1.25, "weight / root mean square", "density", shared=True) as (fig, axes):
        for ax, (kind, found) in zip(axes, counts.items(), strict=True):
            density = found / max(1, found.sum()) / np.diff(EDGES)
            ax.stairs(density, EDGES, baseline=1e-9, fill=True, color=ACCENT, alpha=0.35, linewidth=0)
            ax.stairs(density, EDGES, baseline=None, color=ACCENT, linewidth=1.1)
            ax.plot(middle, normal, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
            ax.set(title=label(kind), yscale="log", ylim=(1e-6, 2), xlim=(-8, 8), xticks=(-6, -3, 0, 3, 6))
            ax.set_yticks([1e-6, 1e-4, 1e-2, 1])
            plain_ticks(ax.yaxis)
        about = (
            f"Histograms of weights of {', '.join(map(label, counts))}, on a logarithmic scale; dashed: a normal"
            " distribution."
        )
        return to_svg(fig, "weights", "How weights lie, by kind of tensor", about)


def codes_picture(codes: dict[str, I64]) -> str:
    """How often each code of each type is used; the dotted line is even use."""
    with panels(len(codes), 1.35, "code", "share, %") as (fig, axes):
        for ax, (kind, counts) in zip(axes, codes.items(), strict=True):
            share = 100 * counts / max(1, counts.sum())
            edges = np.arange(len(share) + 1) - 0.5
            if len(share) <= 64:
                ax.bar(np.arange(len(share)), share, width=0.82, color=ACCENT, alpha=0.75, linewidth=0)
            else:
                ax.stairs(share, edges, fill=True, color=ACCENT, alpha=0.75, linewidth=0)
            ax.axhline(100 / len(share), color=MUTED, linewidth=1, linestyle=(0, (1, 1.5)))
            ax.set(title=f"{label(kind)}: {entropy(counts):.2f} of {math.log2(len(share)):g} bits")
            ax.set(xlim=(edges[0], edges[-1]), ylim=(0, None))
            ax.set_xticks([*np.linspace(0, len(share), 5)[:-1].round().tolist(), len(share) - 1])
            ax.locator_params(axis="y", nbins=4)
            plain_ticks(ax.yaxis)
            ax.grid(False, axis="x")
        about = "; ".join(
            f"{label(kind)} uses {entropy(c):.2f} of {math.log2(len(c)):g} bits" for kind, c in codes.items()
        )
        return to_svg(fig, "codes", "How often each code is used, by type", f"{about}.")


def entropy(counts: I64) -> float:
    """Bits that a code carries if each came as often as it did here, without its neighbours."""
    share = counts[counts > 0] / max(1, counts.sum())
    return float(-(share * np.log2(share)).sum()) + 0.0


def scales_picture(steps: dict[str, dict[int, CodeSteps]]) -> str:
    """By kind and layer: the median step, and between which values nine of ten lie."""
    lows = [s.low for by_layer in steps.values() for s in by_layer.values() if s.low > 0]
    highs = [s.high for by_layer in steps.values() for s in by_layer.values() if s.high > 0]
    limits = (min(lows, default=0.1) / 1.3, max(highs, default=1) * 1.3)
    with panels(len(steps), 1.25, "layer", "step between codes", shared=True) as (fig, axes):
        for ax, (kind, by_layer) in zip(axes, steps.items(), strict=True):
            layers = sorted(by_layer)
            low, median, high = ([getattr(by_layer[i], name) for i in layers] for name in ("low", "median", "high"))
            if len(layers) > 1:
                ax.fill_between(layers, low, high, color=ACCENT, alpha=0.25, linewidth=0)
                ax.plot(
                    layers, median, color=ACCENT, linewidth=1.5, marker="o" if len(layers) < 24 else "", markersize=3
                )
            else:
                ax.vlines(layers, low, high, color=ACCENT, alpha=0.35, linewidth=6)
                ax.plot(layers, median, color=ACCENT, marker="o", markersize=4)
            ax.set(title=label(kind), yscale="log", ylim=limits)
            ax.minorticks_off()
            ax.set_yticks(round_values(*limits))
            ax.xaxis.get_major_locator().set_params(integer=True, nbins=6)
            plain_ticks(ax.yaxis)
        about = (
            f"The distance between neighbouring codes for {', '.join(map(label, steps))}, layer by layer, on a"
            " logarithmic scale: the line is the median, nine of ten groups lie in the band."
        )
        return to_svg(fig, "scales", "How far codes are apart, by layer", about)


def round_values(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten between two values; powers of ten only where these are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    coarse = [10.0**p for p in powers if low <= 10.0**p <= high]
    return coarse if len(fine) > 5 and len(coarse) >= 2 else fine
