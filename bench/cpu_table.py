"""Times the models of the README's CPU table against llama.cpp and writes bench/results/cpu-<model>-<date>.json.

    python bench/cpu_table.py FOLDER [--peer-python PATH] [--threads N] [--only NAME ...] [--together]

FOLDER keeps the models between runs (about 10 GB); a missing one is made. Nothing else may run meanwhile: the output
says so where something did. Afterwards `python tools/gen_bench.py` puts the results into the README. `--together` times
decode of 1, 4 and 8 sequences and after 128 and 4,096 tokens instead, with a KV cache of f16 and of q8_0, and without
a peer: bench/results/cpu-<model>-together-<kv>-<date>.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from octavo.bench import machine

RESULTS = Path(__file__).resolve().parent / "results"
TOGETHER = ("qwen3-1.7b-q4_k_m", "qwen3-1.7b-q8_0", "llama3-8b-q4_k_m")
DEEP = ["-p", "0", "-n", "32", "--batch", "1,4,8", "--depth", "128,4096"]
MODELS = (
    ("qwen3-1.7b", "Q4_K_M", []),
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
    parser.add_argument("--together", action="store_true", help="several sequences and long contexts, without a peer")
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
        command = [*octavo, "model", str(path), *threads, "--json", "-o"]
        if not options.together:
            peer = ["--peer", "llama.cpp", "--peer-python", options.peer_python]
            subprocess.run([*command, str(RESULTS), *more, *peer], check=True)
        elif name in TOGETHER:
            for kv in ("f16", "q8_0"):
                file = RESULTS / f"cpu-{name}-together-{kv}-{machine.now()[:10]}.json"
                subprocess.run([*command, str(file), *DEEP, "--kv", kv], check=True)


if __name__ == "__main__":
    main()
