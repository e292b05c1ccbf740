"""Times the demo model's replies to held-out questions, without drafts and with each of its drafters in turns.

    python bench/demo_drafters.py [--questions 64] [--replies 1,4] [--turns 4] [--threads 2] [-o FOLDER]

Writes bench/results/demo-drafters-<date>.json. Ways take turns, A B B A; `gain` is by medians, next to `off`. Time is
that of decoding, without prompts. The texts of all ways have to be the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import results_file
from octavo import load
from octavo.bench.machine import commit
from octavo.data import DRAFTERS
from octavo.data.questions import questions
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request

MOST_TOKENS = 64
SETTINGS = {"greedy": SamplingParams(temperature=0.0), "sampled": SamplingParams(temperature=0.8, seed=7)}


def replied(model: Model, core: EngineCore, asked: Sequence[str], how: SamplingParams, at_once: int) -> dict[str, Any]:
    """The replies to all questions, some at a time."""
    before, made = core.stats(), list[Request]()
    seconds, timed = 0.0, 0
    for first in range(0, len(asked), at_once):
        prompts = map(model.encode_prompt, asked[first : first + at_once])
        some = [Request(prompt, make_sampler(how), MOST_TOKENS, model.tokenizer.stop_ids) for prompt in prompts]
        for request in some:
            core.add(request)
        while any(not request.num_output_tokens for request in some):
            core.step()
        begun, had = time.perf_counter(), sum(request.num_output_tokens for request in some)
        while not core.scheduler.idle:
            core.step()
        seconds += time.perf_counter() - begun
        timed += sum(request.num_output_tokens for request in some) - had
        made += some
    model.engine.prefixes.clear()
    stats = core.stats()
    return {
        "rate": timed / seconds,
        "steps": stats.steps - before.steps,
        "drafted": stats.drafted_tokens - before.drafted_tokens,
        "accepted": stats.accepted_tokens - before.accepted_tokens,
        "texts": [list(request.output_tokens) for request in made],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--replies", default="1,4", help="at a time, several numbers")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    options = parser.parse_args()
    asked = [question.prompt for question in questions(0, options.questions)]
    numbers, cases = [int(n) for n in options.replies.split(",")], list[dict[str, Any]]()
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(load(
                "demo", draft=None if name == "off" else name, speculate="off" if name == "off" else "draft",
                device="cpu", threads=options.threads, n_ctx=512, max_sequences=max(numbers),
            ))
            for name in ("off", *DRAFTERS)
        }
        cores = {
            name: EngineCore(model.engine, n_known=model.tokenizer.n_vocab, draft=model.draft, head=model.head)
            for name, model in models.items()
        }
        for how, params in SETTINGS.items():
            for at_once in numbers:
                found: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
                for turn in range(options.turns + 1):  # the first one warms up
                    for name in list(models) if turn % 2 == 0 else reversed(models):
                        one = replied(models[name], cores[name], asked, params, at_once)
                        found[name] += [one] if turn else []
                rates = {name: statistics.median(one["rate"] for one in runs) for name, runs in found.items()}
                for name, runs in found.items():
                    last = {key: value for key, value in runs[-1].items() if key not in ("rate", "texts")}
                    case = {
                        "how": how, "replies": at_once, "way": name, "rate": round(rates[name], 1),
                        "gain": round(rates[name] / rates["off"], 3), **last,
                        "same": all(one["texts"] == found["off"][0]["texts"] for one in runs),
                    }
                    cases.append(case)
                    print(case, flush=True)
    described = results_file.described(commit=options.commit)
    results_file.write("demo-drafters", described | {"questions": len(asked), "cases": cases}, options.output)


if __name__ == "__main__":
    main()
