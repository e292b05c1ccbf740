"""How work is shared when a file is quantized, and writes bench/results/quantize-threads-<date>.json.

    python bench/quantize_threads.py MODEL-q8_0.gguf [--preset NAME] [--threads LIST] [--rounds N]

Each call is one process that quantizes once, after a small model has compiled what it needs. Of it are written the
seconds, and the processor's seconds (user and system) of each thread, from Linux's /proc/self/task: on a busy machine
these tell what the seconds would be on as many cores as threads, which are at least those of the busiest thread. Of the
rounds the one with the fewest processor's seconds counts. A file for the job:
`octavo bench make qwen3-0.6b Q8_0 model-q8_0.gguf`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import results_file
from octavo.quantizers import quantize_file

TICKS = os.sysconf("SC_CLK_TCK")


def seconds_of_threads() -> dict[int, float]:
    """Seconds of a processor that each thread of this process has had, by its number."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        found[int(thread)] = (int(fields[11]) + int(fields[12])) / TICKS
    return found


def measured(src: str, dst: str, preset: str, threads: int) -> dict[str, object]:
    """Seconds of a call, and those of its threads, the writer's apart."""
    quantize_file("demo", dst, preset, threads=1, allow_requantize=True)
    before, seen, done = seconds_of_threads(), dict[int, float](), threading.Event()

    def watch() -> None:  # threads that end are gone from /proc
        while not done.wait(0.05):
            seen.update(seconds_of_threads())

    watcher, start = threading.Thread(target=watch), time.perf_counter()
    watcher.start()
    quantize_file(src, dst, preset, threads=threads, allow_requantize=True)
    seconds = time.perf_counter() - start
    seen.update(seconds_of_threads())
    done.set()
    watcher.join()
    spent = {thread: s - before.get(thread, 0) for thread, s in seen.items() if thread != watcher.native_id}
    writer = spent.pop(os.getpid())
    others = sorted((round(s, 2) for s in spent.values() if s >= 0.1), reverse=True)
    return {"seconds": round(seconds, 2), "cpu": round(writer + sum(spent.values()), 2),
            "writer": round(writer, 2), "others": others}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a quantized GGUF file")
    parser.add_argument("--preset", default="Q4_K_M")
    parser.add_argument("--threads", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.model.parent) as folder:
        if options.one is not None:
            print(json.dumps(measured(str(options.model), f"{folder}/out.gguf", options.preset, options.one)))
            return
    rows = []
    for threads in map(int, options.threads.split(",")):
        command = [sys.executable, __file__, str(options.model), "--preset", options.preset, "--one", str(threads)]
        rounds = [
            json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            for _ in range(options.rounds)
        ]
        rows.append(
            {"threads": threads, **min(rounds, key=lambda found: found["cpu"]), "load": round(os.getloadavg()[0], 1)}
        )
        print(rows[-1])
    result = {
        **results_file.described(),
        "model": {"name": options.model.name, "bytes": options.model.stat().st_size},
        "preset": options.preset,
        "rounds": options.rounds,
        "rows": rows,
    }
    results_file.write("quantize-threads", result)


if __name__ == "__main__":
    main()
