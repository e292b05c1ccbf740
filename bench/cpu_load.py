"""Measures loading and compiling on the CPU, and writes bench/results/cpu-load-<date>.json.

    python bench/cpu_load.py MODEL... [--rounds 5]

For each model: seconds of `Engine.load` in fresh processes with kernels compiled before, private memory when a prompt
has been answered, and once the time to load and answer with an empty kernel cache. A machine that gives its memory to
a process only slowly makes loading slow; so the time to fill fresh memory of the file's size, on as many threads, is
measured next to each load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import results_file

LOAD = """
import json, sys, threading, time
import numpy as np
from octavo.backends import select
from octavo.backends.cpu.device.large_pages import zeroed
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import Sequence

with GGUFFile.open(sys.argv[1]) as file:
    backends = select("cpu")
    start = time.perf_counter()
    engine = Engine(read_model(file), backends, EngineConfig(n_ctx=512))
    engine.load()
    loaded = time.perf_counter() - start
    engine.prefill(Sequence(), list(range(5, 69)))
    answered = time.perf_counter() - start
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    parts = np.array_split(zeroed(file.nbytes), backends[0].threads)
    threads = [threading.Thread(target=part.fill, args=(1,)) for part in parts]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    filled = time.perf_counter() - start
private = int(status["RssAnon"].split()[0]) * 1024
print(json.dumps({"load": loaded, "answer": answered, "fill": filled, "private_bytes": private}))
"""


def load(path: str, cache: str | None = None) -> dict[str, float]:
    """One fresh process: seconds to load, until a prompt of 64 tokens is answered, and private bytes then."""
    env = dict(os.environ, **({"OCTAVO_CACHE": cache} if cache else {}))
    out = subprocess.run([sys.executable, "-c", LOAD, path], check=True, stdout=subprocess.PIPE, env=env).stdout
    measured: dict[str, float] = json.loads(out)
    return measured


def measure(path: str, rounds: int) -> dict[str, Any]:
    nbytes = os.path.getsize(path)
    with tempfile.TemporaryDirectory() as cache:
        cold = load(path, cache)
        warm = load(path, cache)
    runs = [load(path) for _ in range(rounds)]
    seconds = [r["load"] for r in runs]
    return {
        "file": os.path.basename(path),
        "bytes": nbytes,
        "load_seconds": {"median": statistics.median(seconds), "rounds": seconds},
        "load_seconds_per_gb": statistics.median(seconds) / nbytes * 1e9,
        "fill_seconds": [r["fill"] for r in runs],
        "private_bytes": statistics.median(r["private_bytes"] for r in runs),
        "private_to_file": statistics.median(r["private_bytes"] for r in runs) / nbytes,
        "first_ever_seconds": cold["answer"],
        "same_with_kernels_seconds": warm["answer"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    models = [measure(path, options.rounds) for path in options.models]
    results_file.write("cpu-load", {**results_file.described(), "rounds": options.rounds, "models": models})


if __name__ == "__main__":
    main()
