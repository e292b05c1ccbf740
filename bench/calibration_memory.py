"""Measures the memory that runs of methods take, for schemes and models.

    python bench/calibration_memory.py demo MODEL llama-1b [--methods LIST] [--samples N] [--tokenizer FOLDER]

A model is what `octavo quantize` takes, or a name of `random_checkpoint.SHAPES`, which is made with random weights and
removed again; its tokenizer is that of the checkpoint `--tokenizer`. Each case runs twice as a process of its own, so
that compiled kernels are in the cache. The peak is that of the process' memory apart from mapped files (RssAnon and
RssShmem of /proc/PID/status, sampled every few milliseconds); `resident` is the system's own peak, which counts mapped
files as well.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import random_checkpoint
import results_file

METHODS = (
    "rtn:int8-w8a8", "gptq:w4a16-g128", "gptq:w4a8", "awq:w4a16-g128", "smoothquant:int8-w8a8", "qqq:w4a8",
    "qqq:w4a8-g128", "rptq:int8-w8a8", "auto:w4a16-g128", "auto:int8-w8a8", "gguf:Q4_K_M", "calibrate:",
)
"""Method and scheme, with options behind it; "gguf" is gptq into a GGUF file, "calibrate" `octavo calibrate`."""
PAUSE = 0.003
"""Seconds between looks at a process."""
ONLY = """
import sys
from octavo.cli import main
from octavo.calibrate.schemes import scheme_method

only, made = sys.argv.pop(1), scheme_method.scheme_weights

def some(stage, given, names, scheme, ways, *rest):
    return made(stage, given, names, scheme, ways if any(only in n for n in names) else ("nearest",), *rest)

scheme_method.scheme_weights = some
main()
"""
"""The octavo command, with weights whose names do not have the first argument in them rounded to nearest."""
OF_NO_FILE = ("RssAnon", "RssShmem")


def command(case: str, model: str, out: Path, samples: int, device: str) -> list[str]:
    """Arguments of the octavo command for a case."""
    place = ["--samples", str(samples), "--device", device]
    method, scheme = case.split(":")
    if method == "calibrate":
        return ["calibrate", model, "demo", "-o", str(out), "-c", "512", *scheme.split(), *place]
    kind = "gptq" if method == "gguf" else method
    target = [scheme] if method == "gguf" else ["--scheme", *scheme.split()]
    return ["quantize", model, str(out), *target, "--method", kind, "--calibration", "demo", *place]


def peak(arguments: list[str], limit: float | None, only: str | None) -> dict[str, Any]:
    """The largest memory of a run, in bytes, and its seconds; of one that is stopped after `limit` seconds as well."""
    start = time.perf_counter()
    octavo = [sys.executable, *(("-m", "octavo") if only is None else ("-c", ONLY, only))]
    with subprocess.Popen([*octavo, *arguments, "--json"], stdout=subprocess.DEVNULL) as child:
        most, resident, stopped = 0, 0, False
        while child.poll() is None:
            found = _status(child.pid)
            most = max(most, sum(found.get(name, 0) for name in OF_NO_FILE))
            resident = max(resident, found.get("VmHWM", 0))
            if limit is not None and not stopped and time.perf_counter() - start > limit:
                stopped = True
                child.kill()
            time.sleep(PAUSE)
    seconds = round(time.perf_counter() - start, 1)
    if child.returncode and not stopped:
        raise SystemExit(f"octavo {' '.join(arguments)}: exit status {child.returncode}")
    return {"peak": most, "resident": resident, "seconds": seconds, **({"stopped": True} if stopped else {})}


def _status(pid: int) -> dict[str, int]:
    """Bytes in /proc/PID/status by name; none where the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {
        name: 1024 * int(value.split()[0])
        for name, _, value in (s.partition(":") for s in lines)
        if value.endswith("kB")
    }


def measured(case: str, model: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """A case's row."""
    row: dict[str, Any] = {"model": Path(model).name, "case": case, "samples": args.samples, "device": args.device}
    row |= {} if args.only is None else {"only": args.only}
    arguments = command(case, model, folder / "made", args.samples, args.device)
    found: dict[str, Any] = {}
    for _ in range(1 if args.once else 2):
        found = peak(arguments, args.limit, args.only)
        for left in folder.glob("made*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    row |= found
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--once", action="store_true", help="kernels are compiled already")
    parser.add_argument("--limit", type=float, help="seconds after which a run is stopped")
    parser.add_argument("--only", help="part of weights' names; others are rounded: a run that would take hours")
    parser.add_argument("--tag", default="", help="of the result's name")
    parser.add_argument("--work", default=None, help="where models and results of runs are for a while")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    args = parser.parse_args()
    if args.tokenizer is None and random_checkpoint.SHAPES.keys() & {*args.models}:
        parser.error("a model that is made wants --tokenizer, a checkpoint's folder")
    rows = []
    for model in args.models:
        with tempfile.TemporaryDirectory(dir=args.work) as folder:
            path = model
            if model in random_checkpoint.SHAPES:
                path = str(Path(folder) / model)
                random_checkpoint.write(Path(path), random_checkpoint.SHAPES[model], args.tokenizer)
            cases = (c for c in args.methods.split(",") if not (c.startswith("gguf:") and Path(path).is_dir()))
            rows += [measured(case, path, Path(folder), args) for case in cases]
    result = results_file.described() | {"cases": rows}
    results_file.write("calibration-memory" + (f"-{args.tag}" if args.tag else ""), result, args.output)


if __name__ == "__main__":
    main()
