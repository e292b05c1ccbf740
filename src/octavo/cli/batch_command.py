"""`octavo batch`: a file of requests to a file of responses."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.lora_command import adapters
from octavo.cli.notes import stop_told
from octavo.cli.options import RAY_ADDRESS_HELP, AsJson, Context, Where
from octavo.cli.plain import to_json
from octavo.cli.progress_bar import Bar
from octavo.cli.run.grammar_options import grammar_option
from octavo.cli.serve.command import require_packages
from octavo.cli.serve.defaults import Defaults, default_option
from octavo.cli.serve.options import EngineLimits, engine_options
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.batch.batch_file import BatchOptions, BatchSummary

FAILED = 1
"""The exit status where some lines have errors."""
PIPE = "-"
replica_option = partial(typer.Option, rich_help_panel="Replicas")


@dataclass
class LineDefaults(Defaults):
    """What counts where a line does not say otherwise."""

    seed: Annotated[
        int, default_option("--seed", "-s", help="Each line's seed is made of this and its custom_id; -1: random ones.")
    ] = 0
    json_schema: Annotated[
        str | None, default_option(metavar="SCHEMA|FILE", help="A JSON schema that replies follow, or a file with it.")
    ] = None
    grammar: Annotated[
        str | None, default_option(metavar="GRAMMAR|FILE", help="A GBNF or Lark grammar, or a file with it.")
    ] = None


@dataclass
class Spread:
    """Over how many engines a batch is spread, and where."""

    replicas: Annotated[
        int | None,
        replica_option(min=1, help="Engines, each with a GPU or its share of the cores, placed by Ray (default: one "
                       "here without Ray; with --ray-address one for each GPU or node)."),
    ] = None
    ray_address: Annotated[
        str | None, replica_option(metavar="ADDRESS", help=RAY_ADDRESS_HELP)
    ] = None


def batch(
    model: ModelName,
    source: Annotated[str, typer.Argument(metavar="IN", help="A file with a request in JSON per line.")],
    output: Annotated[str, typer.Argument(metavar="OUT", help="The file that responses are appended to.")],
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew: delete the responses in OUT.")] = False,
    *, spread: Spread, ctx: Context = None, defaults: LineDefaults, where: Where, limits: EngineLimits,
    offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Answer a file of requests: `octavo batch model.gguf requests.jsonl responses.jsonl`.

    A line is a request in OpenAI's batch format, or an object with messages, prompt or input, or a text.
    A prompt must be in quotation marks.
    The same command continues a batch that was killed.
    Lines that can't be answered are in responses.errors.jsonl, and the exit status is then 1.
    """
    require_packages("a batch")
    from octavo.batch.batch_file import answer_file

    if PIPE in (source, output):
        raise UsageError("IN and OUT are files: IN is read more than once, and OUT tells what is done")
    path = local(model, offline)
    options = _options(path, model, spread, ctx, defaults, where, limits, offline)
    with stop_told(lambda: f"the same command goes on where {output} ends"), Bar() as bar:
        summary = answer_file(source, output, options, restart=restart, show=bar.show)
    _tell(model, summary, as_json=as_json)
    if summary.failed:
        raise typer.Exit(FAILED)


def _options(
    path: str, model: str, spread: Spread, ctx: int | None, defaults: LineDefaults, where: Where, limits: EngineLimits,
    offline: bool,
) -> BatchOptions:
    from octavo.batch.batch_file import BatchOptions
    from octavo.io.hub.download_cache import shown_name
    from octavo.server.serve_options import ServerOptions

    lora = tuple((os.path.abspath(adapter), scale) for adapter, scale in adapters(where.lora, offline).items())
    given = {**defaults.given(), "seed": -1}
    server = ServerOptions(name=shown_name(path).removesuffix(".gguf"), lora=lora, **given)
    named = os.path.abspath(path) if os.path.lexists(model) else model  # other machines have a name's files elsewhere
    engine = engine_options(named, ctx, where, limits, lora, itl_target=0.0)
    return BatchOptions(
        engine, server, seed=None if defaults.seed == -1 else defaults.seed,
        grammar=grammar_option(defaults.json_schema, defaults.grammar),
        replicas=spread.replicas, ray_address=spread.ray_address,
    )


def _tell(model: str, summary: BatchSummary, *, as_json: bool) -> None:
    counts = summary.counts
    seconds = counts.seconds
    rate = counts.completion_tokens / seconds if seconds else 0.0
    if as_json:
        print(to_json({
            "model": model, **summary.files, "lines": summary.lines, "before": summary.before, "done": summary.done,
            "failed": summary.failed, "seconds": round(seconds, 3), "prompt_tokens": counts.prompt_tokens,
            "cached_tokens": counts.cached_tokens, "completion_tokens": counts.completion_tokens,
        }))
        return
    told = f"{summary.done:,} of {summary.lines:,} {'line is' if summary.lines == 1 else 'lines are'} done"
    if summary.before:
        told += f" ({'all' if summary.before == summary.done else f'{summary.before:,}'} of them before this run)"
    if counts.done:
        told += (
            f", {seconds:.1f} s, {counts.prompt_tokens:,} prompt tokens ({counts.cached_tokens:,} cached), "
            f"{counts.completion_tokens:,} completion tokens ({rate:.1f}/s)"
        )
    print(f"octavo: {summary.files['output']}: {told}", file=sys.stderr)
    if summary.failed:
        has = "line has an error" if summary.failed == 1 else "lines have errors"
        print(f"octavo: {summary.failed:,} {has}: see {summary.files['errors']}", file=sys.stderr)
