"""Times replies with drafts and without in turns: tokens a second, and what share of drafts is accepted.

    python bench/speculation.py MODEL [--draft MODEL] [--ways off,lookup,draft] [--replies 1,4] [--tokens N] [-o FOLDER]

Writes bench/results/speculation-<model>-<date>.json. Ways take turns, A B B A; `gain` is by medians, next to `off`. The
texts of all ways have to be the same, greedy and sampled.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import results_file
from octavo import load
from octavo.bench.machine import commit
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from octavo.runtime.speculation.history_drafter import HistoryDrafter

ASKED = (
    "Write a short story about a fox who finds a map.",
    "List the planets of the solar system, one sentence each.",
    "Write a Python function that reverses the words of a sentence, and explain it line by line.",
    "Why is the sky blue? Explain it to a child.",
    "Write a polite letter to a landlord about a broken window.",
    "Summarize how a bill becomes a law in the United States.",
    "Give a recipe for pancakes, with amounts.",
    "Describe a day in the life of a lighthouse keeper.",
)
HOW = {"greedy": SamplingParams(temperature=0.0), "sampled": SamplingParams(temperature=0.8, seed=7)}


def core_of(model: Model, way: str) -> EngineCore:
    """What computes replies in one way; it learns as it goes on, as a server's does."""
    core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab, draft=model.draft if way == "draft" else None)
    if way == "off":
        core.speculator = None
    elif core.speculator is not None:
        core.speculator._lookup = way == "lookup"
    return core


def replied(model: Model, core: EngineCore, how: SamplingParams, replies: int, tokens: int) -> dict[str, Any]:
    """The replies to as many prompts at a time, all of them one after the other."""
    before_all = core.stats()
    if core.speculator is not None:  # the same prompts came before
        core.speculator.history = HistoryDrafter()
    made, seconds, timed = list[Request](), 0.0, 0
    for first in range(0, len(ASKED), replies):
        prompts = map(model.encode_prompt, ASKED[first : first + replies])
        some = [Request(prompt, make_sampler(how), tokens) for prompt in prompts]
        for request in some:
            core.add(request)
        while any(not request.num_output_tokens for request in some):
            core.step()
        begun = time.perf_counter()
        before = sum(request.num_output_tokens for request in some)
        while not core.scheduler.idle:
            core.step()
        seconds += time.perf_counter() - begun
        timed += sum(request.num_output_tokens for request in some) - before
        made += some
    model.engine.prefixes.clear()
    stats = core.stats()
    return {
        "rate": timed / seconds,
        "drafted": stats.drafted_tokens - before_all.drafted_tokens,
        "accepted": stats.accepted_tokens - before_all.accepted_tokens,
        "texts": [list(request.output_tokens) for request in made],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ways", help="of off, lookup, draft (default: all that there are)")
    parser.add_argument("--replies", default="1,4", help="at a time, several numbers")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    ways = (asked.ways or ("off,lookup,draft" if asked.draft else "off,lookup")).split(",")
    numbers, cases = [int(n) for n in asked.replies.split(",")], list[dict[str, Any]]()
    with load(
        asked.model, draft=asked.draft, device=asked.device, threads=asked.threads, n_ctx=512,
        max_sequences=max(numbers), speculate="auto",
    ) as model:
        cores = {way: core_of(model, way) for way in ways}
        for how, params in HOW.items():
            for replies in numbers:
                found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
                for turn in range(asked.turns):
                    for way in ways if turn % 2 == 0 else reversed(ways):
                        found[way].append(replied(model, cores[way], params, replies, asked.tokens))
                rates = {way: statistics.median(one["rate"] for one in found[way]) for way in ways}
                for way in ways:
                    last = found[way][-1]
                    case = {
                        "how": how, "replies": replies, "way": way, "rate": round(rates[way], 2),
                        "gain": round(rates[way] / rates["off"], 3), "drafted": last["drafted"],
                        "accepted": last["accepted"], "same": last["texts"] == found["off"][0]["texts"],
                    }
                    cases.append(case)
                    print(case, flush=True)
    what = {"model": Path(asked.model).name, "draft": asked.draft and Path(asked.draft).name, "tokens": asked.tokens}
    described = results_file.described(commit=asked.commit)
    name = f"speculation-{Path(asked.model).stem.lower()}"
    results_file.write(name, described | what | {"cases": cases}, asked.output)


if __name__ == "__main__":
    main()
