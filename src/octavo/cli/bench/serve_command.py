"""`octavo bench serve`: how fast a server answers many at once."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from octavo.cli.bench.results_file import numbers, write
from octavo.cli.hub.models import local
from octavo.cli.options import AsJson
from octavo.cli.progress_bar import Bar
from octavo.errors import UsageError, require_matplotlib

if TYPE_CHECKING:
    from octavo.bench.serving.serving_result import ServingOptions


@dataclass
class ServingFlags:
    """What each request is."""

    requests: Annotated[
        int | None,
        typer.Option(help="Requests of a run (default: 4 for each stream; with b 3 in all, with c 1 for each)."),
    ] = None
    input_tokens: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 128
    output_tokens: Annotated[int, typer.Option(help="Tokens of a reply.")] = 128
    rate: Annotated[
        float | None, typer.Option(help="Requests a second, at random times (default: the next when one ends).")
    ] = None
    goodput: Annotated[
        str | None, typer.Option(metavar="LIMITS", help="Count replies within limits, in ms, e.g. ttft:2000,tpot:200.")
    ] = None
    chat: Annotated[bool, typer.Option("--chat", help="Ask /v1/chat/completions in workloads a and b too.")] = False
    model: Annotated[str | None, typer.Option(help="The name to ask for (default: the first that is listed).")] = None
    temperature: Annotated[float, typer.Option("--temp", "--temperature", help="The temperature of sampling.")] = 0.0
    ignore_eos: Annotated[bool, typer.Option(help="Ask for replies of full length (few other servers can).")] = (
        True
    )
    key: Annotated[str | None, typer.Option(help="The server's API key.")] = None
    seed: Annotated[int | None, typer.Option("-s", "--seed", help="Seed of the prompts (default: new ones).")] = None


def serve(
    server: Annotated[str, typer.Argument(metavar="URL|MODEL", help="A running server's URL, or a model to serve.")],
    workload: Annotated[
        Literal["a", "b", "c"],
        typer.Option("-w", "--workload", help="a: short requests; b: long prompts among streams; c: conversations."),
    ] = "a",
    streams: Annotated[
        str, typer.Option("-c", "--streams", help="Requests at a time, a run each, e.g. 1,4,8.")
    ] = "1,4,8",
    *, asked: ServingFlags,
    options: Annotated[
        str, typer.Option("--serve-options", metavar="TEXT", help="Options of `octavo serve`, where a model is named.")
    ] = "",
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="Write JSON to this file, or into this folder.")
    ] = None,
    picture: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Draw the result, as .png, .svg or .pdf.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time a server's answers: `octavo bench serve http://127.0.0.1:8080 -w a -c 1,4,8`."""
    from octavo.bench.render import to_json
    from octavo.bench.serving.http import address
    from octavo.bench.serving.launch import served
    from octavo.bench.serving.plot import format_of, plot
    from octavo.bench.serving.serving_report import file_name, to_markdown
    from octavo.bench.serving.serving_result import bench_server
    from octavo.io.atomic import require_target

    chosen = _options(workload, streams, asked)
    if picture is not None:
        require_matplotlib("--plot needs matplotlib")
        format_of(picture)
        require_target(picture)
    if output is not None and not os.path.isdir(output):
        require_target(output)
    is_url = server.startswith(("http://", "https://"))
    if options and is_url:
        raise UsageError("--serve-options needs a model: the server at a URL already runs")
    running = nullcontext(address(server, asked.key)) if is_url else served(local(server), shlex.split(options))
    with Bar() as bar, running as to:
        result = bench_server(to, chosen, bar.show)
    try:
        if output is not None:
            write(output, file_name(result), to_json(result))
        if picture is not None:
            plot(result, picture)
    finally:  # what was measured is told where no file has room for it
        print(to_json(result) if as_json else to_markdown(result), end="")


def _options(workload: Literal["a", "b", "c"], streams: str, asked: ServingFlags) -> ServingOptions:
    from octavo.bench.serving.serving_result import ServingOptions

    settings = {"temperature": asked.temperature, **({"ignore_eos": True} if asked.ignore_eos else {})}
    return ServingOptions(
        workload=workload, streams=numbers("--streams", streams), requests=asked.requests, input=asked.input_tokens,
        output=asked.output_tokens, rate=asked.rate, goodput=asked.goodput, model=asked.model, chat=asked.chat,
        settings=settings, seed=asked.seed, command=_command(asked.key),
    )


def _command(key: str | None) -> str:
    """The command line as it is kept: without folders, and without the key."""
    from octavo.bench.machine import shortened

    return shortened("..." if key and argument.endswith(key) else argument for argument in ["octavo", *sys.argv[1:]])
