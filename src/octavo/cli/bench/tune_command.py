"""`octavo bench tune`: the fastest kernels for a model on this GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.plain import to_json
from octavo.errors import BackendError, UsageError

if TYPE_CHECKING:
    from octavo.bench.tune import Timed
    from octavo.bench.tune_steps import TimedStep


def tune(
    model: ModelName,
    again: Annotated[bool, typer.Option("--again", help="Time matrices again that the table has already.")] = False,
    offline: Offline = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each choice, a line each.")] = False,
) -> None:
    """Time this GPU's kernels on a model's matrices and keep the fastest: `octavo bench tune model.gguf`."""
    from octavo.backends import select as backends_of
    from octavo.backends.cores import cores
    from octavo.cli.inspect.facts import engine
    from octavo.huggingface import open_model_file

    path = local(model, offline)
    try:
        backend: Any = backends_of("gpu", cores())[0]
    except BackendError as error:
        from octavo.backends.gpu.device.torch_device import WITHOUT

        why = str(error).replace(f"; {WITHOUT}", "")  # an option of other commands
        raise UsageError(f"bench tune times kernels on a GPU; {why}") from None

    from octavo.backends.gpu.matmul.tuned.tuned_table import user_file
    from octavo.bench import gpu, tune_steps
    from octavo.bench.tune import matrices
    from octavo.bench.tune import tune as timed

    if not gpu.has_events(backend):
        raise UsageError(f"kernels are timed on a GPU, and here they run on {backend.target.device}")
    with open_model_file(path) as file:
        wanted = matrices(engine(file, None, "f16", "gpu").schedule)
        for row in timed(wanted, backend, again=again):
            print(to_json(as_object(row)) if as_json else _line(row), flush=True)
        for step in tune_steps.keep_what_steps_gain(wanted, backend, tune_steps.timer_for(file)):
            print(to_json({**step._asdict(), "kept": step.kept}) if as_json else _step_line(step), flush=True)
    print(f"{user_file(backend.target.arch)}: {len(wanted)} matrices of {path}")


def as_object(row: Timed) -> dict[str, Any]:
    """A choice as JSON takes it."""
    name, numbers = row.choice
    return {
        "format": row.matrix.format.name, "n": row.matrix.n, "k": row.matrix.k, "tokens": row.tokens, "kernel": name,
        "shape": list(numbers), "microseconds": 1e6 * row.seconds, "microseconds_before": 1e6 * row.before,
        "kernels": {name: 1e6 * seconds for name, seconds in row.kernels.items()},
    }


def _line(row: Timed) -> str:
    name, numbers = row.choice
    size = f"{row.matrix.format.name} {row.matrix.n:,} x {row.matrix.k:,}"
    shape = " ".join(map(str, numbers))
    return (
        f"{size:<24} {row.tokens:>5} tokens  {1e6 * row.before:>8,.1f} -> {1e6 * row.seconds:>8,.1f} us  {name} {shape}"
    )


def _step_line(step: TimedStep) -> str:
    verdict = "kept" if step.kept else "no faster: as before"
    return f"steps of {step.tokens:>5} tokens  {1e3 * step.before:>8,.2f} -> {1e3 * step.after:>8,.2f} ms  {verdict}"
