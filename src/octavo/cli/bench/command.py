"""`octavo bench`: speed of models and of single ops, and models to measure it with."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from octavo.cli.bench.gemm_command import gemm
from octavo.cli.bench.results_file import numbers, write
from octavo.cli.bench.serve_command import serve
from octavo.cli.bench.tune_command import tune
from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.lora_command import adapters
from octavo.cli.option_groups import grouped
from octavo.cli.option_names import App, Commands
from octavo.cli.options import AsJson, Device, Draft, Threads, Where, gpu_layers
from octavo.cli.plain import to_json
from octavo.cli.progress_bar import Bar
from octavo.errors import UsageError
from octavo.sizes import size

if TYPE_CHECKING:
    from octavo.bench.speculation import Drafts

SHAPES = (
    "qwen3-0.6b, qwen3-1.7b, qwen3-8b, qwen3-14b, qwen3-30b-a3b, qwen3.5-9b, lfm2-1.2b, granite-4.0-h-micro, "
    "mamba2-2.7b, mamba-2.8b, rwkv7-1.5b, llama3-8b, llama3-70b, gemma3-4b, gpt-oss-20b or deepseek-v2-lite."
)
app = App(cls=Commands, help="Measure speed.", no_args_is_help=True)
app.command("gemm")(grouped(gemm))
app.command("serve")(grouped(serve))
app.command("tune")(grouped(tune))


@dataclass
class DraftFlags:
    """Replies with drafts."""

    speculate: Annotated[
        Literal["auto", "lookup", "mtp", "draft", "simulated"] | None,
        typer.Option("--speculate", metavar="KIND", help="Also compare replies with drafts to those without: auto (as "
                     "run and serve have it), lookup, mtp, draft or simulated."),
    ] = None
    draft: Draft = None
    acceptance: Annotated[
        float | None,
        typer.Option(metavar="P", help="How likely a token of simulated drafts is right, if those before it are."),
    ] = None

    @property
    def drafts(self) -> Drafts | None:
        """Raises UsageError for options that do not go together."""
        if self.acceptance is not None and self.speculate != "simulated":
            raise UsageError("--acceptance is for --speculate simulated")
        if self.draft is not None and self.speculate not in ("auto", "mtp", "draft"):
            raise UsageError(f"--draft {self.draft} is for --speculate auto, mtp or draft")
        if self.draft is None and self.speculate == "draft":
            raise UsageError("--speculate draft needs --draft MODEL, which names what drafts")
        from octavo.bench.speculation import Drafts

        return None if self.speculate is None else Drafts(self.speculate, self.acceptance)


@dataclass
class Told:
    """How results are printed, and where else they are written."""

    format: Annotated[
        Literal["md", "csv"] | None, typer.Option(help="A table of Markdown (the default), or CSV with all rounds.")
    ] = None
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="Also write it to this file, or into this folder.")
    ] = None
    as_json: AsJson = False

    @property
    def kind(self) -> Literal["md", "csv", "json"]:
        """Raises UsageError for two of them."""
        if self.as_json and self.format is not None:
            raise UsageError(f"--json and --format {self.format} can't be used together")
        return "json" if self.as_json else self.format or "md"


def model(
    model: ModelName,
    prompt: Annotated[int, typer.Option("-p", "--prompt", help="Tokens of the prompt (0: no prefill test).")] = 256,
    generate: Annotated[
        int, typer.Option("-n", "--generate", help="Tokens to decode (0: no decode test), and of replies with drafts "
                          "(0: 96).")
    ] = 64,
    rounds: Annotated[int, typer.Option("-r", "--rounds", help="Runs of each test.")] = 5,
    batch: Annotated[str, typer.Option(help="Sequences that decode together, e.g. 1,4,8.")] = "1",
    depth: Annotated[str, typer.Option(help="Tokens before the decoded ones, e.g. 0,4096.")] = "0",
    peer: Annotated[
        Literal["llama.cpp"] | None, typer.Option(help="Another program to run in turns, for comparison.")
    ] = None,
    peer_python: Annotated[
        str | None, typer.Option(help="The Python that has the peer's package (default: this one).")
    ] = None,
    *, where: Where, drafting: DraftFlags, offline: Offline = False, told: Told,
) -> None:
    """Time prefill and decode of a model: `octavo bench model model.gguf --peer llama.cpp`."""
    from octavo.bench.machine import shortened
    from octavo.bench.render import FORMATS, file_name, to_markdown
    from octavo.bench.result import BenchOptions, bench_model
    from octavo.io.atomic import require_target
    from octavo.io.distinct_paths import MODEL, model_files, require_apart

    kind, output = told.kind, told.output
    options = BenchOptions(
        prompt=prompt, generate=generate, rounds=rounds, batches=numbers("--batch", batch),
        depths=numbers("--depth", depth), peer=peer, peer_python=peer_python, threads=where.threads,
        device=where.device, kv=where.kv, attention=where.attention, gpu_layers=gpu_layers(where.layers),
        lora=tuple(adapters(where.lora, offline).items()), tensor_parallel=where.tensor_parallel,
        pipeline=where.pipeline, n_cpu_moe=where.cpu_experts, override_tensor=where.overrides,
        drafts=drafting.drafts, draft=None if drafting.draft is None else local(drafting.draft, offline),
        command=shortened(["octavo", *sys.argv[1:]]),
    )
    if output is not None and not os.path.isdir(output):
        require_target(output)
    path = local(model, offline)
    if output is not None:
        require_apart(output, {MODEL: model_files(path, ())})
    with Bar() as bar:
        result = bench_model(path, options, bar.show, bar.tell)
    try:
        if output is not None:
            write(output, file_name(result, kind), FORMATS[kind](result))
    finally:  # what was measured is told where no file has room for it
        text = (to_markdown if output is not None else FORMATS[kind])(result)
        print(text.replace("**", "") if sys.stdout.isatty() else text, end="")


app.command("model")(grouped(model))


@app.command("ops")
def ops(
    op: Annotated[list[str] | None, typer.Option("--op", help="Only this op; may be repeated.")] = None,
    format: Annotated[
        list[str] | None, typer.Option("--format", help="Only weights in this format, e.g. Q4_K; may be repeated.")
    ] = None,
    tokens: Annotated[str, typer.Option(help="Tokens in the step.")] = "1,2,4,8,512",
    threads: Threads = None, device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each case, line by line.")] = False,
) -> None:
    """Time single ops on the shapes of real models, weights read from memory."""
    from octavo.backends import select as backends_of
    from octavo.backends.cores import cores
    from octavo.bench.cases import SPEED_CASES, select
    from octavo.bench.limits import read_limit_of
    from octavo.bench.op_bench import time_cases

    wanted = [f.upper() for f in format or ()]
    cases = select(SPEED_CASES, ops=op or (), formats=wanted, tokens=numbers("--tokens", tokens))
    if not cases:
        raise UsageError("no case has this op, format and number of tokens")
    used = cores() if threads is None else threads
    width = max(len(c.name) for c in cases)
    if not as_json:
        print(f"{'case':<{width}} {'time':>10} {'GB/s':>7} {'of limit':>8} {'GOPS':>7}")
    backends = backends_of(device, used)
    rows = []
    for row in time_cases(cases, backends, limit=read_limit_of(backends[0], used)):
        print(to_json(row) if as_json else _line(row, width), flush=True)
        rows.append(row)
    if not as_json:
        _say_what_misleads(rows)


@app.command("make")
def make(
    shape: Annotated[str, typer.Argument(metavar="SHAPE", help=SHAPES)],
    preset: Annotated[
        str,
        typer.Argument(
            metavar="PRESET", help="Q4_K_M, Q5_K_M, MXFP4_MOE, a format, e.g. Q8_0, or for a folder a scheme, e.g. fp8."
        ),
    ],
    output: Annotated[
        str, typer.Argument(metavar="OUT", help="The file to write, OUT.gguf, or the folder, of BF16 and F16 too.")
    ],
    layout: Annotated[
        Literal["compressed-tensors", "gptq", "awq", "qqq"] | None, typer.Option(help="Of a folder in a scheme.")
    ] = None,
) -> None:
    """Write a model with a real one's shape and random weights: `octavo bench make qwen3-1.7b Q4_K_M out.gguf`."""
    from octavo.bench import synthetic, synthetic_folder

    with Bar() as bar:
        def show(done: int, total: int) -> None:
            bar.show(_gb(done, total), done, total)

        if synthetic_folder.is_folder(preset, output):
            chosen = layout or "compressed-tensors"
            synthetic_folder.make_folder(shape, preset, output, layout=chosen, progress=show)
        elif layout is not None:
            raise UsageError(f"--layout {layout} with {preset}, which is written as a GGUF file")
        else:
            synthetic.make(shape, preset, output, progress=show)
    files = [output] if os.path.isfile(output) else [os.path.join(output, name) for name in os.listdir(output)]
    print(f"{output}: {shape} with random weights, {preset.upper()}, {size(sum(map(os.path.getsize, files)))}")


def _say_what_misleads(rows: list[dict[str, Any]]) -> None:
    """A line where others had part of the machine, and one where more than the limit was reached."""
    from octavo.bench.others import BUSY, OVER

    others = max(row["others_cpu"] or 0.0 for row in rows)
    if others > BUSY:
        print(f"Busy machine: other programs took up to {others:.0%} of the CPU, so rates mislead.")
    if any((row["share_of_read_limit"] or 0.0) > OVER for row in rows):
        print("over: more than the read limit, of what a cache holds or while others had the machine.")


def _line(row: dict[str, Any], width: int) -> str:
    from octavo.bench.others import OVER

    limit = row["share_of_read_limit"]
    share = f"{'' if limit is None else 'over' if limit > OVER else format(limit, '.0%'):>8}"
    speeds = f"{row['gbps']:>7.1f} {share} {row['gops']:>7,.0f}"
    digits = 1 if row["seconds"] < 1e-4 else 0
    return f"{row['name']:<{width}} {row['seconds'] * 1e6:>7,.{digits}f} us {speeds}"


def _gb(done: int, total: int) -> str:
    return f"{done / 1e9:.2f} of {total / 1e9:.2f} GB"
