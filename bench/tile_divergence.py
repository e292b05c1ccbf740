"""Measures what bfloat16 tiles and int8 activations add to a model's divergence, in tile-divergence-<date>.json.

    python bench/tile_divergence.py BASE.gguf FILE.gguf ... [--chunks 8] [--commit HASH] [-o FOLDER]

Each file is judged (`octavo eval compare`, windows of 512 with the second half scored) by three kinds of products:
int8, in which activations have 8 bits; tiles, with weights and activations rounded to bfloat16 and sums in float32,
which is what a CPU with AMX computes for 48 tokens and more; and floats, which is what the file says. A CPU without AMX
emulates tiles by their definition, as tests do (`tests/jit/tile_emulation.py`). BASE has weights in F16, which none of
the three rounds. `noise` is the divergence of the products from the floats of the same file, on two windows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import results_file
from octavo.bench import machine

ROOT = Path(__file__).resolve().parents[1]
KINDS = "int8", "tiles", "floats"
FIGURES = "kl", "median", "p99", "same_top", "ratio", "noise"
NOISE_WINDOWS = 2


def judged(kind: str, base: str, files: list[str], chunks: int) -> None:
    """Print the verdicts of one kind of products as JSON."""
    from dataclasses import asdict

    from octavo.evals.judge.judgement import judge

    if kind == "tiles":
        sys.path.insert(0, str(ROOT))
        from tests.jit import tile_emulation

        tile_emulation.pytest_configure()
    found = judge(base, files, chunks=chunks, exact=kind == "floats", device="cpu",
                  noise_windows=0 if kind == "floats" else NOISE_WINDOWS)
    if kind == "tiles" and not tile_emulation._memory:
        raise SystemExit("no kernel had tiles")
    print(json.dumps(asdict(found)))


def run(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """The verdicts of one kind, from a process of its own with kernels of its own."""
    command = [sys.executable, __file__, options.base, *options.files, "--chunks", str(options.chunks), "--kind", kind]
    with tempfile.TemporaryDirectory() as kernels:
        environment = os.environ | ({"OCTAVO_CACHE": kernels} if kind == "tiles" else {})
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    if options.kind is not None:
        judged(options.kind, options.base, options.files, options.chunks)
        return
    result = results_file.described(commit=options.commit)
    for kind in KINDS:
        found = run(kind, options)
        result |= {name: found[name] for name in ("text", "text_sha256", "context", "windows", "positions", "clusters")}
        for verdict in found["files"]:
            result.setdefault(verdict["name"], {})[kind] = {name: verdict[name] for name in FIGURES}
            print(kind, verdict["name"], verdict["kl"], verdict["noise"], flush=True)
    results_file.write("tile-divergence", result, options.output)


if __name__ == "__main__":
    main()
