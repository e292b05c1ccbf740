"""Figures by matplotlib as SVG within a page: colours from its style sheet, real text, the same bytes each time.

Colours are drawn as markers, which then become names of the page's colours, so one picture serves light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from octavo.errors import INSTALL_REPORT, UsageError, import_failure
from octavo.evals.report.cells import text as safe

INK, MUTED, GRID, ACCENT, SECOND = "#010101", "#020202", "#030303", "#040404", "#050505"
PAGE = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    ACCENT: "var(--accent)",
    SECOND: "var(--second)",
}

WIDTH = 4.9
"""Inches of a figure: narrow, so that its text can be read where a phone shrinks it."""

STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "octavo", "text.parse_math": False, "path.simplify": False,
    "font.size": 9.0, "font.family": "DejaVu Sans", "axes.titlesize": 9.0, "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0, "ytick.labelsize": 8.0, "axes.titlelocation": "left", "axes.axisbelow": True,
    "text.color": INK, "axes.labelcolor": MUTED, "axes.titlecolor": INK, "xtick.color": GRID, "ytick.color": GRID,
    "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED, "axes.edgecolor": GRID, "grid.color": GRID,
    "axes.linewidth": 0.8, "grid.linewidth": 0.6, "axes.grid": True, "axes.spines.top": False,
    "axes.spines.right": False, "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none",
    "axes.unicode_minus": True, "xtick.major.size": 3.0, "ytick.major.size": 3.0,
    "axes.formatter.use_mathtext": False, "axes.formatter.useoffset": False,
}


def require_matplotlib() -> None:
    """Raises UsageError where pictures can't be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        why = import_failure("matplotlib", error, INSTALL_REPORT)
        raise UsageError(f"a report's pictures need matplotlib: {why}") from None


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
    fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    body = re.sub(r'\bid="([^"]*)"', rf'id="{key}-\1"', body)
    body = re.sub(r'(url\(#|href="#)', rf"\g<1>{key}-", body)
    for marker, colour in PAGE.items():
        body = body.replace(marker, colour)
    body = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", body)
    body = _with_tips(body, {f"{key}-{gid}": tip for gid, tip in (tips or {}).items()})
    names = f'<title id="{key}-title">{safe(title)}</title><desc id="{key}-desc">{safe(description, 2000)}</desc>'
    labels = f'role="img" aria-labelledby="{key}-title {key}-desc"'
    return f'<svg class="picture" {box[0]} {labels} xmlns="http://www.w3.org/2000/svg">{names}{body}'.strip()


def _with_tips(body: str, tips: Mapping[str, str]) -> str:
    """`body` with a <title> in each group that has a tip."""

    def add(match: re.Match[str]) -> str:
        tip = tips.get(match[1])
        return match[0] if tip is None else f"{match[0]}<title>{safe(tip)}</title>"

    return re.sub(r'<g id="([^"]*)">', add, body)


def plain_ticks(axis: Any) -> None:
    """Tick labels without powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


@contextmanager
def panels(count: int, height: float, x: str, y: str, *, shared: bool = False) -> Iterator[tuple[Any, Sequence[Any]]]:
    """A figure of small multiples, two in a row, each `height` inches high, and their axes in reading order.

    x, y    what the axes are, said once for all
    shared  all axes go from and to the same values
    """
    columns = min(2, count)
    rows = -(-count // columns)
    with figure(rows * height + 0.2) as fig:
        axes = fig.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared).reshape(-1)
        for ax in axes[count:]:
            ax.remove()
        for ax in axes[max(0, count - columns) : count]:
            ax.tick_params(labelbottom=True)  # also where the place below is empty
        fig.supxlabel(x, fontsize=9, color=MUTED)
        fig.supylabel(y, fontsize=9, color=MUTED)
        yield fig, list(axes[:count])
