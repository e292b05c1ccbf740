"""Options of `octavo quantize` that say how codes are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import Device, Window, refuse
from octavo.cli.progress_bar import Bar
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.calibrate.gguf.gguf_method import GgufMethod
    from octavo.calibrate.schemes.scheme_method import SchemeMethod

method_option = partial(typer.Option, rich_help_panel="Methods with a text")
ImatrixFile = Annotated[
    str | None,
    typer.Option("--imatrix", metavar="FILE",
                 help="Importance weights, as `octavo imatrix` or `octavo calibrate` writes them.")
]


@dataclass
class MethodOptions:
    """How codes are chosen, and over which text."""

    imatrix: ImatrixFile = None
    method: Annotated[
        str | None,
        method_option("--method", metavar="METHOD",
                     help="gptq, or qronos, which also corrects for the errors of layers before; with --scheme also"
                          " rtn, awq, smoothquant, qqq, rptq, or auto, which tries all."),
    ] = None
    calibration: Annotated[
        str | None,
        method_option("--calibration", metavar="TEXT",
                     help="The text that is run for it: a file, a .jsonl file of records, or `demo`."),
    ] = None
    samples: Annotated[
        int | None, method_option("--samples", min=1, help="Windows of it that are run, at most (default: 32).")
    ] = None
    context: Window = None
    device: Device = "auto"
    resume: Annotated[
        bool,
        method_option("--resume", help="Go on with a run that was killed. What is made is in DST.work until all is.")
    ] = False

    def made(self, dst: str, threads: int | None, bar: Bar) -> GgufMethod | None:
        """Raises UsageError for a method without a text, a text without a method, and an unknown method."""
        if self.method is None and self.calibration is None:
            self._refuse_alone()
            return None
        if self.method is None:
            raise UsageError(f"--calibration {self.calibration} needs --method gptq or qronos")
        from octavo.calibrate.gguf.gguf_method import KINDS, SAMPLES, GgufMethod

        kind = next((kind for kind in KINDS if kind == self.method), None)
        if kind is None:
            from octavo.calibrate.schemes.scheme_method import KINDS as OF_SCHEMES

            other = f"; {self.method} is for --scheme" if self.method in ("rtn", *OF_SCHEMES) else ""
            raise UsageError(f"--method is {self.method!r} (allowed: {', '.join(KINDS)}{other})")
        if self.calibration is None:
            raise UsageError(f"--method {kind} needs --calibration TEXT")
        return GgufMethod(
            self.calibration, kind, self.samples or SAMPLES, self.context, self.device, threads, bar.show,
            f"{dst}.work", self.resume,
        )

    def of_scheme(self, threads: int | None, bar: Bar, **options: Any) -> SchemeMethod | None:
        """The same for a checkpoint's scheme; options are those of the method."""
        if self.method in (None, "rtn") and self.calibration is None and not any((self.resume, *options.values())):
            self._refuse_alone()
            return None
        from octavo.calibrate.schemes.scheme_method import KINDS, SAMPLES, SchemeMethod

        kind = next((kind for kind in KINDS if kind == self.method), None)
        if kind is None:
            given = "no --method is given" if self.method is None else f"--method is {self.method!r}"
            raise UsageError(f"{given} (allowed: {', '.join(KINDS)})")
        if self.calibration is None:
            raise UsageError(f"--method {kind} needs --calibration TEXT")
        return SchemeMethod(
            self.calibration, kind, samples=self.samples or SAMPLES, context=self.context, resume=self.resume,
            device=self.device, threads=threads, progress=bar.show, **options,
        )

    def _refuse_alone(self) -> None:
        """Raise UsageError for options of a method without one."""
        given = {"--resume": self.resume, "--samples": self.samples, "--ctx-size": self.context}
        refuse(given | {f"--device {self.device}": self.device != "auto"}, "needs --method and --calibration")
