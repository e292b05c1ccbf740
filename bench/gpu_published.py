"""Times models in the ways in which they are published and writes bench/results/gpu-published-<arch>-<date>.json.

    python bench/gpu_published.py FOLDER [--models NAME ...] [--parts NAME ...] [--budget SECONDS] [--delete] [-o OUT]
    python bench/gpu_published.py --table RESULT.json

Models of random weights are made in FOLDER where they are missing, and with --delete are removed after their parts.
Each part of a model has a process of its own, and what it finds is written at once: what is interrupted, or stopped
when --budget seconds are over, goes on from there with the same OUT. Rates are tokens a second of replies or prompts:

    decode       engine alone, as of bench/engine.py: prompts and replies of 128 tokens, 1 to 128 replies at a time
    decode-256   the same with 256 at a time, decode-512 with 512
    prompt       prompts of 2,048 tokens, in one step
    start        seconds from the start of a process to its first token (`answers`), and until all sizes of steps are
                 captured (`ready`); MiB that these take of the card, `reserved_mib` of them in torch's pools
    depth        32,768 tokens: a prompt of as many, and 1 and 8 replies after them
    cache        decode and decode-256 with a cache of fp8

A part that fails is not tried again without --again.

`aim` is what the model is to reach, and `of_aim` the part of it. `limit` is the least time of the same tokens as a part
of what they took: to read weights and cache once a step (`bound` is reading), or to multiply (multiplying), by the read
limit that is measured beside and the card's operations a second. --dry makes tiny models and few tokens, to try all
parts on a machine without a card.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engine
import published_table
import results_file
from octavo.backends import select
from octavo.bench.cost import OpLoad
from octavo.bench.empty_steps import reply_seconds
from octavo.bench.gpu import has_events
from octavo.bench.roofline import Bound, Roofline, roofline_of
from octavo.bench.subject import EngineSubject
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.engine.engine_config import usual_batch
from octavo.runtime.loading import open_model
from octavo.runtime.model import Model
from published_models import (
    CACHE_FP8,
    CAPTURED_MIB,
    DECODE,
    LONG,
    MODELS,
    PARTS,
    PROMPT_AT_DEPTH,
    SECONDS,
    SHARE_AT_DEPTH,
    USUAL,
)
from published_run import Case, PublishedRun, aim, main, tell

KEPT = "gpu-published"
STEPS, TURNS = 32, 3
"""Steps of a turn after a long context, and turns, of which the best counts."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured: replies at a time, tokens of prompts, tokens of the workload, and steps."""

    decode: Sequence[int] = DECODE
    many: Sequence[int] = (256, 512)
    prompt: int = 2048
    long: int = LONG
    workload: tuple[int, int] = engine.WORKLOADS["a"]
    steps: int = STEPS
    batch: int | None = None
    """Tokens in a step, but for tests of prompts; by default as a server has them."""


DRY = Sizes((1, 2), (3, 4), 24, 40, (6, 3), 2, 16)


class Measured:
    """A part of a model, in a process of its own."""

    def __init__(self, name: str, path: Path, part: str, device: str, sizes: Sizes, begun: float) -> None:
        self.name, self.path, self.part, self.sizes, self.begun = name, path, part, sizes, begun
        self.backends = select(device)
        self.device = self.backends[0].name
        self.itl_target = engine.ITL_TARGET.get(self.device, 0.0)
        engine.WORKLOADS["a"] = sizes.workload

    def cases(self, skip: set[str]) -> Iterator[Case]:
        """Those that are not among `skip`."""
        if self.part == "start":
            yield from self._start()
        elif self.part == "prompt":
            yield from self._prompt()
        elif self.part == "depth":
            yield from self._depth(skip)
        else:
            few, (many, more) = self.sizes.decode, self.sizes.many
            numbers = {"decode": few, "cache": (*few, many), "decode-256": (many,), "decode-512": (more,)}
            if left := [n for n in numbers[self.part] if f"decode {n}" not in skip]:
                yield from self._decode(left)

    def _model(self, n_ctx: int, sequences: int = 1, n_batch: int | None = None, cache: Any = "f16") -> Model:
        n_batch = n_batch or self.sizes.batch or usual_batch(sequences, self.backends[0])
        config = EngineConfig(n_ctx=n_ctx, n_batch=n_batch, max_sequences=sequences, cache_type=cache)
        return open_model(self.path, self.backends, config)

    def _limits(self) -> Roofline:
        roofline = roofline_of(self.backends[0], os.cpu_count() or 1)
        if has_events(self.backends[0]):
            import torch

            torch.cuda.empty_cache()
        return roofline

    def _decode(self, numbers: Sequence[int]) -> Iterator[Case]:
        n_in, n_out = self.sizes.workload
        cache = "fp8" if self.part == "cache" else "f16"
        asked = argparse.Namespace(workload="a", sampled=False, tokens=None)
        limits = self._limits()
        with self._model(max(512, n_in + n_out), max(numbers), cache=cache) as model:
            core, _ = engine.warmed_up(model, self.itl_target)
            subject, apart = EngineSubject(model.engine), engine.Apart(model.engine)
            for n in numbers:
                found = engine.case(core, model, n, asked, apart)
                reply = _bound(subject, limits, [n_in + n_out // 2] * n, [1] * n)
                prompt = _bound(subject, limits, [0], [n_in])
                least = Bound(reply.reading, reply.multiplying + n * prompt.multiplying / n_in)
                aims = CACHE_FP8 if self.part == "cache" else MODELS[self.name].aims
                fallbacks = list(model.engine.schedule.fallbacks)
                yield _case(f"decode {n}", found.pop("rate"), n, least, aims) | found | {"fallbacks": fallbacks}

    def _prompt(self) -> Iterator[Case]:
        n, limits = self.sizes.prompt, self._limits()
        with self._model(n + 64, n_batch=n) as model:
            subject = EngineSubject(model.engine)
            yield self._prompts(subject, limits, n)

    def _prompts(self, subject: EngineSubject, limits: Roofline, n: int) -> Case:
        subject.prefill(n)
        seconds = min(subject.prefill(n) for _ in range(TURNS))
        size = subject.engine.config.n_batch
        parts = [_bound(subject, limits, [i], [min(size, n - i)]) for i in range(0, n, size)]
        return _case(f"prompt {n}", n / seconds, n, sum(parts, Bound()), MODELS[self.name].aims)

    def _depth(self, skip: set[str]) -> Iterator[Case]:
        depth, short, limits = self.sizes.long, self.sizes.prompt, self._limits()
        with self._model(depth + 2 * STEPS, 8, n_batch=short) as model:
            subject = EngineSubject(model.engine)
            if f"prompt {depth}" not in skip:
                near = self._prompts(subject, limits, short)["rate"]
                found = self._prompts(subject, limits, depth)
                yield found | aim(found["rate"], PROMPT_AT_DEPTH * near)
            for n in (1, 8):
                if f"decode {n} @{depth}" in skip:
                    continue
                subject.prepare(depth, n)
                subject.decode(2)
                seconds = min(subject.decode(self.sizes.steps) for _ in range(TURNS)) / self.sizes.steps
                found = _case(f"decode {n} @{depth}", n / seconds, n, _bound(subject, limits, [depth] * n, [1] * n), {})
                if "limit" in found:
                    found |= aim(found["rate"], found["rate"] / found["limit"] * SHARE_AT_DEPTH)
                yield found

    def _start(self) -> Iterator[Case]:
        with self._model(512, self.sizes.decode[-1]) as model:
            loaded = time.time() - self.begun
            reply_seconds(model.engine, 1)  # after which weights lie as products read them
            before = _memory(model.engine)
            core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab, itl_target=self.itl_target)
            core.begin_warm_up()
            engine.run(core, engine.requests(model, "a", engine.GREEDY, 1), 1, 1)
            answers = time.time() - self.begun
            core.warm_up()
            ready, after = time.time() - self.begun, _memory(model.engine)
        seconds = {"loaded": loaded, "answers": answers, "ready": ready}
        case: Case = {"test": "start", **{key: round(value, 2) for key, value in seconds.items()}}
        case |= {key: after[key] - before[key] for key in after}
        yield case | ({"aim": {**SECONDS, "reserved_mib": CAPTURED_MIB}} if self.name.startswith("8b") else {})


def _memory(of: Engine) -> dict[str, int]:
    """MiB of the card that are used, and of these what torch's allocator has; nothing without a card."""
    if not of.on_device or engine.used_mib(of) == 0:
        return {}
    import torch

    torch.cuda.synchronize()
    mib = {"reserved_mib": torch.cuda.memory_reserved(), "allocated_mib": torch.cuda.memory_allocated()}
    return {"used_mib": engine.used_mib(of)} | {key: nbytes >> 20 for key, nbytes in mib.items()}


def _bound(subject: EngineSubject, limits: Roofline, past: list[int], new: list[int]) -> Bound:
    engine_, outputs = subject.engine, sum(n == 1 for n in new) or 1
    sizes = {"tokens": sum(new), "outputs": outputs, "sequences": len(new), "boundaries": len(new) + 1}
    return limits.step(engine_.schedule.graph.nodes, OpLoad({**engine_.limits, **sizes}, past, new))


def _case(test: str, rate: float, tokens: int, least: Bound, aims: Any) -> Case:
    """A rate, beside its aim and the limit of what took `tokens` of it."""
    found: Case = {"test": test, "rate": round(rate, 1)} | (aim(rate, aims[test]) if test in aims else {})
    share = least.share(tokens / rate)
    return found | ({} if share is None else {"limit": round(share[0], 3), "bound": share[1]})


class Run(PublishedRun):
    """On the card, or without one tiny models on the CPU."""

    script, models, usual = __file__, MODELS, USUAL

    def about(self) -> tuple[str, str, dict[str, Any]]:
        device = "gpu" if not self.asked.dry or os.environ.get("TRITON_INTERPRET") == "1" else "cpu"
        card = _card(device)
        described = results_file.described(card, **card.pop("versions", {}), commit=self.asked.commit)
        return device, f"{KEPT}-{card.get('arch', 'cpu')}", described


def _card(device: str) -> dict[str, Any]:
    """What is written of the card, found by a process of its own, so that this one takes none of its memory."""
    if device != "gpu":
        return {}
    code = ("import json; from octavo.backends.gpu import GpuBackend; from octavo.bench import gpu;"
            "print(json.dumps({**gpu.describe(GpuBackend()), 'versions': gpu.versions()}))")
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, Any] = json.loads(said)
    return found


def measure(name: str, path: str, part: str, device: str, dry: bool, skip: list[str], begun: float) -> None:
    """Print the cases of a part."""
    sizes = DRY if dry else Sizes()
    tell(lambda: Measured(name, Path(path), part, device, sizes, begun).cases(set(skip)), part)


if __name__ == "__main__":
    main(__doc__, Run, PARTS, "of some models depth, cache", measure, published_table.markdown)
