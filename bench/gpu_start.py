"""Times the first answer on the GPU, and writes bench/results/gpu-start-<date>.json.

    python bench/gpu_start.py [--rounds 5] [--commit HASH] [-o FOLDER]

The time is that of whole processes, `octavo run demo "..." --device gpu`, from their start to their end: with kernels
that a process before has compiled, and with empty caches, ours and Triton's. Next to it, that of a process that does no
more than import torch and allocate one value on the GPU.

Where torch is installed without byte code, Python compiles 1,400 modules at each start. So byte code is kept in a
folder of its own then, as pip would have left it beside the modules, and the time without it is measured as well.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results_file
from octavo.backends.gpu import GpuBackend
from octavo.bench import gpu, machine

PROMPT = "What is 12 times 7?"
RUN = [sys.executable, "-m", "octavo", "run", "demo", PROMPT, "--device", "gpu", "--temp", "0", "--stats"]
TORCH = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]


def has_byte_code() -> bool:
    """Whether torch is installed with byte code."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.cached is not None
    return Path(found.cached).exists()


def run(command: list[str], env: dict[str, str]) -> dict[str, float]:
    """Seconds of one process, and of its load if it says so."""
    start = time.perf_counter()
    done = subprocess.run(command, check=True, env={**os.environ, **env}, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    load = re.search(r"load ([\d.]+) s", done.stderr)
    if load:
        assert done.stdout.strip() == "12 times 7 is 84.", done.stdout
    return {"seconds": seconds, **({"load_seconds": float(load[1])} if load else {})}


def several(command: list[str], env: dict[str, str], rounds: int, *, cold: bool = False) -> dict[str, Any]:
    """Medians of processes one after the other; each with caches of its own if `cold`."""
    runs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as empty:
            caches = {"OCTAVO_CACHE": f"{empty}/octavo", "TRITON_CACHE_DIR": f"{empty}/triton"} if cold else {}
            runs.append(run(command, {**env, **caches}))
    return {name: statistics.median(r[name] for r in runs) for name in runs[0]} | {"rounds": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    result = results_file.described(gpu.describe(GpuBackend()), **gpu.versions(), commit=options.commit)
    installed = has_byte_code()
    with tempfile.TemporaryDirectory() as folder:
        kept = {"OCTAVO_CACHE": f"{folder}/octavo", "TRITON_CACHE_DIR": f"{folder}/triton"}
        compiled = {} if installed else {"PYTHONPYCACHEPREFIX": f"{folder}/byte-code", "PYTHONDONTWRITEBYTECODE": ""}
        for _ in range(2):  # the first fills the caches, and neither is counted
            run(RUN, {**kept, **compiled})
        result |= {
            "byte_code": "installed" if installed else "in a folder of its own",
            "torch_alone": several(TORCH, compiled, options.rounds),
            "warm": several(RUN, {**kept, **compiled}, options.rounds),
            "cold": several(RUN, compiled, options.rounds, cold=True),
        }
        if not installed:
            result["warm_without_byte_code"] = several(RUN, kept, options.rounds)
    for name, row in result.items():
        if isinstance(row, dict) and "rounds" in row:
            print(name, {k: v for k, v in row.items() if k != "rounds"})
    results_file.write("gpu-start", result, options.output)


if __name__ == "__main__":
    main()
