"""Decodes with many tokens in the cache next to llama.cpp and writes bench/results/depth-<model>-<date>.json.

    python bench/depth_peer.py MODEL.gguf --peer-python PYTHON [--depth 8192] [--threads 2] [-o FOLDER]

Both run on the CPU with a float16 cache, in turns, round by round. PYTHON is an interpreter with llama-cpp-python.
llama.cpp's cells are copies of 512 tokens' (depth_worker.py), for which it needs a cache without states and windows.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import octavo
import results_file
from octavo.bench.model_bench import Trial, time_test
from octavo.bench.peer import PeerSubject
from octavo.bench.subject import EngineSubject

WORKER = Path(__file__).with_name("depth_worker.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    asked = parser.parse_args()
    test = Trial("decode", asked.tokens, asked.depth)
    with octavo.load(
        asked.model, device="cpu", threads=asked.threads, n_ctx=asked.depth + 64, speculate="off"
    ) as model:
        ours = EngineSubject(model.engine)
        worker = {
            "path": str(asked.model), "threads": asked.threads, "depth": asked.depth,
            "n_vocab": model.engine.model.hparams.n_vocab,
        }
        with PeerSubject("llama.cpp", [asked.peer_python, str(WORKER), json.dumps(worker)]) as peer:
            timing = time_test(test, [ours, peer], asked.rounds)
            version = peer.version
        cost = ours.decode_cost(1, asked.depth)
        rates = timing.rates
        speed = statistics.median(rates["octavo"]) / statistics.median(rates["llama.cpp"])
        result = {
            **results_file.described(**{"llama.cpp": version}),
            "model": asked.model.stem,
            "depth": asked.depth,
            "threads": asked.threads,
            "tokens_per_second": rates,
            "speed": speed,
            "other_programs": timing.others,
            "cache_bytes_read": cost.cache,
        }
    for name, values in rates.items():
        print(f"{name}: {statistics.median(values):.2f} tokens a second ({min(values):.2f} to {max(values):.2f})")
    print(f"{speed:.2f} times as fast")
    results_file.write(f"depth-{asked.model.stem}", result, asked.output)


if __name__ == "__main__":
    main()
