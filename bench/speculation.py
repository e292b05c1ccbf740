"""Times replies with drafts and without in turns: tokens a second, and what share of drafts is accepted.

    python bench/speculation.py MODEL [--draft MODEL ...] [--ways off,lookup,draft] [--replies 1,4] [--tokens N]
    python bench/speculation.py demo --draft demo-mtp --draft demo-eagle3 --draft demo-draft --questions 64

Writes bench/results/speculation-<model>-<date>.json. Ways take turns, A B B A; `gain` is by medians, next to `off`. Of
several drafts each is a way of its own, called as it is given. The texts of all ways have to be the same, greedy and
sampled.
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
from octavo.data.questions import questions
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
    drafts = way not in ("off", "lookup")
    core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab, draft=model.draft if drafts else None)
    if way == "off":
        core.speculator = None
    elif core.speculator is not None:
        core.speculator._lookup = way == "lookup"
    return core


def replied(
    model: Model, core: EngineCore, asked: Sequence[str], how: SamplingParams, replies: int, tokens: int
) -> dict[str, Any]:
    """The replies to as many prompts at a time, all of them one after the other."""
    before_all = core.stats()
    if core.speculator is not None:  # the same prompts came before
        core.speculator.history = HistoryDrafter()
    ends = model.tokenizer.stop_ids if asked is not ASKED else ()
    made, seconds, timed = list[Request](), 0.0, 0
    for first in range(0, len(asked), replies):
        prompts = map(model.encode_prompt, asked[first : first + replies])
        some = [Request(prompt, make_sampler(how), tokens, ends) for prompt in prompts]
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
        "steps": stats.steps - before_all.steps,
        "drafted": stats.drafted_tokens - before_all.drafted_tokens,
        "accepted": stats.accepted_tokens - before_all.accepted_tokens,
        "texts": [list(request.output_tokens) for request in made],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft", action="append", default=[], help="a draft model or a head; may be given again")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ways", help="of off, lookup, draft (default: all that there are)")
    parser.add_argument("--replies", default="1,4", help="at a time, several numbers")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--questions", type=int, help="held-out questions of the demo model to ask, in place of others")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    options = parser.parse_args()
    drafts = {Path(name).name if len(options.draft) > 1 else "draft": name for name in options.draft}
    ways = [way for way in (options.ways or "off,lookup,draft").split(",") if way != "draft"]
    ways += list(drafts) if "draft" in (options.ways or "draft").split(",") else []
    asked = [q.prompt for q in questions(0, options.questions)] if options.questions else ASKED
    numbers, cases = [int(n) for n in options.replies.split(",")], list[dict[str, Any]]()
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(load(
                options.model, draft=name and drafts[name], device=options.device, threads=options.threads, n_ctx=512,
                max_sequences=max(numbers), speculate="auto",
            ))
            for name in (None, *drafts)
        }
        of = {way: models[way if way in drafts else None] for way in ways}
        cores = {way: core_of(of[way], way) for way in ways}
        for how, params in HOW.items():
            for replies in numbers:
                found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
                for turn in range(options.turns):
                    for way in ways if turn % 2 == 0 else reversed(ways):
                        found[way].append(replied(of[way], cores[way], asked, params, replies, options.tokens))
                rates = {way: statistics.median(one["rate"] for one in found[way]) for way in ways}
                for way in ways:
                    last = found[way][-1]
                    case = {
                        "how": how, "replies": replies, "way": way, "rate": round(rates[way], 2),
                        "gain": round(rates[way] / rates["off"], 3), "steps": last["steps"],
                        "drafted": last["drafted"], "accepted": last["accepted"],
                        "same": last["texts"] == found["off"][0]["texts"],
                    }
                    cases.append(case)
                    print(case, flush=True)
    what = {
        "model": Path(options.model).name, "draft": [Path(name).name for name in options.draft],
        "tokens": options.tokens, "questions": options.questions,
    }
    described = results_file.described(commit=options.commit)
    name = f"speculation-{Path(options.model).stem.lower()}"
    results_file.write(name, described | what | {"cases": cases}, options.output)


if __name__ == "__main__":
    main()
