"""Asks a model held-out questions and prints the accuracy by kind.

python tools/demo/evaluate.py demo --questions 1000
"""

from __future__ import annotations

import argparse

import octavo
from octavo.evals.accuracy import evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, or demo")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    model = octavo.load(options.model, device=options.device)

    def ask(prompt: str) -> str:
        return "".join(model.generate(prompt, temperature=0.0, max_tokens=64))

    report = evaluate(ask, options.questions, options.seed)
    print(report)
    for question, reply in report.misses:
        print(f"{question.kind}: {question.prompt!r} -> {reply!r}, not {question.answer!r}")


if __name__ == "__main__":
    main()
