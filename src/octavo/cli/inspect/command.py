"""`octavo inspect`: what is in a GGUF file, or in a checkpoint folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.options import AsJson, Device, Kv, Pipeline, TensorParallel, place_option, refuse
from octavo.cli.plain import brief, few, to_json
from octavo.errors import NonFiniteError

if TYPE_CHECKING:
    from octavo.graph.builder import CacheType
    from octavo.io.gguf import GGUFFile


SHOWN_TOKENS = (1, 8, 32, 512)
"""For which the kernels on a GPU are shown."""
OF_ADAPTERS = "--metadata, --tensors, --check, --json"


def inspect(
    model: ModelName,
    metadata: Annotated[bool, typer.Option("--metadata", help="List the key-value pairs.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="Print the graph: nodes, splits, buffers.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Look for NaN and Inf in all tensors.")] = False,
    scales: Annotated[
        str | None, typer.Option("--scales", metavar="TENSOR", help="Scales and minima of a tensor, with a picture.")
    ] = None,
    as_json: AsJson = False, device: Device = "auto",
    ctx: Annotated[
        int | None,
        place_option("--ctx-size", "-c", help="Tokens of context for memory and the graph (default: as for `run`)."),
    ] = None,
    kv: Kv = "f16", tensor_parallel: TensorParallel = 1, pipeline: Pipeline = 1,
    offline: Offline = False,
) -> None:
    """Show what a model is, what it takes in memory, and whether it runs here; an option shows only that part.

    Of a LoRA adapter: its rank, what it is multiplied by, which modules it changes, and of which model.
    """
    from octavo.cli.inspect import lora_file_facts as inspect_adapter
    from octavo.cli.inspect import scale_facts as inspect_scales
    from octavo.cli.inspect.facts import facts
    from octavo.huggingface import open_model_file
    from octavo.models.shared.weights import ORDER, order_of

    path = local(model, offline)
    if inspect_adapter.is_adapter(path):
        given = {
            "--graph": graph, "--tensor-parallel": tensor_parallel != 1, "--pipeline": pipeline != 1,
            "-c": ctx is not None,
            "--cache-type": kv != "f16", "--scales": scales is not None,
        }
        refuse(given, f"is of a model, and this is an adapter (allowed: {OF_ADAPTERS})")
        inspect_adapter.inspect(path, metadata=metadata, tensors=tensors, check=check, as_json=as_json)
        return
    with open_model_file(path) as file:
        report = summarize(file) | {"facts": facts(file, ctx, kv, device)}
        if tensors:
            report["tensors"] = tensor_rows(file)
        if scales is not None:
            report["scales"] = inspect_scales.scales(file, scales)
        if device == "gpu":
            report["kernels"] = _kernels(file, ctx, kv)
        if pipeline != 1 or tensor_parallel != 1:
            from octavo.cli.inspect.facts import engine, stages

            report["facts"]["stages"] = stages(engine(file, ctx, kv, device, tensor_parallel, pipeline))
            report["facts"]["ranks"] = tensor_parallel
        if graph:
            report["graph"] = _graph(file, device, ctx, kv, tensor_parallel, pipeline, as_json)
        if check:
            for name in file.tensors:
                if name.endswith(ORDER):
                    order_of(file, name)
        bad = find_non_finite(file) if check else {}
        if check:
            report["non_finite"] = bad
        if as_json:
            print(to_json(report))
        else:
            _show(report, metadata, tensors, graph, check)
            if scales is not None:
                inspect_scales.show(report["scales"])
        if bad:
            raise NonFiniteError(f"{file.path}: NaN or Inf in {len(bad)} of {len(file.tensors)} tensors: {few(bad)}")


def _show(report: dict[str, Any], metadata: bool, tensors: bool, graph: bool, check: bool) -> None:
    from octavo.cli.inspect import tables

    if not (metadata or tensors or graph or check or "scales" in report):
        tables.show(report)
    tables.show_parts(report["metadata"] if metadata else None, report["tensors"] if tensors else None)
    for line in report.get("graph", ()):
        print(line)
    if check and not report["non_finite"]:
        print("No NaN or Inf in any tensor.")


def summarize(file: GGUFFile) -> dict[str, Any]:
    """Everything but the tensors: file, parameters, a row for each tensor type, metadata (long arrays cut short).

    Of a checkpoint also how quantized weights lie in it, and how many scales for caches of 8 bits it has.
    """
    from octavo.huggingface import CheckpointFile

    folder = {}
    if isinstance(file, CheckpointFile):
        folder = {"quantized_as": file.layout, "cache_scales": len(file.kv_scales())}
    types: dict[str, dict[str, Any]] = {}
    for info in file.tensors.values():
        row = types.setdefault(info.type_name, {"type": info.type_name, "tensors": 0, "parameters": 0, "bytes": 0})
        row["tensors"] += 1
        row["parameters"] += info.size
        row["bytes"] += info.nbytes
    for row in types.values():
        row["bits_per_weight"] = 8 * row["bytes"] / row["parameters"]
    parameters = sum(row["parameters"] for row in types.values())
    return {
        "path": file.path, "files": list(file.files), "version": file.version or None,
        "alignment": file.alignment or None, **folder, "tensor_count": len(file.tensors), "parameters": parameters,
        "bytes": file.nbytes, "file_bytes": sum(os.path.getsize(path) for path in file.files),
        "bits_per_weight": 8 * file.nbytes / parameters if parameters else None,
        "types": sorted(types.values(), key=lambda row: -row["bytes"]),
        "metadata": {key: brief(file.metadata[key]) for key in file.metadata},
    }


def tensor_rows(file: GGUFFile) -> list[dict[str, Any]]:
    """A row for each tensor in file order; shapes in NumPy order (outputs, inputs). Offsets are those of GGUF files."""
    return [
        {
            "name": info.name, "type": info.type_name, "shape": list(info.shape), "parameters": info.size,
            "bytes": info.nbytes, "offset": info.offset if file.version else None,
        }
        for info in file.tensors.values()
    ]


def find_non_finite(file: GGUFFile) -> dict[str, int]:
    """Tensors that hold NaN or Inf, and how many values of each are."""
    from octavo.io.gguf import scan_non_finite

    counts = {name: scan_non_finite(file.tensor(name)) for name in file.tensors}
    return {name: count for name, count in counts.items() if count}


def _kernels(file: GGUFFile, ctx: int | None, kv: CacheType) -> list[dict[str, Any]]:
    """A row for each matrix that tokens are multiplied by: the kernel and shape that is used, by numbers of tokens."""
    from octavo.cli.inspect.facts import engine

    made = engine(file, ctx, kv, "gpu")
    from octavo.bench.tune import chosen, matrices

    arch = made.backends[0].target.arch  # type: ignore[attr-defined]
    return [
        {"format": m.format.name, "n": m.n, "k": m.k, "kernels": {n: chosen(m, n, arch) for n in SHOWN_TOKENS}}
        for m in matrices(made.schedule)
    ]


def _graph(
    file: GGUFFile, device: str, ctx: int | None, kv: CacheType, ranks: int, pipeline: int, as_json: bool
) -> Any:
    """The graph; of several ranks that of rank 0."""
    from octavo.cli.inspect.facts import engine
    from octavo.graph.show import rows, text

    made = engine(file, ctx, kv, device, ranks, pipeline)
    show = rows if as_json else text
    return list(show(made.schedule, made.backends))
