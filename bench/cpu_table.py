"""Times the models of the README's CPU table against llama.cpp and writes bench/results/cpu-<model>-<date>.json.

    python bench/cpu_table.py FOLDER [--peer-python PATH] [--threads N] [--only NAME ...]

FOLDER keeps the models between runs (about 10 GB); a missing one is made. Nothing else may run meanwhile: the output
says so where something did. Afterwards `python tools/gen_bench.py` puts the results into the README.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
MODELS = (
    ("qwen3-1.7b", "Q4_K_M", ["--batch", "1,4,8", "--depth", "128,4096"]),
    ("qwen3-1.7b", "Q8_0", []),
    ("llama3-8b", "Q4_K_M", ["-n", "32"]),
    *(("qwen3-0.6b", preset, []) for preset in ("Q4_0", "Q5_K_M", "Q6_K", "IQ4_NL", "MXFP4")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--threads", default=None)
    parser.add_argument("--only", nargs="*", default=None, help="names such as qwen3-1.7b-q8_0")
    options = parser.parse_args()
    octavo = [sys.executable, "-m", "octavo", "bench"]
    threads = ["--threads", options.threads] if options.threads else []
    for shape, preset, more in MODELS:
        name = f"{shape}-{preset.lower()}"
        if options.only is not None and name not in options.only:
            continue
        path = options.folder / f"{name}.gguf"
        if not path.exists():
            subprocess.run([*octavo, "make", shape, preset, str(path)], check=True)
        peer = ["--peer", "llama.cpp", "--peer-python", options.peer_python]
        command = [*octavo, "model", str(path), *more, *threads, *peer, "--format", "json", "-o", str(RESULTS)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
