"""Times a mixture on a card that is too small for it, by what lies on the CPU.

    python bench/cpu_experts.py MODEL [--free GIB] [--threads N] [--prompt N] [--generate N] [-o FOLDER]

Writes bench/results/cpu-experts-<date>.json. A process holds the card's memory but for `--free`. `experts`: by itself,
experts of as few layers as it takes are on the CPU; `all experts`: of all layers; `layers`: whole layers, as many as it
takes; `cpu`: all. Tokens a second of a prompt alone and of replies, one and eight at a time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import results_file
from octavo.bench.machine import commit
from octavo.bench.result import BenchOptions, bench_model

GIB = 1 << 30
HOLD = """
import sys, torch
free = torch.cuda.mem_get_info()[0] - int(sys.argv[1])
held = torch.empty(max(free, 0), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""
WAYS: dict[str, dict[str, Any]] = {
    "experts": {"gpu_layers": "auto"},
    "all experts": {"gpu_layers": "auto", "n_cpu_moe": "all"},
    "layers": {"gpu_layers": "auto", "override_tensor": {"exps": "gpu"}},
    "cpu": {"device": "cpu"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--free", type=float, default=8.0, help="GiB of the card that are left")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--commit", default=commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    usual = BenchOptions(
        prompt=asked.prompt, generate=asked.generate, rounds=3, batches=(1, 8), threads=asked.threads, device="gpu"
    )
    cases, held = list[dict[str, Any]](), [sys.executable, "-c", HOLD, str(int(asked.free * GIB))]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline().strip() != b"held":
                raise SystemExit("the card's memory can't be held")
            for way in asked.ways.split(","):
                found = bench_model(asked.model, replace(usual, **WAYS[way]))
                rates = {test["test"]: round(test["rates"]["octavo"]["median"], 1) for test in found["tests"]}
                cases.append({"way": way, "rates": rates})
                print(cases[-1], flush=True)
        finally:
            holder.kill()
    described = results_file.described(commit=asked.commit)
    what = {"model": Path(asked.model).name, "free_gib": asked.free, "cases": cases}
    results_file.write("cpu-experts", described | what, asked.output)


if __name__ == "__main__":
    main()
