"""Options of `octavo quantize` for a checkpoint in a scheme, instead of a GGUF file of a preset."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.notes import notes_told
from octavo.cli.options import refuse
from octavo.cli.progress_bar import Bar
from octavo.cli.quantize.method_options import MethodOptions
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.quantizers.job.job_report import Report

scheme_option = partial(typer.Option, rich_help_panel="A scheme instead of a preset")


@dataclass
class SchemeOptions:
    """A scheme of a checkpoint, and what goes with one alone."""

    scheme: Annotated[
        str | None,
        scheme_option("--scheme", metavar="SCHEME",
                     help="int8-w8a8, w4a8, w4a8-g128, fp8, w4a16-g128, w4a16-g64, w4a16-g32, w4a16, w8a16, fp8-block,"
                          " mxfp4a16 or nvfp4a16, as safetensors."),
    ] = None
    rotate: Annotated[
        bool,
        scheme_option("--rotate",
                     help="With --method: first rotate the residual stream and heads' values, which spreads outliers."),
    ] = False

    kv: Annotated[
        str | None,
        scheme_option("--kv", metavar="TYPE",
                     help="With --method: also scales for caches of int8 or fp8, of what they hold over the text."),
    ] = None
    activations: Annotated[
        str | None,
        scheme_option("--activations", metavar="KIND",
                     help="With --method: dynamic, a scale for each token (default); static, one of what the text gives"
                          " a product; mixed, static where that costs little; static-fp8, e4m3 numbers where it does"
                          " not (default of rptq with int8-w8a8)."),
    ] = None
    layout: Annotated[
        str | None,
        scheme_option("--layout", metavar="LAYOUT",
                     help="compressed-tensors (default); gptq or awq for w4a16, qqq for w4a8."),
    ] = None

    seed: Annotated[
        int,
        scheme_option("--seed", "-s", min=0,
                     help="With --method: says which windows of the text are run, and which rotations."),
    ] = 0
    ignore: Annotated[
        list[str] | None,
        scheme_option("--ignore", metavar="REGEX",
                     help="Leave linear layers whose name matches as they are; may be repeated."),
    ] = None

    def refuse_alone(self) -> None:
        """Raise UsageError for options of schemes without one."""
        options = {
            "--rotate": self.rotate, "--kv": self.kv, "--activations": self.activations, "--layout": self.layout,
            "--seed": self.seed, "--ignore": self.ignore,
        }
        refuse(options, "needs --scheme SCHEME")

    def refuse_beside(self, given: dict[str, Any]) -> None:
        """Raise UsageError for what a scheme leaves nothing to say about."""
        allowed = "options of the scheme and of its method, --allow-requantize, --dry-run, --threads, --json"
        refuse(given, f"with --scheme {self.scheme} (allowed: {allowed})")

    def quantize(self, src: str, dst: str, method: MethodOptions, options: dict[str, Any]) -> Report:
        """Write the checkpoint. Raises as `quantize_checkpoint` does."""
        from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint

        assert self.scheme is not None
        if dst.lower().endswith(".gguf"):
            raise UsageError(f"{dst}: --scheme {self.scheme} makes a folder (allowed: a name without .gguf)")
        with notes_told(), Bar() as bar:
            given = {"rotate": self.rotate, "kv": self.kv, "activations": self.activations, "seed": self.seed}
            made = method.of_scheme(options["threads"], bar, **given)
            layout = self.layout or "compressed-tensors"
            return quantize_checkpoint(
                src, dst, self.scheme, method=made, layout=layout, ignore=self.ignore or (), progress=bar.show,
                **options,
            )
