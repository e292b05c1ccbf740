"""`octavo eval compare`: files of a model beside the one they were made of, as a table, JSON and a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from octavo import sizes
from octavo.cli.columns import print_columns
from octavo.cli.hub.models import Offline, local
from octavo.cli.option_groups import grouped
from octavo.cli.options import AsJson, Chunks, DeviceOptions, ParseSpecial, Window
from octavo.cli.plain import printable, to_json
from octavo.errors import require_matplotlib

if TYPE_CHECKING:
    from octavo.evals.clusters import Interval
    from octavo.evals.judge.judgement import Judgement, Verdict

UNKNOWN = 1000.0
"""Perplexity of a base from which it is told that it does not know the text."""


@dataclass
class Judging:
    """What is read, how, and where results go."""

    text: Annotated[
        str | None,
        typer.Option("--text", metavar="FILE",
                     help="A text of your own: plain UTF-8, JSONL with a document a line, or `demo` (default: one that "
                     "comes with Octavo; of the demo model its own questions).")
    ] = None
    all_positions: Annotated[
        bool,
        typer.Option("--all-positions", help="Score every position of windows of 2048 tokens (default: the second half "
                     "of windows of 512, as llama.cpp does).")
    ] = False
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Compute what files say, in floats: without the rounding of activations that fast "
                     "products add. Takes 4 bytes a weight, and longer.")
    ] = False
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="FILE", help="Tell how much of the text is in this calibration text.")
    ] = None
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Also write the results as JSON.")
    ] = None
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", help="Draw divergence over size, with intervals: a .svg, .png or .pdf.")
    ] = None


def compare(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="The model as it was before, or a file of llama.cpp's "
                            "--kl-divergence-base.")
    ],
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="What was made of it: GGUF files, folders, names of the hub.")
    ],
    context: Window = None, chunks: Chunks = None, parse_special: ParseSpecial = False, *, judging: Judging,
    place: DeviceOptions, offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Judge files of a model, of any formats: `octavo eval compare model-f16.gguf a-Q4_K_M.gguf b-awq/ c-IQ3_S.gguf`.

    KL divergence from BASE over the whole vocabulary, with intervals of 95% by the documents of the text, best first.
    Ends with status 1 where a file could not be judged.
    """
    from octavo.cli.progress_bar import Bar
    from octavo.evals.judge.judged_text import DEMO, SHIPPED
    from octavo.evals.judge.judgement import is_recorded, judge, require_there
    from octavo.io.atomic import require_target, written_file
    from octavo.io.distinct_paths import MODEL, TEXT, model_files, require_apart, text_files

    if judging.plot is not None:
        require_matplotlib("--plot draws with matplotlib")
        from octavo.evals.judge.picture import draw, require_kind

        require_kind(judging.plot)
    text = judging.text or (DEMO if DEMO in (base, *files) else SHIPPED)
    require_there((base, *files), text, judging.calibration)
    paths, source = [local(name, offline) for name in files], base if is_recorded(base) else local(base, offline)
    for target in (judging.output, judging.plot):
        if target is not None:
            for path in (source, *paths):
                require_apart(target, {MODEL: model_files(path, ())})
            require_apart(target, {TEXT: text_files(judging.text, judging.calibration)})
            require_target(target)
    if judging.output is not None and judging.plot is not None:
        require_apart(judging.plot, {"what -o writes": [judging.output]})
    with Bar() as bar:
        found = judge(
            source, paths, text, context=context,
            chunks=chunks, every=judging.all_positions, exact=judging.exact, parse_special=parse_special,
            calibration=judging.calibration, progress=lambda done, total, what: bar.show(what, done, total),
            **place.given(offline),
        )
    as_text = to_json(asdict(found))
    if judging.output is not None:
        with written_file(judging.output) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(f"{as_text}\n")
    if judging.plot is not None:
        draw(found, judging.plot)
    if as_json:
        print(as_text)
    else:
        _show(found)
    if found.failed:
        raise typer.Exit(1)


def _show(found: Judgement) -> None:
    from octavo.evals.clusters import LEAST
    from octavo.evals.judge.judgement import remarks

    for name, why in found.failed.items():
        print(f"{printable(name)} could not be judged: {printable(why)}")
    if not found.base_perplexity.value <= UNKNOWN:
        print(f"warning: the base does not know this text (perplexity {found.base_perplexity.value:,.0f}), so the "
              "figures say little; give a text of its own with --text FILE")
    where = "every position" if found.every else "the second half"
    by = f"{found.clusters:,} cluster{'s' * (found.clusters != 1)}"
    few = found.clusters < LEAST
    print(
        f"base {printable(found.base)}, perplexity {interval(found.base_perplexity, '.4g')}\n"
        f"text {printable(found.text)}{f', sha256 {found.text_sha256[:16]}' if found.text_sha256 else ''}: "
        f"{found.positions:,} positions, {where} of {found.windows:,} window{'s' * (found.windows != 1)} of "
        f"{found.context:,}; "
        + (f"no intervals by {by}: they need {LEAST} (more --chunks, or a text with more documents)\n" if few
           else f"intervals of 95% by {by}\n")
    )
    ends = "" if few else " [95%]"
    numbers = ("rank", "body", "bits", "p99", "noise", "worth")
    headings = ("rank", "file", "body", "bits", f"KL{ends}", "p99", f"same top{ends}", f"ppl / base{ends}", "noise",
                "worth")
    table = [headings, *map(_row, found.files)]
    filled = [column for column in zip(*table, strict=True) if any(column[1:])]
    print_columns([column[0] for column in filled], zip(*(column[1:] for column in filled), strict=True), numbers)
    print("\nbody: without the head (embedding and output), bits a weight; --json has the head and other percentiles")
    if any(v.worth is not None for v in found.files):
        print("worth: bits a weight more than it has, beside the median; none of 16 bits or with activations of 8")
    for verdict in found.files:
        for why in verdict.suspicions:
            print(f"{printable(verdict.name)} looks broken: {printable(why)}")
    for remark in remarks(found):
        print(printable(remark))
    _show_noise(found)
    if found.rounding is not None:
        print(f"rounding: the base's file has 16 bits over 16 nats; what it cuts moves a divergence by up to "
              f"{found.rounding:.2g} nats")
    if found.overlap is not None:
        print(f"overlap: {found.overlap:.2%} of the text's runs of 12 words are in the calibration text")


def _show_noise(found: Judgement) -> None:
    noises = [v.noise for v in found.files if v.noise is not None]
    if not noises:
        print("noise of the engine: not measured, exact arithmetic finds no room in memory (4 bytes a weight)")
    elif found.exact:
        print(f"noise of exact arithmetic, from another order of sums: {max(noises):.2g} nats")
    else:
        print(f"noise: rounded activations put what the engine computes {min(noises):.2g} to {max(noises):.2g} nats "
              "off what files say; --exact leaves it out")


def _row(verdict: Verdict) -> tuple[str, ...]:
    v = verdict
    return (
        str(v.rank), printable(v.name), sizes.size(v.sizes.body), f"{v.sizes.body_bits:.2f}", interval(v.kl, ".3g"),
        f"{v.p99.value:.3g}", interval(v.same_top, ".1%"), interval(v.ratio, ".4g"),
        "" if v.noise is None else f"{v.noise:.2g}", "" if v.worth is None else f"{v.worth:+.2f}",
    )


def interval(value: Interval, form: str) -> str:
    """A value in a format, with the ends of its interval if it has one."""
    ends = f" [{value.low:{form}}, {value.high:{form}}]" if value.known else ""
    return f"{value.value:{form}}{ends}"


def add_to(app: typer.Typer) -> None:
    app.command("compare")(grouped(compare))
