"""What a GPU's own counters say of each kernel of a step or of a product: instructions by kind, occupancy, and bytes.

NVIDIA's `ncu` (Nsight Compute) reads them: it runs `python -m octavo.bench.counters`, which makes each call of a step
within a range of NVTX that has the node's number, and repeats each kernel as often as its counters take.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.bench.gemm.gemm_subject import How
from octavo.errors import BackendError, UsageError
from octavo.graph.builder import CacheType
from octavo.graph.node import Attention, Graph, Node
from octavo.graph.plan import Plan

METRICS = {
    "nanoseconds": "gpu__time_duration.sum",
    "read": "dram__bytes_read.sum",
    "written": "dram__bytes_write.sum",
    "instructions": "smsp__sass_thread_inst_executed_pred_on.sum",
    "integer": "smsp__sass_thread_inst_executed_op_integer_pred_on.sum",
    "warps": "sm__inst_executed.sum",
    "matrix": "sm__inst_executed_pipe_tensor.sum",
    "l1": "l1tex__t_bytes.sum",
}
"""Counters by our names. Instructions and integer ones are of threads, `warps` and matrix ones of warps."""
SHARES = {
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram_share": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_share": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}
"""Counters in percent of what the GPU has at most; a GPU that lacks one has no number."""
IN_RANGE = re.compile(r":node (\d+):")
SECONDS = 600


@dataclass(frozen=True)
class KernelCounters:
    """A kernel of a step: the node whose call launched it, by its place in the graph, and its counters.

    counts  of METRICS
    shares  of SHARES, from 0 to 1; None where the GPU has no such counter
    """

    node: int
    name: str
    counts: Mapping[str, float]
    shares: Mapping[str, float | None]


def read_counters(arguments: Mapping[str, Any]) -> list[KernelCounters]:
    """The kernels in order of a step, or of a product: `arguments` are those of `run_step`, or `gemm` with those of
    `run_gemm`.

    Raises BackendError where `ncu` is not installed, or can't read counters here.
    """
    tool = shutil.which("ncu")
    if tool is None:
        raise BackendError("--counters needs NVIDIA's Nsight Compute: the program ncu is not on the PATH")
    how = ["--clock-control", "none", "--profile-from-start", "off", "--nvtx", "--csv", "--page", "raw"]
    names = ["--print-units", "base", "--metrics", ",".join((METRICS | SHARES).values())]
    step = [sys.executable, "-m", "octavo.bench.counters", json.dumps(dict(arguments))]
    try:
        done = subprocess.run([tool, *how, *names, *step], capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BackendError(f"ncu read no counters within {SECONDS} s") from None
    kernels = parse(done.stdout.splitlines())
    if not kernels:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise BackendError(
            "ncu read no counters: " + (said[-1].strip() if said else f"it ended with {done.returncode}")
        )
    return kernels


def parse(lines: Iterable[str]) -> list[KernelCounters]:
    """Kernels from what `ncu` prints: a table whose first row has names, the second units, between lines of its own.

    Raises BackendError for a kernel whose counter is missing or no number.
    """
    table = [line for line in lines if line.startswith('"')]
    kernels = []
    for row in list(csv.DictReader(io.StringIO("\n".join(table))))[1:]:
        found = next((m for value in row.values() if value and (m := IN_RANGE.search(value))), None)
        if found is not None:
            counts = {name: _number(row, metric) for name, metric in METRICS.items()}
            shares = {name: _share(row.get(metric)) for name, metric in SHARES.items()}
            kernels.append(KernelCounters(int(found[1]), row["Kernel Name"], counts, shares))
    return kernels


def _number(row: Mapping[str, str], metric: str) -> float:
    text = row.get(metric)
    try:
        return float(text.replace(",", "")) if text is not None else float("nan")
    except ValueError:
        raise BackendError(f"ncu: {metric} of {row['Kernel Name']} is {text!r}, which is not a number") from None


def _share(text: str | None) -> float | None:
    try:
        return float(text.replace(",", "")) / 100 if text else None
    except ValueError:
        return None


def by_kernel(kernels: Sequence[KernelCounters], nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Kernels of one name that compute one op with weights of the same formats, those that take longest first.

    Keys of a row: op, kernel, formats, launches, seconds, dram_bytes, f16_bytes (that its weights would have as
    float16), and those of `measures`.
    """
    groups: dict[tuple[str, str, str], list[KernelCounters]] = {}
    for kernel in kernels:
        node = nodes[kernel.node]
        formats = dict.fromkeys(i.tensor.format.name for i in node.inputs if i.op == "weight" and len(i.shape) > 1)
        groups.setdefault((node.title, kernel.name, ", ".join(formats)), []).append(kernel)
    rows = [_row(key, members, nodes) for key, members in groups.items()]
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def _row(key: tuple[str, str, str], members: Sequence[KernelCounters], nodes: Sequence[Node]) -> dict[str, Any]:
    op, kernel, formats = key
    halves = sum(2 * _weights(nodes[n]) for n in {k.node for k in members})
    return {"op": op, "kernel": kernel, "formats": formats, **measures(members), "f16_bytes": halves}


def by_product(kernels: Sequence[KernelCounters], names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each kernel of some products in order: product, kernel, and `measures`."""
    groups: dict[tuple[int, str], list[KernelCounters]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.node, kernel.name), []).append(kernel)
    return [{"product": names[node], "kernel": name, **measures(group)} for (node, name), group in groups.items()]


def measures(members: Sequence[KernelCounters]) -> dict[str, Any]:
    """Of some launches together: launches, seconds, dram_bytes, l1_bytes, integer (share of the threads' instructions),
    matrix (share of the warps' instructions).

    And by time: occupancy (warps, as a share of what fits), dram_share (of the memory's speed), tensor_share (of the
    tensor cores' cycles); None where the GPU does not count it.
    """
    total = {name: sum(k.counts[name] for k in members) for name in METRICS}
    made = {
        "launches": len(members), "seconds": total["nanoseconds"] / 1e9, "dram_bytes": total["read"] + total["written"],
        "l1_bytes": total["l1"], "integer": total["integer"] / max(total["instructions"], 1),
        "matrix": total["matrix"] / max(total["warps"], 1),
    }
    return made | {name: _by_time(members, name) for name in SHARES}


def _by_time(members: Sequence[KernelCounters], name: str) -> float | None:
    pairs = [(k.counts["nanoseconds"], k.shares[name]) for k in members]
    if any(value is None for _, value in pairs):
        return None
    return sum(time * (value or 0.0) for time, value in pairs) / max(sum(time for time, _ in pairs), 1e-9)


def _weights(node: Node) -> int:
    """Values of the matrices that all tokens are multiplied by."""
    matrices = (i.tensor for i in node.inputs if i.op == "weight" and len(i.shape) == 2)
    return sum(int(t.shape[0]) * int(t.shape[1]) for t in matrices) if node.op.startswith("mul_mat") else 0


def run_calls(plan: Plan, graph: Graph) -> None:
    """Make the calls of a plan, each within a range that has its node's place in the graph, while counters are read."""
    places = {id(node): i for i, node in enumerate(graph.nodes)}
    _in_ranges([(places[id(node)], call) for node, call in plan.calls])


def _in_ranges(calls: Sequence[tuple[int, Callable[[], object]]]) -> None:
    """Make each call, and once more within a range of its number, while counters are read."""
    import torch

    for _, call in calls:
        call()
    torch.cuda.synchronize()
    cuda: Any = torch.cuda
    cuda.profiler.start()
    for number, call in calls:
        cuda.nvtx.range_push(f"node {number}")
        call()
        cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    cuda.profiler.stop()


def run_step(model: str, new: int, depth: int, cache_type: CacheType, attention: Attention) -> None:
    """Load a model on the GPU and make the calls of a step of `new` tokens after `depth` others."""
    from octavo.bench.profile import ready_engine, ready_step
    from octavo.huggingface import open_model_file

    with open_model_file(model) as file:
        engine = ready_engine(file, "gpu", new, depth, cache_type, attention=attention)
        with ready_step(engine, new, depth) as (plan, _):
            run_calls(plan, engine.graph)


def count_gemm(m: int, n: int, k: int, scheme: str, device: str, how: How | None = None) -> dict[str, Any]:
    """What an NVIDIA GPU's counters say of a product and of the libraries' beside it: m, n, k, scheme, and `kernels`,
    rows of `by_product`.

    Raises what `bench_gemm` raises, and BackendError without a GPU, without `ncu` or the right to read counters.
    """
    from octavo.bench.gemm.measure import is_interpreted, products_of

    scheme, how = scheme.lower(), how or How()
    if device != "gpu" or is_interpreted():
        raise UsageError("--counters are those of an NVIDIA GPU (allowed: --device gpu, without TRITON_INTERPRET)")
    names = list(products_of(m, n, k, scheme, how))
    found = read_counters({"gemm": {"m": m, "n": n, "k": k, "scheme": scheme, "how": asdict(how)}})
    return {"m": m, "n": n, "k": k, "scheme": scheme, "kernels": by_product(found, names)}


def run_gemm(m: int, n: int, k: int, scheme: str, how: Mapping[str, Any]) -> None:
    """Make a call of a product on the GPU, number 0, and of the libraries' beside it, in their order."""
    from octavo.bench.gemm.measure import products_of

    given = How(**{**how, "kinds": tuple(how["kinds"])})  # a list in JSON
    _in_ranges(list(enumerate(products_of(m, n, k, scheme, given).values())))


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    if "gemm" in arguments:
        run_gemm(**arguments["gemm"])
    else:
        run_step(**arguments)
