"""Times quantizing whole files against llama.cpp, and writes bench/results/quantize-files-<date>.json.

    python bench/quantize_files.py MODEL-f16.gguf [--peer-python PYTHON] [--presets LIST] [--threads N] [--rounds N]

Each call is one process that quantizes once, Octavo and the peer in turn; the seconds are those of the call itself,
reading and writing included, imports not. `--peer-python` is an interpreter with llama-cpp-python (default: this one).
A file for the job: `octavo bench make qwen3-0.6b F16 model-f16.gguf`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import results_file
from octavo.backends.cores import cores

PRESETS = "Q4_K_M,Q5_K_M,Q6_K,Q3_K_M,Q8_0"

OURS = """
import sys, time
from octavo.quantizers import quantize_file
src, dst, preset, threads = sys.argv[1:]
start = time.perf_counter()
quantize_file(src, dst, preset, threads=int(threads))
print(time.perf_counter() - start)
"""

THEIRS = """
import ctypes, sys, time
import llama_cpp
src, dst, preset, threads = sys.argv[1:]
llama_cpp.llama_backend_init()
quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
params = llama_cpp.llama_model_quantize_default_params()
names = (f"LLAMA_FTYPE_MOSTLY_{preset}", f"LLAMA_FTYPE_{preset}")
params.ftype = next(getattr(llama_cpp, name) for name in names if hasattr(llama_cpp, name))
params.nthread = int(threads)
start = time.perf_counter()
failed = llama_cpp.llama_model_quantize(src.encode(), dst.encode(), ctypes.byref(params))
print(time.perf_counter() - start)
sys.exit(int(failed))
"""
VERSION = "import llama_cpp; print(llama_cpp.__version__)"


def call(python: str, code: str, *args: str) -> str:
    """The last line that `code` prints in a process of its own."""
    done = subprocess.run([python, "-c", code, *args], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def compare(src: Path, preset: str, peer: str, threads: int, rounds: int) -> dict[str, object]:
    """Seconds of both, medians of rounds."""
    with tempfile.TemporaryDirectory(dir=src.parent) as folder:
        dst = os.path.join(folder, "out.gguf")

        def seconds(python: str, code: str) -> float:
            return float(call(python, code, str(src), dst, preset, str(threads)))

        seconds(sys.executable, OURS)  # compiles, and brings the file into memory
        pairs = [(seconds(sys.executable, OURS), seconds(peer, THEIRS)) for _ in range(rounds)]
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(their / our for our, their in pairs)
    return {
        "preset": preset, "octavo_seconds": round(ours, 2), "llama.cpp_seconds": round(theirs, 2),
        "ratio": round(ratio, 2), "rounds": [[round(t, 2) for t in pair] for pair in pairs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file of F16 or BF16 weights")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--presets", default=PRESETS)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for preset in options.presets.split(","):
        row = compare(options.model, preset, options.peer_python, options.threads, options.rounds)
        print(f"{preset:8} {row['octavo_seconds']:8} s  llama.cpp {row['llama.cpp_seconds']:8} s  {row['ratio']}x")
        rows.append(row)
    result = {
        **results_file.described(**{"llama-cpp-python": call(options.peer_python, VERSION)}),
        "model": {"name": options.model.name, "bytes": options.model.stat().st_size},
        "threads": options.threads,
        "rounds": options.rounds,
        "rows": rows,
    }
    results_file.write("quantize-files", result)


if __name__ == "__main__":
    main()
