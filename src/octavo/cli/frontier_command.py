"""`octavo frontier`: the best file of a model for each of several sizes."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from octavo.cli.columns import print_columns
from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.notes import stop_told
from octavo.cli.options import AsJson, Device, Threads, Window
from octavo.cli.plain import printable, to_json
from octavo.cli.progress_bar import Bar
from octavo.errors import UsageError, require_matplotlib
from octavo.sizes import size

if TYPE_CHECKING:
    from octavo.frontier.plan import Options, Plan, Subject
    from octavo.frontier.run import Frontier


@dataclass
class Search:
    """What files are made by, and judged by."""

    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="TEXT",
                     help="The text that the files are made by: UTF-8, a .jsonl file of records, or `demo`.")
    ] = None
    method: Annotated[
        Literal["encoder", "gptq"],
        typer.Option(help="Codes by the encoders with an importance matrix, or by GPTQ, for uses like TEXT alone.")
    ] = "encoder"
    samples: Annotated[int | None, typer.Option(help="Windows of it that are run, at most (default: 128).")] = None
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="FILE",
                     help="The text that they are judged by: UTF-8, JSONL with a document a line, or `demo` (default: "
                     "one that comes with Octavo; of the demo model its own questions).")
    ] = None
    chunks: Annotated[int | None, typer.Option(help="Windows of that text, at most (default: the whole text).")] = None
    exact: Annotated[bool, typer.Option("--exact", help="Judge what files say, computed in floats.")] = False
    rounds: Annotated[
        int | None, typer.Option(help="Times that costs are measured again with all weights quantized (default: 2).")
    ] = None

    def options(self, model: str, made_for: Literal["cpu", "gpu", "any"], context: int | None, device: str,
                threads: int | None) -> Options:
        """Raises UsageError without a calibration text, where the model brings none."""
        from octavo.evals.judge.judged_text import DEMO, SHIPPED
        from octavo.frontier.plan import ROUNDS, SAMPLES, Options

        calibration = self.calibration or (DEMO if model == DEMO else None)
        if calibration is None:
            raise UsageError("--calibration TEXT is missing: what the files are made by, like what the model will read")
        return Options(
            calibration, made_for, self.method, SAMPLES if self.samples is None else self.samples, context,
            rounds=ROUNDS if self.rounds is None else self.rounds,
            text=self.text or (DEMO if model == DEMO else SHIPPED), chunks=self.chunks, exact=self.exact,
            device=device, threads=threads,
        )


def frontier(
    model: ModelName,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="The folder to write, a new one or that of a run "
                          "before, which goes on.")
    ],
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="LIST", help="Bits per weight, or sizes with a unit: 2.5,3,4.2GiB (default: "
                     "those of 2.5,3,3.5,4,5 that the model can have).")
    ] = None,
    made_for: Annotated[
        Literal["cpu", "gpu", "any"],
        typer.Option("--for", help="What the files are to be fast on: cpu leaves out types that it has to unpack.")
    ] = "any",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made and what it takes, and stop.")]
    = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, whatever is in DIR.")] = False,
    context: Window = None, device: Device = "auto", threads: Threads = None, offline: Offline = False, *,
    search: Search, as_json: AsJson = False,
) -> None:
    """Make the best file of each size: `octavo frontier model-f16.gguf -o files --calibration text.txt`.

    Types of each tensor by measured divergence, with an importance matrix; judged on another text, and timed.
    A run that was stopped or killed goes on with the same command.
    """
    require_matplotlib("a frontier's page needs matplotlib")
    from octavo.frontier.page import write_page
    from octavo.frontier.plan import USUAL, Subject, plan, require_folder, targets
    from octavo.frontier.run import make_frontier, require_same

    wanted = targets(USUAL if sizes is None else sizes)
    options = search.options(model, made_for, context, device, threads)
    require_folder(output)
    with Subject(local(model, offline), options) as subject:
        planned = plan(subject, output, wanted, options, leave_out=sizes is None)
        if dry_run:
            require_same(subject, output, options, restart=restart)
        if dry_run or not as_json:
            _announce(planned, subject, output, as_json=as_json)
        if dry_run:
            return
        with stop_told(), Bar() as bar:
            made = make_frontier(subject, output, planned, options, restart=restart, progress=bar.show)
        write_page(made, output)
    if as_json:
        print(to_json(asdict(made)))
    else:
        _show(made, model, output)


def _announce(planned: Plan, subject: Subject, folder: str, *, as_json: bool) -> None:
    from octavo.frontier.plan import rounded

    if as_json:
        files = [{"name": f.name, "target": str(f.target), "bytes": f.budget} for f in planned.files]
        print(to_json(asdict(planned) | {"files": files}))
        return
    values = sum(t.size for t in subject.source.tensors)
    rows = [(printable(f.name), str(f.target), size(f.budget), f"{8 * f.budget / values:.2f}") for f in planned.files]
    print_columns(("file", "at most", "tensors", "bits per weight"), rows, ("tensors", "bits per weight"))
    takes = "" if planned.seconds is None else f", about {rounded(planned.seconds)} at the speed of this moment"
    print(
        f"in {printable(folder)}: {size(planned.disk)} of disk, about {size(planned.memory)} of memory; "
        f"{len(subject.samples)} windows of {subject.context} tokens to calibrate, {planned.groups} groups of weights; "
        f"{planned.windows:,} windows to run{takes}, and those to judge by"
    )


def _show(made: Frontier, model: str, folder: str) -> None:
    from octavo.cli.evaluate.compare import interval
    from octavo.evals.judge.judgement import remarks
    from octavo.frontier.page import beside, rate

    verdicts = {v.name: v for v in made.judgement.files}
    rows = []
    for each in made.files:
        v = verdicts.get(each.name)
        judged = ("", "", "", "") if v is None else (
            f"{v.sizes.body_bits:.2f}", interval(v.kl, ".3g"), interval(v.same_top, ".1%"), interval(v.ratio, ".4g"))
        rows.append((printable(each.name), size(each.nbytes), f"{each.bits:.2f}", *judged,
                     rate(each.prompt, each.prompt_runs), rate(each.decode, each.decode_runs)))
    numbers = ("tensors", "bits", "body", "prompt tok/s", "decode tok/s")
    print_columns(("file", "tensors", "bits", "body", "KL [95%]", "same top [95%]", "ppl / base [95%]",
                   "prompt tok/s", "decode tok/s"), rows, numbers)
    found = made.judgement
    print(f"\njudged on {printable(found.text)}, {found.positions:,} positions; bits are per weight, body without the "
          "head (embedding and output)")
    if found.overlap is not None:
        print(f"overlap: {found.overlap:.2%} of its runs of 12 words are in the calibration text")
    for remark in remarks(found):
        print(printable(remark))
    if any(each.prompt is not None for each in made.files):
        print("speeds are of this machine, whatever else it did meanwhile; two figures: runs differed by more than 10%")
    for name, why in found.failed.items():
        print(f"{printable(name)} could not be judged: {printable(why)}")
    for v in found.files:
        for why in v.suspicions:
            print(f"{printable(v.name)} looks broken: {printable(why)}")
    print(f"{printable(os.path.join(folder, 'frontier.html'))}: the page; frontier.json, frontier.svg: the same")
    print(f"presets and other files beside these: {printable(beside(model, folder))}")
