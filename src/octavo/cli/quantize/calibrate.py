"""`octavo calibrate`: what a model's products are given over a text, for quantizers that go by it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.columns import print_columns
from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.notes import notes_told
from octavo.cli.options import AsJson, Device, Threads
from octavo.cli.plain import printable, to_json
from octavo.errors import UsageError
from octavo.sizes import size

if TYPE_CHECKING:
    from octavo.calibrate.statistics_run import StatisticsRun
    from octavo.quantizers.statistics import ChannelStatistics
    from octavo.quantizers.statistics.statistics_file import Statistics

CACHES = ("cache_k", "cache_v")
"""Ends of caches' names; all their rows, heads, have the same tokens."""
SHOWN = 8
"""Experts with too few tokens that are named."""


@dataclass
class Drawn:
    """Which samples of a text."""

    samples: Annotated[int, typer.Option(help="Samples of the text, at most.")] = 128
    context: Annotated[
        int | None,
        typer.Option("--ctx-size", "-c", help="Tokens of a sample (default: 2048, or the model's if it has fewer)."),
    ] = None
    seed: Annotated[int, typer.Option("--seed", "-s", help="The same seed, the same samples.")] = 0


def calibrate(
    model: ModelName,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="A UTF-8 text, a .jsonl file, or `demo`: the demo model's questions.")
    ],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="The statistics, a safetensors file.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how large the run is, and stop.")] = False,
    device: Device = "auto", threads: Threads = None, offline: Offline = False, *, drawn: Drawn,
    scales: Annotated[
        str | None,
        typer.Option("--cache-scales", metavar="FILE",
                     help="Write a copy of the model with scales for its KV cache: a file or a folder, as it is.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep statistics of activations over a text: `octavo calibrate model.gguf wiki.txt -o s.safetensors`.

    Stopped or killed, the same command with --resume goes on, and gives the same file.
    """
    from octavo.calibrate.caches.scales import require_scales, write_scales
    from octavo.calibrate.statistics_run import StatisticsOptions, StatisticsRun
    from octavo.io.distinct_paths import require_apart

    if output is None and not dry_run:
        raise UsageError("-o FILE is missing: where the statistics go (or --dry-run)")
    path = local(model, offline)
    clips = scales is not None and not os.path.isdir(path)
    options = StatisticsOptions(drawn.samples, drawn.context, drawn.seed, device, threads, clips)
    with StatisticsRun(path, text, options) as calibration:
        if output is not None:
            calibration.require_apart(output)
        if scales is not None:
            require_scales(calibration.spec, scales)
            calibration.require_apart(scales)
            require_apart(scales, {"the file of -o": [] if output is None else [output]})
        if dry_run or not as_json:
            _announce(calibration, as_json=as_json)
        if output is None or dry_run:
            return
        statistics = _run(calibration, output, resume=resume)
        if scales is not None:
            write_scales(calibration.spec, statistics, scales)
    if as_json:
        print(to_json(report(statistics, output)))
    else:
        show(statistics, output)


def _run(calibration: StatisticsRun, output: str, *, resume: bool) -> Statistics:
    from octavo.cli.progress_bar import Bar

    with notes_told(), Bar() as bar:
        return calibration.run(
            output, resume=resume,
            progress=lambda done, total: bar.show(f"part {done} of {total}", done, total),
        )


def _announce(calibration: StatisticsRun, *, as_json: bool) -> None:
    """Say how large a run is."""
    samples, tokens, disk = len(calibration.samples), calibration.samples.all["tokens"], calibration.disk
    if as_json:
        print(to_json({"samples": samples, "tokens": tokens, "disk": disk}))
    else:
        print(f"{samples} samples, {tokens:,} tokens" + (f"; keeps {size(disk)} on the disk" if disk else ""))


def report(statistics: Statistics, output: str) -> dict[str, Any]:
    """The statistics as an object for JSON."""
    readers = _readers(statistics)
    inputs = [{**_row(name, found), "weights": readers[name]} for name, found in statistics.inputs.items()]
    caches = [_row(name, found) for name, found in statistics.caches.items()]
    starved = [{"input": name, "expert": e, "tokens": n} for name, e, n in statistics.starved()]
    return {"file": output, **statistics.about, "inputs": inputs, "caches": caches, "starved": starved}


def _row(name: str, found: ChannelStatistics) -> dict[str, Any]:
    """An input or a cache in a few numbers."""
    tokens = found.tokens.max() if name.endswith(CACHES) else found.tokens.sum()
    rows, channels = found.shape
    return {
        "name": name, "rows": rows, "channels": channels, "tokens": int(tokens), "absmax": float(found.absmax.max()),
        "mean_abs": float(found.mean_abs.mean()), "rms": float(found.mean_square.mean() ** 0.5),
    }


def show(statistics: Statistics, output: str) -> None:
    """Print a row for each input and cache, and which experts met too few tokens."""
    readers = _readers(statistics)
    headings = ("input", "read by", "tokens", "channels", "largest", "mean |x|", "rms", "largest / rms")
    rows = [
        _cells(_row(name, found), len(readers.get(name, ())))
        for part in (statistics.inputs, statistics.caches)
        for name, found in part.items()
    ]
    print_columns(headings, rows, headings[1:])
    print(f"{printable(output)}: {len(statistics.inputs)} inputs, {len(statistics.caches)} caches")
    starved = statistics.starved()
    if starved:
        named = ", ".join(f"{printable(name)} expert {e} ({n})" for name, e, n in starved[:SHOWN])
        more = f" and {len(starved) - SHOWN} more" if len(starved) > SHOWN else ""
        print(f"octavo: experts with fewer tokens than channels: {named}{more}; a longer text helps", file=sys.stderr)


def _cells(row: dict[str, Any], readers: int) -> tuple[str, ...]:
    numbers = [f"{row[key]:.4g}" for key in ("absmax", "mean_abs", "rms")]
    ratio = f"{row['absmax'] / row['rms']:.1f}" if row["rms"] else ""
    channels = f"{row['channels']}" if row["rows"] == 1 else f"{row['rows']} x {row['channels']}"
    return printable(row["name"]), f"{readers}" if readers else "", f"{row['tokens']:,}", channels, *numbers, ratio


def _readers(statistics: Statistics) -> dict[str, list[str]]:
    """The weights that read each input."""
    found = {name: [name] for name in statistics.inputs}
    for weight, first in statistics.shared.items():
        found[first].append(weight)
    return found
