"""Times whole commands that make calibrated weights, and writes bench/results/method-time-<date>.json.

    python bench/method_time.py [MODEL] [--methods gptq:w4a16-g128,gptq:Q4_K_M] [--rounds 5] [--threads N] [-o FOLDER]

Each is `octavo quantize MODEL OUT ...` in a process of its own with the demo's questions as calibration, from its start
to its end. Before the rounds each runs once, so that kernels are compiled. Runs take turns. Nothing else may run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results_file
from octavo.backends.cores import cores

METHODS = "gptq:w4a16-g128,gptq:Q4_K_M,qronos:Q4_K_M"


def command(model: str, case: str, out: Path, threads: int) -> list[str]:
    """The command line of a method and what is made with it: a scheme, in small letters, or a preset."""
    method, target = case.split(":")
    made = ["--scheme", target] if target.islower() else [target]
    return [sys.executable, "-m", "octavo", "quantize", model, str(out), *made, "--method", method,
            "--calibration", "demo", "--threads", str(threads)]


def seconds(line: list[str], out: Path) -> float:
    """Seconds that a command takes, whose result is removed."""
    begun = time.perf_counter()
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took = time.perf_counter() - begun
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    cases, times = options.methods.split(","), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        for i in range(options.rounds + 1):
            for case in cases:
                took = seconds(command(options.model, case, out, options.threads), out)
                if i:
                    times.setdefault(case, []).append(round(took, 2))
    rows: list[dict[str, Any]] = [
        {"case": case, "median": statistics.median(found), "seconds": found} for case, found in times.items()
    ]
    for row in rows:
        print(f"{row['case']:24} {row['median']:6.2f} s")
    result = {**results_file.described(), "of": Path(options.model).stem, "threads": options.threads, "rows": rows}
    results_file.write("method-time", result, options.output)


if __name__ == "__main__":
    main()
