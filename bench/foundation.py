"""Measures starting up and the demo model, and writes bench/results/foundation-<date>.json.

    python bench/foundation.py [--questions 1000] [--rounds 10]

Start-up is the wall time of fresh processes: `import octavo`, `octavo --help`, and the demo's first answer (kernels
compiled before). Accuracy is the share of exactly right greedy answers to held-out questions.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

import octavo
import results_file
from octavo.evals.accuracy import evaluate

QUESTION = "What is the result of 5/0 in math?"


def seconds(rounds: int, *arguments: str) -> dict[str, Any]:
    """Wall time of fresh processes, all rounds and their median."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(round(time.perf_counter() - start, 4))
    return {"median": statistics.median(times), "rounds": times}


def accuracy(device: str, questions: int) -> dict[str, Any]:
    """What the demo model answers right on a device, by kind of question."""
    with octavo.load("demo", device=device) as model:
        start = time.perf_counter()
        report = evaluate(lambda prompt: "".join(model.generate(prompt, temperature=0.0, max_tokens=64)), questions)
        return {**report.to_dict(), "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    answer = ["-m", "octavo", "run", "demo", QUESTION]
    subprocess.run([sys.executable, *answer], check=True)  # compiles what is not compiled yet
    result = {
        **results_file.described(),
        "questions": options.questions,
        "rounds": options.rounds,
        "python_start_seconds": seconds(options.rounds, "-c", "pass"),
        "import_seconds": seconds(options.rounds, "-c", "import octavo"),
        "help_seconds": seconds(options.rounds, "-m", "octavo", "--help"),
        "first_answer_seconds": seconds(options.rounds, *answer),
        "demo_accuracy": {
            "cpu": accuracy("cpu", options.questions),
            "reference": accuracy("reference", options.questions // 5),  # the same first ones; it is slow
        },
    }
    results_file.write("foundation", result)


if __name__ == "__main__":
    main()
