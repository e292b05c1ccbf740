"""Options of `octavo quantize` that say how codes are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.progress import Bar
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.evals.compensation import Compensation
    from octavo.evals.schemes import SchemeMethod

METHOD = "Weights by what a text shows"
ImatrixFile = Annotated[
    str | None, typer.Option("--imatrix", metavar="FILE", help="Importance weights, as `octavo imatrix` writes them.")
]


@dataclass
class MethodOptions:
    """How codes are chosen, and over which text."""

    imatrix: ImatrixFile = None
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="METHOD", rich_help_panel=METHOD,
                     help="gptq, or qronos, which also corrects for the errors of layers before; with --scheme also"
                          " rtn, awq, smoothquant, qqq, or auto, which tries all."),
    ] = None  # fmt: skip
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="TEXT", rich_help_panel=METHOD,
                     help="The text that is run for it: a file, or `demo`."),
    ] = None  # fmt: skip
    samples: Annotated[
        int, typer.Option("--samples", min=1, rich_help_panel=METHOD, help="Windows of it that are run, at most.")
    ] = 32

    def made(self, threads: int | None, bar: Bar) -> Compensation | None:
        """Raises UsageError for a method without a text, a text without a method, and an unknown method."""
        if self.method is None and self.calibration is None:
            return None
        if self.method is None or self.calibration is None:
            given = f"--method {self.method}" if self.method else f"--calibration {self.calibration}"
            raise UsageError(f"{given} alone (allowed: --method gptq or qronos together with --calibration TEXT)")
        from octavo.evals.compensation import KINDS, Compensation

        kind = next((kind for kind in KINDS if kind == self.method), None)
        if kind is None:
            raise UsageError(f"--method is {self.method!r} (allowed: {', '.join(KINDS)})")
        return Compensation(self.calibration, kind, self.samples, threads=threads, progress=bar.show)

    def of_scheme(self, threads: int | None, bar: Bar, **options: Any) -> SchemeMethod | None:
        """The same for a checkpoint's scheme; options are those of the method."""
        if self.method in (None, "rtn") and self.calibration is None and not any(options.values()):
            return None
        from octavo.evals.schemes import KINDS, SchemeMethod

        kind = next((kind for kind in KINDS if kind == self.method), None)
        if kind is None:
            given = "no --method is given" if self.method is None else f"--method is {self.method!r}"
            raise UsageError(f"{given} (allowed: {', '.join(KINDS)})")
        if self.calibration is None:
            raise UsageError(f"--method {kind} alone (allowed: together with --calibration TEXT)")
        return SchemeMethod(
            self.calibration, kind, samples=self.samples, threads=threads, progress=bar.show, **options
        )  # fmt: skip
