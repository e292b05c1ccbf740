"""Times starts on the CPU, and writes bench/results/start-<date>.json.

    python bench/start.py MODEL.gguf [MODEL.gguf ...] [--rounds 5] [--limit] [--peer PYTHON] [--commit HASH] [-o FOLDER]

Processes are `octavo run MODEL Hi -n 1 --raw --device cpu`, from their start to their end, in turns: a first start,
which packs the weights and keeps them; a second one, which maps them; one that keeps nothing; and with `--peer`, a
Python that has llama_cpp, that package with the same model, context and threads. Beside that

- what importing takes in a second start, and opening the tokenizer;
- what loading takes alone, and the process's peak memory before, after, and after a step;
- the weights' resident and proportional set size in one process, and in each of two.

`--limit` also runs each model over 512 MB in a control group with two thirds of the packed weights' size as its memory
(needs root, and version 1 or 2 of control groups with the memory controller): a first start, a second one, and how fast
the disk reads the packed weights when no page of them is in memory.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import results_file
from octavo.backends.cores import cores
from octavo.backends.cpu.packed import cache_folder
from octavo.bench import machine

IN_PROCESS = """
import json, re, resource, sys, time
from octavo.backends.cpu import CpuBackend
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.text import Tokenizer

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

import tokenizers
file = open_model_file(sys.argv[1])
start = time.process_time()
tokens = Tokenizer.from_gguf(file).n_vocab
found = {"vocabulary": tokens, "tokenizer_cpu_seconds": time.process_time() - start}
engine = Engine(read_model(file), [CpuBackend()], EngineConfig(n_ctx=512))
found["peak_before"], start, cpu = peak(), time.perf_counter(), time.process_time()
engine.load()
found |= {"load_seconds": time.perf_counter() - start, "load_cpu_seconds": time.process_time() - cpu}
found["peak_after"] = peak()
engine.logits([1, 2, 3])
found["peak_after_a_step"] = peak()
print(json.dumps(found), flush=True)
if len(sys.argv) > 2:
    sys.stdin.read()
"""


PEER = """
import sys
from llama_cpp import Llama
model = Llama(sys.argv[1], n_ctx=int(sys.argv[2]), n_threads=int(sys.argv[3]), verbose=False)
model.create_completion("Hi", max_tokens=1, temperature=0.0)
"""
CONTEXT = 4096
"""Tokens of context that `octavo run` takes room for."""


def run(model: str, *options: str, group: Path | None = None) -> dict[str, float]:
    """One process of `octavo run`."""
    return timed([sys.executable, "-m", "octavo", "run", model, "Hi", "-n", "1", "--raw", "--device", "cpu", *options],
                 group)


def timed(command: list[str], group: Path | None = None) -> dict[str, float]:
    """Wall and processor seconds, peak bytes, and bytes that were read from the disk, of one process."""
    start = time.perf_counter()
    if group is not None:
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$0" "$@"', *command]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {
        "seconds": time.perf_counter() - start, "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * 1024, "read": used.ru_inblock * 512,
    }


def forget(model: str) -> None:
    """Remove what is kept of a model."""
    cache_folder.remove(e for e in cache_folder.entries() if e.model == os.path.abspath(model))


def starts(model: str, rounds: int, peer: str | None) -> dict[str, Any]:
    """Medians and least times of processes in turns."""
    rows: dict[str, list[dict[str, float]]] = {"first": [], "second": [], "nothing kept": []}
    for _ in range(rounds):
        forget(model)
        rows["first"].append(run(model))
        rows["second"].append(run(model))
        if peer is not None:
            rows.setdefault("llama.cpp", []).append(timed([peer, "-c", PEER, model, str(CONTEXT), str(cores())]))
        rows["nothing kept"].append(run(model, "--no-weight-cache"))
    return {name: medians(found) for name, found in rows.items()}


def medians(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    least = {f"least_{name}": min(row[name] for row in rows) for name in ("seconds", "cpu_seconds")}
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]} | least | {"rounds": list(rows)}


def imports(model: str, rounds: int) -> float:
    """The least seconds, over rounds, that importing takes in a second start."""
    command = [sys.executable, "-X", "importtime", "-m", "octavo.cli", "run", model, "Hi", "-n", "1", "--raw"]
    outs = [subprocess.run(command, capture_output=True, text=True, check=True).stderr for _ in range(rounds)]
    return min(sum(map(int, re.findall(r"import time: +(\d+) \|", out))) for out in outs) / 1e6


def in_process(model: str) -> dict[str, Any]:
    """What a process says of its tokenizer, its load and its memory."""
    import json

    out = subprocess.run([sys.executable, "-c", IN_PROCESS, model], capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def shares(model: str, count: int) -> list[dict[str, int]]:
    """Resident and proportional bytes of the mapped weights, in each of several processes at once."""
    command = [sys.executable, "-c", IN_PROCESS, model, "wait"]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        return [mapped(process.pid) for process in processes]
    finally:
        for process in processes:
            process.communicate()


def mapped(pid: int) -> dict[str, int]:
    text = Path(f"/proc/{pid}/smaps").read_text()
    parts = [part for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text) if ".weights" in part.splitlines()[0]]

    def total(name: str) -> int:
        return 1024 * sum(int(n) for part in parts for n in re.findall(rf"^{name}:\s+(\d+)", part, re.MULTILINE))

    return {"resident": total("Rss"), "proportional": total("Pss")}


@contextmanager
def limited(nbytes: int) -> Any:
    """A control group with this much memory."""
    first = Path("/sys/fs/cgroup/memory")
    top, name = (first, "memory.limit_in_bytes") if first.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")
    group = Path(tempfile.mkdtemp(prefix="octavo-start-", dir=top))
    try:
        (group / name).write_text(str(nbytes))
        yield group
    finally:
        with suppress(OSError):
            group.rmdir()


def short_of_memory(model: str) -> dict[str, Any]:
    """Starts with two thirds of the weights' size as memory: a first one, a second one."""
    run(model)
    (entry,) = [e for e in cache_folder.entries() if e.model == os.path.abspath(model)]
    limit = entry.nbytes * 2 // 3
    forget(model)
    with limited(limit) as group:
        found = {"limit": limit, "first": run(model, group=group), "second": run(model, group=group)}
    return found | {"disk_bytes_per_second": disk_rate(entry.path)}


def disk_rate(path: Path) -> float:
    """Bytes a second that reading a file takes whose pages are not in memory."""
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start, total = time.perf_counter(), 0
        while block := file.read(1 << 24):
            total += len(block)
        return total / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", action="store_true")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    result = results_file.described(commit=options.commit) | {"load": os.getloadavg()}
    for model in options.models:
        run(model)  # compiles kernels
        row: dict[str, Any] = {"bytes": os.path.getsize(model), **starts(model, options.rounds, options.peer)}
        forget(model)
        row["first load"], row["second load"] = in_process(model), in_process(model)
        row |= {"import_seconds": imports(model, options.rounds), "one": shares(model, 1), "two": shares(model, 2)}
        if options.limit and row["bytes"] > 512 << 20:
            row["short of memory"] = short_of_memory(model)
        result[Path(model).name] = row
        for name, value in row.items():
            print(name, {k: v for k, v in value.items() if k != "rounds"} if isinstance(value, dict) else value)
    results_file.write("start", result, options.output)


if __name__ == "__main__":
    main()
