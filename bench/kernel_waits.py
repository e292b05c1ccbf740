"""Times what a person waits for the compiler on the first day, and writes bench/results/kernel-waits-<date>.json.

    python bench/kernel_waits.py MODEL.gguf [SHAPE] [--rate MB] [--label TEXT] [--commit HASH] [-o FOLDER]

With an empty store of kernels, one after the other: the demo model of the README, MODEL, and a random model of SHAPE
(`octavo bench make SHAPE Q4_K_M`, by default qwen3-0.6b), which `octavo pull` brings from a hub on this machine that
sends as many megabytes a second as --rate says. Each is `octavo run MODEL PROMPT -n 8 -v`, and a second run of the same
for comparison.

A wait is a stretch of time in which kernels are compiled and nothing else goes on, as the lines of `-v` tell: each says
what it took. Waits that follow one another within a tenth of a second are one. Processor seconds are those of the
process and of all that it starts, less those of the second run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import results_file
from octavo.bench import machine

ROOT = Path(__file__).resolve().parents[1]
NAME = "bench/model-GGUF"
HUB = """
import sys
from pathlib import Path
from tests.hub_server import Hub
with Hub(float(sys.argv[2]) * 1e6) as hub:
    hub.repository(sys.argv[3], {"model-Q4_K_M.gguf": Path(sys.argv[1]).read_bytes()})
    print(hub.endpoint, flush=True)
    sys.stdin.read()
"""
BETWEEN_S = 0.1
TOOK = re.compile(r"INFO: .* in ([0-9.]+) s$")
QUESTION = "What is the result of 5/0 in math?"


@contextmanager
def hub(path: str, rate: float) -> Iterator[str]:
    """A process with a hub that has the file; gives where it is."""
    command = [sys.executable, "-c", HUB, path, str(rate), NAME]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def pull(path: str, rate: float, cache: str) -> dict[str, Any]:
    """Download a model as the second command of the README does; where it is then, and the seconds that it took."""
    with hub(path, rate) as endpoint:
        environment = {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": os.path.join(cache, "hub"), "OCTAVO_CACHE": cache}
        command = [sys.executable, "-m", "octavo", "pull", NAME]
        start = time.perf_counter()
        said = subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True)
        return {"path": said.stdout.strip(), "seconds": time.perf_counter() - start}


def run(model: str, prompt: str, cache: str, *options: str) -> dict[str, Any]:
    """Waits, wall and processor seconds of one process."""
    command = [sys.executable, "-m", "octavo", "run", model, prompt, "-v", "--device", "cpu", *options]
    environment = os.environ | {"OCTAVO_CACHE": cache}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment, text=True
    )
    assert process.stderr is not None
    stretches: list[tuple[float, float]] = []
    for line in process.stderr:
        now = time.perf_counter()
        if (found := TOOK.search(line)) and "kernel" in line:
            stretches.append((now - float(found[1]), now))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {
        "waits": [round(stop - begin, 2) for begin, stop in joined(stretches)],
        "seconds": time.perf_counter() - start, "cpu_seconds": used.ru_utime + used.ru_stime,
    }


def joined(stretches: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches of time as few as there are pauses between them."""
    found: list[tuple[float, float]] = []
    for begin, stop in sorted(stretches):
        if found and begin - found[-1][1] < BETWEEN_S:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((begin, stop))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("shape", nargs="?", default="qwen3-0.6b")
    parser.add_argument("--rate", type=float, default=40.0, help="megabytes a second of the download")
    parser.add_argument("--label", default="", help="a name for this measurement, which becomes part of the file's")
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    result = results_file.described(commit=options.commit)
    result["load_before"] = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        cache, made = os.path.join(folder, "cache"), os.path.join(folder, f"{options.shape}.gguf")
        command = [sys.executable, "-m", "octavo", "bench", "make", options.shape, "Q4_K_M", made]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OCTAVO_CACHE": cache})
        for name, prompt in (("demo", QUESTION), (options.model, "hi"), (made, "hi")):
            pulled = pull(name, options.rate, cache) if name == made else {}
            first, second = (run(pulled.get("path", name), prompt, cache, "-n", "8") for _ in range(2))
            row = {
                "waits": first["waits"], "waited": round(sum(first["waits"]), 2),
                "cpu_seconds": round(first["cpu_seconds"] - second["cpu_seconds"], 2), "first": first, "second": second,
            }
            if pulled:
                row["download"] = {"seconds": pulled["seconds"], "megabytes_per_second": options.rate}
            result[Path(name).name] = row
            print(Path(name).name, {key: row[key] for key in ("waits", "waited", "cpu_seconds")}, flush=True)
    result["load_after"] = os.getloadavg()
    results_file.write(f"kernel-waits{options.label and '-' + options.label}", result, options.output)


if __name__ == "__main__":
    main()
