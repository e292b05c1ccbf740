"""Draws the pictures of docs/calibration.md, from what the package's own functions give for small examples.

`--check` draws nothing, and exits with 1 where a picture shows other numbers than these functions give now.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from methods.figures import FIGURES, INK, Numbers

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "octavo", "font.size": 8.0, "axes.spines.top": False,
    "axes.spines.right": False, "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.edgecolor": INK, "axes.titlesize": 8.0,
}


def digest(numbers: Numbers) -> str:
    """Names the numbers that a picture shows."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def drawn(name: str, numbers: Numbers) -> str:
    """A picture as SVG, with the digest of its numbers in it."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 2.8), layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.set_facecolor("none")
        FIGURES[name][1](axes, numbers)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Description": digest(numbers)})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 where a picture is stale")
    options = parser.parse_args()
    stale = []
    for name, (numbers_of, _) in FIGURES.items():
        path, numbers = PICTURES / f"method-{name}.svg", numbers_of()
        if path.exists() and digest(numbers) in path.read_text(encoding="utf-8"):
            continue
        stale.append(path.name)
        if not options.check:
            path.write_text(drawn(name, numbers), encoding="utf-8")
    print(f"{'stale' if options.check else 'drawn'}: {', '.join(stale) or 'none'}")
    sys.exit(bool(options.check and stale))


if __name__ == "__main__":
    main()
