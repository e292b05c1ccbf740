"""`octavo profile`: where a step's time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.columns import print_columns, show_counters
from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.options import AsJson, Where
from octavo.cli.plain import printable, to_json
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.bench.profile import Profile, Rooflines
    from octavo.runtime import Engine


def profile(
    model: ModelName,
    prompt: Annotated[int, typer.Option("-p", "--prompt", help="Tokens of the step that is profiled.")] = 256,
    decode: Annotated[bool, typer.Option("--decode", help="Profile a decode step instead: one token.")] = False,
    depth: Annotated[int, typer.Option(min=0, help="Tokens in the context before it.")] = 0,
    rounds: Annotated[int, typer.Option("-r", "--rounds", help="Runs of the step.")] = 5,
    *, where: Where,
    counters: Annotated[
        bool, typer.Option("--counters", help="Read an NVIDIA GPU's counters instead, by its program ncu.")
    ] = False,
    offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Show a step's time by op and by node: `octavo profile model.gguf --decode --depth 4096`."""
    from octavo.bench.profile import profile as measure
    from octavo.bench.profile import ready_engine, rooflines_of
    from octavo.huggingface import open_model_file

    new = 1 if decode else prompt
    path = local(model, offline)
    show = _show_counters if counters else _show
    with open_model_file(path) as file:
        engine = ready_engine(file, new=new, depth=depth, **where.given(offline))
        if counters:
            kinds = {"cache_type": where.kv, "attention": where.attention}
            report = _counted(engine, {"model": str(path), "new": new, "depth": depth, **kinds})
        else:
            rooflines = rooflines_of(engine)  # while there are no weights that take the memory
            report = as_object(measure(engine, new, depth, rounds), new, depth, rooflines)
    if as_json:
        print(to_json(report))
    else:
        show(report)


def _counted(engine: Engine, step: dict[str, Any]) -> dict[str, Any]:
    """What `--counters --json` prints: the step, and rows by kernel. Another process runs it, under ncu."""
    from octavo.bench.counters import by_kernel, read_counters

    if set(engine.schedule.backends.values()) != {0} or engine.backends[0].name != "gpu":
        raise UsageError("--counters reads those of a GPU that all of the model is on (--device gpu)")
    return {
        "tokens": step["new"],
        "depth": step["depth"],
        "kernels": by_kernel(read_counters(step), engine.graph.nodes),
    }


def as_object(measured: Profile, new: int, depth: int, rooflines: Rooflines) -> dict[str, Any]:
    """What `--json` prints: the step, its seconds whole and node by node, limits, and rows by op and by node."""
    from octavo.bench.profile import by_node, by_op, group

    ops = [_named(row, "op", "backend") for row in group(measured.nodes, by_op, rooflines)]
    nodes = [_named(row, "op", "node", "formats") for row in group(measured.nodes, by_node, rooflines)]
    return {
        "tokens": new, "depth": depth, "step_seconds": measured.step_seconds, "nodes_seconds": measured.seconds,
        "limits": {name: {"gbps": line.read, "gops": dict(line.gops)} for name, line in rooflines.items() if line.read},
        "ops": ops, "nodes": nodes,
    }


def _named(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """A row whose key is taken apart into columns of its own."""
    rest = {name: value for name, value in row.items() if name != "key"}
    return dict(zip(names, row["key"], strict=True)) | rest


def _show(report: dict[str, Any]) -> None:
    step, nodes, tokens = report["step_seconds"], report["nodes_seconds"], report["tokens"]
    depth = f"after {report['depth']:,} tokens" if report["depth"] else "in an empty context"
    print(f"Step of {tokens:,} token{'s' * (tokens > 1)} {depth}: {step * 1e3:.2f} ms ({tokens / step:,.1f} tokens/s); "
          f"its nodes run one by one: {nodes * 1e3:.2f} ms")
    for name, limits in report["limits"].items():
        gops = "".join(f", {gops:,.0f} GOPS of {bits} bits" for bits, gops in limits["gops"].items())
        print(f"Limit of {name}: {limits['gbps']:,.0f} GB/s{gops}")
    print()
    _table(report["ops"], "op", "backend")
    print()
    _table(report["nodes"], "op", "node", "formats")
    print("\nof limit: least possible time / time taken; empty where the limit is not known, as of floats on a CPU;\n"
          "          over: a cache had the data, or the machine was busy when the limit was measured")


def _table(rows: list[dict[str, Any]], *names: str) -> None:
    numbers = ("calls", "ms", "share", "GB/s", "GOPS", "of limit")
    cells = [
        (*(printable(row[name]) for name in names), str(row["calls"]), f"{row['seconds'] * 1e3:.2f}",
         f"{row['share']:.1%}", f"{row['gbps']:.1f}" if row["bytes"] else "",
         f"{row['gops']:,.0f}" if row["operations"] else "", _share(row["of_limit"]),
         row["bound"] or "")
        for row in rows
    ]
    print_columns((*names, *numbers, "bound"), cells, numbers)


def _share(of_limit: float | None) -> str:
    """Above 1 the limit was measured beside other work, or a cache had the data."""
    return "" if of_limit is None else "over" if of_limit > 1 else f"{of_limit:.0%}"


def _show_counters(report: dict[str, Any]) -> None:
    show_counters(report["kernels"], "op", "kernel", "formats")
