"""`octavo quantize`: a model with fewer bits a weight."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.hub.models import Offline, local
from octavo.cli.notes import notes_told
from octavo.cli.plain import printable, to_json
from octavo.cli.progress_bar import Bar
from octavo.cli.quantize.method_options import MethodOptions
from octavo.cli.quantize.scheme import SchemeOptions
from octavo.data import resolve
from octavo.errors import OctavoError, UsageError

if TYPE_CHECKING:
    from octavo.quantizers.fit import Fitted
    from octavo.quantizers.fit.fit import Target
    from octavo.quantizers.job.job_report import Report
    from octavo.quantizers.mix.mixing import Choices

types_option = partial(typer.Option, rich_help_panel="Types")
size_option = partial(typer.Option, rich_help_panel="A size instead of a preset")
Threads = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, max=1024, help="Threads to use (default: all cores).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; show which types and sizes it would give.")]


@dataclass
class MixedTypes:
    """Which tensors get another type than a preset's."""

    pure: Annotated[bool, types_option("--pure", help="Give all tensors the preset's base type, with no mix.")] = False
    tensor_type: Annotated[
        list[str] | None,
        types_option("--tensor-type", metavar="REGEX=TYPE",
                     help="The type of tensors whose name matches; may be repeated.")
    ] = None
    output_tensor_type: Annotated[
        str | None, types_option("--output-tensor-type", metavar="TYPE", help="The type of output.weight.")
    ] = None
    token_embedding_type: Annotated[
        str | None, types_option("--token-embedding-type", metavar="TYPE", help="The type of token_embd.weight.")
    ] = None

    def choices(self) -> Choices:
        """Raises UsageError for a type without a pattern, or a pattern without a type."""
        from octavo.quantizers.mix.mixing import Choices

        return Choices(
            pure=self.pure, output_type=self.output_tensor_type, embedding_type=self.token_embedding_type,
            tensor_types=tensor_types(self.tensor_type or []),
        )


@dataclass
class Types(MixedTypes):
    """The same, and an output that stays as it is."""

    leave_output_tensor: Annotated[
        bool, types_option("--leave-output-tensor", help="Leave output.weight as it is.")
    ] = False

    def choices(self) -> Choices:
        return replace(super().choices(), leave_output=self.leave_output_tensor)


@dataclass
class SizeOptions:
    """A size instead of a preset, and what is measured to find the best types for it."""

    target_bpw: Annotated[
        float | None,
        size_option("--target-bpw", metavar="BITS", help="At most this many bits per weight, for example 4.5.")
    ] = None
    target_size: Annotated[
        str | None, size_option("--target-size", metavar="SIZE", help="A file of at most 4.2GiB, 700MB, ...")
    ] = None
    text: Annotated[
        str | None,
        size_option("--text", metavar="TEXT",
                     help="Measure what each tensor's errors cost on this file, or `demo` (default: an estimate)."),
    ] = None
    listed: Annotated[
        bool, size_option("--list", help="Write nothing; list the presets, and the sizes of SRC in them.")
    ] = False


def quantize(
    src: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A GGUF file, ORG/REPO[:QUANT] of the hub, or `demo`; with --scheme also a checkpoint folder.",
        ),
    ],
    dst: Annotated[
        str | None,
        typer.Argument(metavar="DST",
                       help="The file to write; it is replaced when all is done. With --scheme a new folder.")
    ] = None,
    preset: Annotated[
        str | None, typer.Argument(metavar="PRESET", help="Q4_K_M, Q8_0, ...: llama-quantize's names.")
    ] = None,
    *, size: SizeOptions, scheme: SchemeOptions, types: Types, method: MethodOptions,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Quantize tensors that are quantized already, at a loss.")
    ] = False,
    dry_run: DryRun = False, threads: Threads = None, offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Quantize a model: `octavo quantize model-f16.gguf model-q4.gguf Q4_K_M`.

    With --target-bpw or --target-size each tensor gets the type with which the whole loses least:
    `octavo quantize model-f16.gguf small.gguf --target-bpw 4.5 --text notes.txt`.
    With --scheme the result is a checkpoint folder: `octavo quantize model-f16.gguf model-int8 --scheme int8-w8a8`.
    With --method weights are chosen by what a text shows: `--method gptq --calibration notes.txt`.
    """
    if size.listed:
        from octavo.cli.quantize.presets_command import show_presets

        show_presets(local(src, offline), as_json)
        return
    if dst is None:
        raise UsageError("Missing argument 'DST': `octavo quantize SRC --list` has the presets and their sizes")
    started, choices = monotonic(), types.choices()
    options: dict[str, Any] = {"allow_requantize": allow_requantize, "dry_run": dry_run, "threads": threads}
    if scheme.scheme is not None:
        scheme.refuse_beside({
            "PRESET": preset, "--target-bpw": size.target_bpw, "--target-size": size.target_size, "--text": size.text,
            "--imatrix": method.imatrix, "options of types": types != Types(),
        })
        report, fitted = scheme.quantize(local(src, offline), dst, method, options), None
    else:
        scheme.refuse_alone()
        target = _target(preset, size, types.pure)
        report, fitted = _quantize_gguf(local(src, offline), dst, target, size.text, method, choices, options)
    show(report, as_json, fitted, started)


def _quantize_gguf(
    src: str, dst: str, target: str | Target, text: str | None, method: MethodOptions, choices: Choices,
    options: dict[str, Any],
) -> tuple[Report, Fitted | None]:
    """Write a GGUF file of a preset, or of a size by what errors cost on `text`. Raises UsageError for a folder."""
    from octavo.quantizers.job.quantize import quantize_file

    if os.path.isdir(src):
        raise UsageError(
            f"{src} is a folder: `octavo convert` makes a GGUF file of one, and --scheme quantizes folders"
        )
    with notes_told(), Bar() as bar:
        more = options | {"choices": choices, "method": method.made(dst, options["threads"], bar)}
        if isinstance(target, str):
            return quantize_file(src, dst, target, imatrix=method.imatrix, progress=bar.show, **more), None
        fitted = _fit(src, dst, target, text, method.imatrix, bar, more)
        return fitted.report, fitted


NO_PRESET = (
    "no preset given: `octavo quantize SRC DST Q4_K_M` has one, `octavo quantize SRC --list` lists them; or use "
    "--target-bpw, --target-size or --scheme"
)


def _target(preset: str | None, size: SizeOptions, pure: bool) -> str | Target:
    """The preset or the size that is wished for. Raises UsageError for what does not go together."""
    bits = size.target_bpw
    wishes = (("PRESET", preset), ("--target-bpw", bits), ("--target-size", size.target_size))
    given = [name for name, value in wishes if value]
    choose = "can't be used together: choose one of a PRESET such as Q4_K_M, --target-bpw, --target-size and --scheme"
    if bits is not None and not bits > 0:
        raise UsageError(f"--target-bpw is {bits:g} (allowed: above 0)")
    if len(given) != 1:
        raise UsageError(f"{' and '.join(given)} {choose}" if given else NO_PRESET)
    if preset is not None:
        if size.text is not None:
            raise UsageError(f"--text is for --target-bpw and --target-size, not for a PRESET ({preset})")
        return preset
    if pure:
        raise UsageError(f"--pure is for a PRESET, whose type it means, not for {given[0]}")
    from octavo.quantizers.fit.fit import Target, parse_size

    return Target(bits, None if size.target_size is None else parse_size(size.target_size))


def _fit(
    src: str, dst: str, target: Target, text: str | None, imatrix: str | None, bar: Bar, options: dict[str, Any]
) -> Fitted:
    """Quantize to a size, by what errors cost on `text` if there is one."""
    from octavo.quantizers.fit import quantize_to_size
    from octavo.quantizers.job.importance import load_importance

    weights = load_importance(imatrix)
    slopes = None
    if text is not None:
        from octavo.evals.sensitivity import MeasuredSlopes

        slopes = MeasuredSlopes(text, weights, threads=options["threads"], progress=bar.show)
    return quantize_to_size(src, dst, target, slopes=slopes, imatrix=weights, progress=bar.show, **options)


def tensor_types(given: list[str]) -> tuple[tuple[str, str], ...]:
    """REGEX=TYPE options as pairs. Raises UsageError for one without a type."""
    pairs = []
    for text in given:
        pattern, equals, kind = text.rpartition("=")
        if not (pattern and equals and kind):
            raise UsageError(f"--tensor-type is {text!r} (allowed: REGEX=TYPE, as attn_v=Q6_K)")
        pairs.append((pattern, kind))
    return tuple(pairs)


def show(report: Report, as_json: bool, fitted: Fitted | None = None, started: float | None = None) -> None:
    """Print what became of the tensors: one JSON object, or a table and a few lines; `started` is when it began."""
    if as_json:
        totals: dict[str, Any] = {
            "source_bytes": report.source_bytes, "bytes": report.nbytes, "bits_per_weight": report.bits_per_weight,
        }
        if fitted is not None:
            totals |= {key: getattr(fitted, key) for key in ("budget", "bytes_left", "loss", "loss_is")}
        facts = {key: value for key, value in asdict(report).items() if key != "rows"}
        rows = [{("bytes" if key == "nbytes" else key): v for key, v in asdict(row).items()} for row in report.rows]
        print(to_json(facts | totals | {"tensors": rows}))
        return
    from octavo.cli.quantize.quantize_table import show as show_table

    show_table(report)
    if fitted is not None:
        _show_fit(fitted)
    if started is not None and not report.dry_run:
        target = report.target if resolve(report.target) == report.target else f"./{report.target}"  # not the built-in
        next_one = f"octavo {_command(report.target)} {shlex.quote(printable(target))}"
        print(f"done in {monotonic() - started:.1f} s; next: {next_one}")


def _command(path: str) -> str:
    """The command that a model is for; `run` where nothing here runs it."""
    from octavo.huggingface import open_model_file
    from octavo.models import read_model
    from octavo.runtime.text_embedding import command_for

    try:
        with open_model_file(path) as file:
            return command_for(read_model(file))
    except OctavoError:
        return "run"


def _show_fit(fitted: Fitted) -> None:
    from octavo.quantizers.fit import GUESSED

    hint = " (guessed; --text TEXT measures what errors cost)" if fitted.loss_is == GUESSED else ""
    print(f"expected {fitted.loss_is}: {fitted.loss:.4f}{hint}")
    print(f"{fitted.bytes_left:,} bytes left of {fitted.budget:,} for tensors")
