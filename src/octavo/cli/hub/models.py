"""Models as commands take them: where one is, its download on a bar, and what is asked where several are meant."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.columns import columns
from octavo.cli.hub.early_kernels import EarlyKernels
from octavo.cli.progress_bar import Bar
from octavo.errors import ChoiceError
from octavo.sizes import size

if TYPE_CHECKING:
    from octavo.io.hub import HubName, Variant
    from octavo.io.hub.retries import Show
    from octavo.io.hub.variants import Chooser

ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A GGUF file, a checkpoint folder, ORG/REPO[:QUANT] of the hub, or `demo`."),
]
ModelNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODEL", help="GGUF files, checkpoint folders, ORG/REPO[:QUANT] of the hub, or `demo`."),
]
Offline = Annotated[bool, typer.Option("--offline", help="Don't ask the hub: use what is on this machine.")]


def local(model: str, offline: bool = False) -> str:
    """The path of a model, which is downloaded first where it is the hub's and not on this machine."""
    from octavo.io.model_path import locate

    with Bar() as bar, EarlyKernels() as kernels:
        return locate(model, offline=offline, show=shown_by(bar), chooser=asking(bar), began=kernels.begin)


def shown_by(bar: Bar) -> Show:
    """What a bar shows of a download; where it shows nothing, the log tells of it."""
    from octavo.io.hub.retries import nobody

    return bar.show if sys.stderr.isatty() else nobody


def asking(bar: Bar) -> Chooser:
    """Which model of a repository is meant; on a terminal the user is asked where that is not clear."""
    return partial(_ask, bar)


def _ask(bar: Bar, name: HubName, found: Sequence[Variant], free: int | None) -> Variant:
    from octavo.io.hub.variants import choose

    try:
        return choose(name, found, free)
    except ChoiceError as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        bar.clear()
        offered = [v for v in found if v in error.choices]
        print(error.problem, *table(offered, free), sep="\n", file=sys.stderr)
        number = 0
        while not 1 <= number <= len(offered):
            number = typer.prompt(f"Which one (1 to {len(offered)})", type=int, err=True)
        return offered[number - 1]


def table(found: Sequence[Variant], free: int | None) -> list[str]:
    """The lines of a table of models, numbered."""
    rows = [
        (str(i), v.label, str(len(v.files)), size(v.nbytes), "yes" if v.fits(free) else "no")
        for i, v in enumerate(found, 1)
    ]
    return columns(("", "quantization", "files", "size", "fits in memory"), rows, ("", "files", "size"))
