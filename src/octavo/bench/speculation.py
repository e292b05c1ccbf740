"""Replies with drafts and without them, in turns: what share of the drafts' tokens is accepted, and what that gains."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from octavo.bench.others import LoadWatch
from octavo.errors import UsageError
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig, Speculate
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from octavo.runtime.speculation.draft_model import DraftModel
from octavo.runtime.speculation.drafter import Drafter
from octavo.runtime.speculation.history_drafter import HistoryDrafter
from octavo.runtime.speculation.layered_drafter import head_drafter
from octavo.runtime.speculation.verification import Speculator

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
SETTINGS = {
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True),
    "sampled": SamplingParams(temperature=0.8, seed=7, ignore_eos=True),
    "random": SamplingParams(temperature=50.0, top_k=64, top_p=1.0, min_p=0.0, seed=7, ignore_eos=True),
}
"""How replies are sampled; random ones are of tokens that nothing can guess."""
KINDS = ("auto", "lookup", "mtp", "draft", "simulated")


class SimulatedDrafter(DraftModel):
    """Drafts at the cost of a head that guesses further tokens: a layer of the model and its output matrix.

    Only the choice is replaced: a token is right with a probability, if those before it are; `texts` says which are.
    """

    def __init__(self, engine: Engine, n_known: int, acceptance: float) -> None:
        super().__init__(engine, n_known)
        self.texts: dict[Request, Sequence[int]] = {}
        self._acceptance, self._random, self._n_known = acceptance, random.Random(0), n_known

    def _next(self, requests: Sequence[Request], drafts: Mapping[Request, list[int]]) -> dict[Request, int]:
        super()._next(requests, drafts)
        return {request: self._choice(request, drafts[request]) for request in requests}

    def _choice(self, request: Request, draft: list[int]) -> int:
        begun, text = request.num_output_tokens, self.texts[request]
        after = text[begun : begun + len(draft) + 1]
        if not after:
            return 0
        right = list(after[:-1]) == draft and self._random.random() < self._acceptance
        return after[-1] if right else (after[-1] + 1) % self._n_known


def layer_and_head(main: Engine) -> Engine:
    """An engine of a model's first layer and its output matrix, with a cache for as many sequences; loaded."""
    hparams = main.model.hparams
    one = replace(main.model, hparams=replace(hparams, n_layer=1, windowed=hparams.windowed[:1]))
    config = EngineConfig(
        n_ctx=main.n_ctx, max_sequences=main.config.max_sequences, cache_type=main.config.cache_type,
        n_batch=main.config.n_batch, weight_cache=False,
    )
    engine = Engine(one, main.backends, config)
    engine.load()
    return engine


@dataclass
class Drafts:
    """A way to draft: one of KINDS; `acceptance` is that of a simulated drafter."""

    kind: str
    acceptance: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"unknown drafts {self.kind!r} (allowed: {', '.join(KINDS)})")
        if self.kind == "simulated" and self.acceptance is None:
            raise UsageError("simulated drafts need an acceptance: --acceptance P, how likely a token is right")
        if self.kind != "simulated" and self.acceptance is not None:
            raise UsageError("--acceptance is for --speculate simulated: an acceptance is that of simulated drafts")
        if self.acceptance is not None and not 0 <= self.acceptance <= 1:
            raise UsageError(f"an acceptance of {self.acceptance:g} (allowed: 0 to 1)")

    @property
    def setting(self) -> Speculate:
        """What a model is loaded with for them."""
        return cast(Speculate, "lookup" if self.kind == "simulated" else self.kind)

    @property
    def name(self) -> str:
        return self.kind if self.acceptance is None else f"{self.kind} {self.acceptance:g}"

    def core(self, model: Model) -> EngineCore:
        """What computes replies so; it learns as it goes on, as a server's does."""
        if self.kind == "auto":
            core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab, draft=model.draft, head=model.head)
            if core.speculator is None:
                raise UsageError("auto makes no drafts for this model on this device", argument="speculate")
            return core
        core = plain_core(model)
        drafters = list[Drafter]()
        if self.kind in ("mtp", "draft"):
            drafters += [] if model.head is None else [head_drafter(model.head, core.n_known)]
            drafters += [] if model.draft is None else [DraftModel(model.draft, core.n_known)]
            if not drafters:
                problem = "there is no head in the file, and no draft model or head beside it: --draft MODEL names one"
                raise UsageError(problem, argument="draft")
        elif self.acceptance is not None:
            drafters.append(SimulatedDrafter(layer_and_head(model.engine), core.n_known, self.acceptance))
        core.speculator = Speculator(core.sampler, core.scheduler.budget, drafters, lookup=self.kind == "lookup")
        return core


def plain_core(model: Model) -> EngineCore:
    """What computes replies without drafts."""
    core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab)
    core.speculator = None
    return core


@dataclass(frozen=True)
class Replies:
    """Replies made together: their tokens, how fast those after the first came, and what became of drafts."""

    texts: list[list[int]]
    rate: float
    steps: int
    drafted: int
    accepted: int


def replied(
    model: Model, core: EngineCore, params: SamplingParams, replies: int, tokens: int,
    texts: Sequence[Sequence[int]] = (),
) -> Replies:
    """As many replies at a time, of `tokens` each; `texts` are those that a simulated drafter knows."""
    before = core.stats()
    end_ids = frozenset(model.tokenizer.stop_ids)
    speculator = core.speculator
    requests = list[Request]()
    for i, asked in zip(range(replies), _prompts(), strict=False):
        prompt = model.encode_prompt(asked)
        own = replace(params, seed=None if params.seed is None else params.seed + i)
        requests.append(Request(prompt, make_sampler(own, n_prompt=len(prompt), end_ids=end_ids), tokens))
    if speculator is not None:
        speculator.history = HistoryDrafter()  # the same prompts came before
        for drafter in speculator.drafters:
            if isinstance(drafter, SimulatedDrafter):
                drafter.texts.update(zip(requests, texts, strict=True))
    for request in requests:
        core.add(request)
    while any(not request.num_output_tokens for request in requests):
        core.step()
    done, begun = sum(request.num_output_tokens for request in requests), time.perf_counter()
    while not core.scheduler.idle:
        core.step()
    seconds = time.perf_counter() - begun
    made = sum(request.num_output_tokens for request in requests) - done
    model.engine.prefixes.clear()
    after = core.stats()
    return Replies(
        [list(request.output_tokens) for request in requests], made / seconds, after.steps - before.steps,
        after.drafted_tokens - before.drafted_tokens, after.accepted_tokens - before.accepted_tokens,
    )


def _prompts() -> Sequence[str]:
    return [f"{text} ({n})" if n else text for n in range(16) for text in ASKED]


def compared(
    model: Model, way: Drafts, how: str, replies: int, tokens: int, turns: int,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """A row of a result: replies with drafts and without, A B B A, as often as `turns`, after a turn that learns.

    `others_cpu` is the share of the CPU that other programs took meanwhile.

    Raises UsageError for settings that there are not, and where texts differ.
    """
    if how not in SETTINGS:
        raise UsageError(f"unknown settings {how!r} (allowed: {', '.join(SETTINGS)})")
    params, plain, drafting = SETTINGS[how], plain_core(model), way.core(model)
    first = replied(model, plain, params, replies, tokens)
    found: dict[bool, list[Replies]] = {False: [], True: []}
    watch = LoadWatch([os.getpid()])
    for turn in range(turns + 1):
        progress(f"{way.name}, {how}, {replies} at a time, {tokens} tokens each: turn {turn} of {turns}")
        for drafts in (False, True) if turn % 2 else (True, False):
            core = drafting if drafts else plain
            found[drafts].append(replied(model, core, params, replies, tokens, first.texts))
    gains = [with_.rate / without.rate for with_, without in zip(found[True], found[False], strict=True)]
    learned, last = gains[1:], found[True][1:]
    drafted = sum(one.drafted for one in last)
    return {
        "drafts": way.kind, "simulated": way.acceptance, "settings": how, "replies": replies, "tokens": tokens,
        "rate": statistics.median(one.rate for one in last),
        "rate_without": statistics.median(one.rate for one in found[False][1:]),
        "gain": statistics.median(learned), "gains": gains, "drafted": drafted,
        "accepted": sum(one.accepted for one in last),
        "acceptance": sum(one.accepted for one in last) / drafted if drafted else None,
        "tokens_a_step": replies * tokens * len(last) / sum(one.steps for one in last),
        "others_cpu": watch.others(),
        "same": all(one.texts == first.texts for one in (*found[True], *found[False])),
    }
