"""Times models on one card and on several; writes bench/results/tensor-parallel-<arch>-<date>.json.

    python bench/tensor_parallel.py MODEL.gguf ... [--ranks 1,2] [--pipeline 1,2] [-c 1,8,32] [--prompt 2048]
                                    [--replies N] [-o FOLDER]

Each number of ranks is timed with each number of stages, where there are cards for both; by default a pipeline is left
out. Each model and way has a process of its own, and the result is written after each case: what is interrupted goes on
from there, for each of the cases takes a minute or less.

    start    seconds until a model is loaded and has made a token; GiB of each card then
    prompt   tokens a second of a prompt
    decode   tokens a second of several replies, after 64 tokens
    text     of N greedy replies of 64 tokens, how many are those of the first way; where others first part,
             the difference of the two best logits there, at most: sums are rounded in another order. Synthetic
             models tell nothing: rows of their output matrix repeat, so tokens have equal logits
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import octavo
import results_file
from octavo.bench import gpu
from octavo.bench.subject import EngineSubject, tokens
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine

DEPTH, STEPS, TURNS = 64, 32, 3
"""Tokens before decoding, steps of a turn, and turns, of which the best counts."""
TEXT = 64
"""Tokens of a reply that is compared."""
Texts = list[list[tuple[int, float]]]
"""Of each reply its tokens, and how far the best logit was above the next."""


def memory() -> list[float]:
    """GiB that are used of each card."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [round(int(line) / 1024, 2) for line in said.split()]


def texts(engine: Engine, replies: int) -> Texts:
    """Greedy replies to prompts at random, all in each step."""
    sequences = [Sequence() for _ in range(replies)]
    made: Texts = [[] for _ in sequences]
    given = [tokens(8, engine.model.hparams.n_vocab, seed=i) for i in range(replies)]
    for s, prompt in zip(sequences, given, strict=True):
        engine.prefill(s, prompt[:-1])
    given = [prompt[-1:] for prompt in given]
    for _ in range(TEXT):
        logits = engine.step([Feed(s, t) for s, t in zip(sequences, given, strict=True)])
        best = np.argpartition(logits, -2, axis=1)[:, -2:]
        for i, row in enumerate(logits):
            low, high = sorted(best[i], key=lambda at: (row[at], -at))
            made[i].append((int(high), float(row[high] - row[low])))
        given = [[text[-1][0]] for text in made]
    for sequence in sequences:
        engine.pool.release(sequence)
    return made


def measured(asked: argparse.Namespace, ranks: int, stages: int, skip: set[str]) -> Iterator[dict[str, Any]]:
    """Cases of one model that are not among `skip`."""
    replies, begun = [int(n) for n in asked.replies_at_once.split(",")], time.perf_counter()
    with octavo.load(
        asked.models[0], device=asked.device, n_ctx=max(asked.prompt + 64, 1024), tensor_parallel=ranks,
        pipeline=stages, max_sequences=max(*replies, asked.replies), kv_memory=asked.kv_gib << 30, speculate="off",
    ) as model:
        subject = EngineSubject(model.engine)
        subject.prefill(16)
        start = time.perf_counter() - begun
        if "start" not in skip:
            gib = memory() if asked.device == "gpu" else []
            yield {"test": "start", "seconds": round(start, 2), "gib": gib, "layers": list(model.engine.stages)}
        if "prompt" not in skip:
            subject.prefill(asked.prompt)
            seconds = min(subject.prefill(asked.prompt) for _ in range(TURNS))
            yield {"test": "prompt", "tokens": asked.prompt, "tokens_per_second": round(asked.prompt / seconds, 1)}
        for n in replies:
            if f"decode {n}" not in skip:
                subject.prepare(DEPTH, n)
                seconds = min(subject.decode(STEPS) for _ in range(TURNS))
                yield {"test": f"decode {n}", "tokens_per_second": round(STEPS * n / seconds, 1)}
        subject._release()
        if "text" not in skip and asked.replies:
            yield {"test": "text", "replies": texts(model.engine, asked.replies)}


def compared(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cases with texts as what they have in common with those of the first, and speeds as ratios to the first."""
    first, found = dict[tuple[str, str], dict[str, Any]](), list[dict[str, Any]]()
    for case in cases:
        one = first.setdefault((case["of"], case["test"]), case)
        if case["test"] == "text":
            parted = [
                next(gap for (a, gap), (b, _) in zip(x, y, strict=True) if a != b)
                for x, y in zip(one["replies"], case["replies"], strict=True)
                if [a for a, _ in x] != [b for b, _ in y]
            ]
            equal = len(case["replies"]) - len(parted)
            found.append({**case, "replies": len(case["replies"]), "equal": equal, "gaps": sorted(parted)[-5:]})
        elif "tokens_per_second" in case:
            ratio = case["tokens_per_second"] / one["tokens_per_second"]
            found.append({**case, "speed": round(ratio, 3)})
        else:
            found.append(case)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--ranks", default="1,2", help="several numbers; the first is what others are compared with")
    parser.add_argument("--pipeline", default="1", help="several numbers of cards of each rank")
    parser.add_argument("-c", "--replies-at-once", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--replies", type=int, default=16, help="whose texts are compared")
    parser.add_argument("--kv-gib", type=int, default=16, help="of the cache, on all cards together")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        ranks, stages, skip = asked.measure
        for case in measured(asked, ranks, stages, set(skip)):
            print(json.dumps(case), flush=True)
        return
    card, most = None, 0
    if asked.device == "gpu":
        from octavo.backends.gpu import GpuBackend
        from octavo.backends.gpu.device.torch_device import count_cards

        most = count_cards()
        card = gpu.describe(GpuBackend())
    name = f"tensor-parallel-{card['arch'] if card else 'cpu'}"
    described = results_file.described(card)
    kept = results_file.path_of(name, described, asked.output).with_suffix(".cases")
    cases: list[dict[str, Any]] = json.loads(kept.read_text("utf-8")) if kept.exists() else []
    for path in asked.models:
        of = Path(path).stem
        for ranks, stages in product(*(map(int, given.split(",")) for given in (asked.ranks, asked.pipeline))):
            if card and ranks * stages > max(most, 1):
                print(f"{of}, {ranks} ranks of {stages}: there are {most} cards", flush=True)
                continue
            way = {"of": of, "ranks": ranks, "pipeline": stages}
            done = [case["test"] for case in cases if way.items() <= {"pipeline": 1, **case}.items()]
            options = [word for word in sys.argv[1:] if word not in asked.models]
            command = [sys.executable, __file__, path, *options, "--measure", json.dumps([ranks, stages, done])]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    cases.append({**way, **json.loads(line)})
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.write_text(json.dumps(cases), encoding="utf-8")
                    print(compared(cases)[-1], flush=True)
                    results_file.write(name, {**described, "cases": compared(cases)}, asked.output)
            if process.returncode:
                print(f"{of}, {ranks} ranks of {stages}: ended with status {process.returncode}", flush=True)


if __name__ == "__main__":
    main()
