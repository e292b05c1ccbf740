"""GenerationRequest: what a request of any route becomes. Prompts, sampling, and where replies end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from octavo.runtime.grammar.grammar import Grammar
from octavo.runtime.output.thinking import Thinking
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.server.generation.ids import random_seed
from octavo.server.generation.output_parser import OutputParser
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import bad
from octavo.server.routes.schema import Sampling
from octavo.server.tool_calls.tools import ToolUse

SAMPLERS: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0}, "top_n_sigma": {"top_n_sigma": -1.0}, "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0}, "top_p": {"top_p": 1.0}, "min_p": {"min_p": 0.0}, "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
}
"""llama-server's names of what chooses tokens, in the order in which it is done, and without which settings it is."""
BUDGETS = ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens")
"""Names of the tokens that thinking may have."""
ALWAYS_OFF = ("adaptive_p",)
"""Those that there are not, and whose own fields are refused unless they are off."""
LETTERS = {
    "d": "dry", "k": "top_k", "y": "typ_p", "p": "top_p", "s": "top_n_sigma", "m": "min_p", "t": "temperature",
    "x": "xtc", "i": "infill", "e": "penalties", "a": "adaptive_p",
}
RANDOM_SEEDS = (-1, 0xFFFFFFFF)
"""Which llama-server has for a random seed, the second as a number of 32 bits that its clients send back."""
FIELDS = tuple(f.name for f in fields(SamplingParams) if f.name in Sampling.model_fields and f.name != "seed")


@dataclass(frozen=True)
class GenerationRequest:
    """Replies to prompts.

    prompts         tokens; `n` replies to each
    sampling        how tokens are sampled; the seed of the first reply is `seed`, then seed + 1 and so on
    max_tokens      of a reply; None for as many as the context holds, 0 for reading the prompt alone
    stop            texts that end a reply and are not part of it
    logprobs        how many of the likeliest tokens come with each token; None for none
    after_sampling  log-probabilities are of what the sampler draws from, not of all tokens
    progress        the engine tells how far prompts are computed
    cache_salt      requests with the same one share cached prompts
    grammar         what replies may be, after thinking; None for anything
    thinking        what the model writes around its thinking; None where it is not taken out of replies
    tools           those that replies may call
    shows_thinking  thinking stays in the text
    slot            of llama-server's, that a single reply is to be of
    adapters        by name, each with a scale, that replies are computed with
    key             that the request came with
    priority        replies of a lower number go first
    max_time        seconds until replies end
    predict_time    seconds from a reply's first token until it ends, once it has a line end
    goes_on         replies go on in the text of their prompts: a space that they begin with is one between words
    fills           so they do in the middle of it, where a prompt ends with a control token
    """

    prompts: Sequence[list[int]]
    sampling: SamplingParams
    seed: int
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    cache_salt: str = ""
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    tools: ToolUse | None = None
    shows_thinking: bool = False
    after_sampling: bool = False
    progress: bool = False
    goes_on: bool = False
    fills: bool = False
    slot: int | None = None
    adapters: Sequence[tuple[str, float]] = ()
    key: str = ""
    priority: int = 0
    max_time: float | None = None
    predict_time: float | None = None

    def parser(self, service: Service, prompt: Sequence[int]) -> OutputParser:
        """The parser of a reply to one of the prompts."""
        after = prompt if self.goes_on else ()
        if self.fills:
            after = next(([one] for one in reversed(prompt) if not service.tokenizer.is_special(one)), [])
        thinking = None if self.shows_thinking else self.thinking
        if self.tools is None:
            return OutputParser(service.tokenizer, self.stop, thinking, after=after)
        parser, call_id = self.tools.parser(), self.tools.call_id()
        return OutputParser(service.tokenizer, self.stop, thinking, parser, call_id, after, self.tools.customs)


def sampling_of(service: Service, body: Sampling, logit_bias: Mapping[int, float]) -> SamplingParams:
    """How a request wants tokens to be chosen, over what the server and the model's file have.

    Raises ApiError for tokens that are not in the vocabulary.
    """
    given = {name: value for name in FIELDS if (value := getattr(body, name)) is not None}
    if body.repetition_penalty is not None:
        given.setdefault("repeat_penalty", body.repetition_penalty)
    given = {**service.recommended, **service.options.sampling, **given}
    if "top_k" in given:
        given["top_k"] = max(given["top_k"], 0)
    if given.get("repeat_last_n") == -1:
        given["repeat_last_n"] = service.info.n_ctx
    if (budget := next((n for name in BUDGETS if (n := getattr(body, name)) is not None), None)) is not None:
        given["reasoning_budget"] = budget
    if body.samplers is not None:
        given |= _without(body.samplers)
    if given.get("top_p") == 0:  # nothing but the likeliest token
        given.update(top_p=1.0, top_k=1)
    n_vocab = service.info.n_vocab
    for name, tokens in (("logit_bias", logit_bias), ("stop_token_ids", given.get("stop_token_ids", ()))):
        for token in tokens:
            if not 0 <= token < n_vocab:
                raise bad(f"{name}: token {token} is not in the vocabulary (allowed: 0 to {n_vocab - 1})", name)
    return SamplingParams(**{**given, "logit_bias": dict(logit_bias)})


def _without(samplers: Sequence[str] | str) -> dict[str, float]:
    """Settings that turn off what is not among llama-server's samplers. Raises ApiError for another order than ours."""
    names = ["typ_p" if one == "typical_p" else LETTERS.get(one, one) for one in samplers]
    ours = [name for name in names if name not in ALWAYS_OFF]
    if ours != [name for name in SAMPLERS if name in ours]:
        allowed = f"these, in this order: {', '.join(SAMPLERS)}"
        raise bad(f"samplers has {', '.join(ours)} (allowed: {allowed})", "samplers")
    return {name: value for one, off in SAMPLERS.items() if one not in ours for name, value in off.items()}


def refuse_budget(body: Sampling) -> None:
    """Raise ApiError for a budget of thinking where prompts are texts as they come."""
    for name in BUDGETS:
        if getattr(body, name) not in (None, -1):
            raise bad(f"{name} is for replies to messages: use /v1/chat/completions (allowed here: -1)", name)


def turn_of(body: Sampling, key: str) -> dict[str, Any]:
    """Whose turn it is for a request, and how long its replies may take, as fields of GenerationRequest."""
    most = body.t_max_predict_ms
    return {
        "key": key, "priority": body.priority or 0, "max_time": body.max_time,
        "predict_time": most / 1000 if most is not None and most > 0 else None,
    }


def seed_of(service: Service, body: Sampling) -> int:
    """The seed of a request, or else the server's, 64 bits; a random one for -1, as clients of llama-server send."""
    seed = service.options.seed if body.seed is None else body.seed
    return random_seed() if seed in RANDOM_SEEDS else seed % (1 << 64)


def most_tokens(service: Service, *given: int | None) -> int | None:
    """The most tokens of a reply: the first number that is given, or else the server's; None for no limit, as -1."""
    found = next((most for most in given if most is not None), service.limit)
    return None if found is None or found < 0 else found


def shows_progress(body: Sampling) -> bool:
    """Whether a reply tells how far its prompt is read; `stream` is a field of each kind of request."""
    return bool(body.return_progress and getattr(body, "stream", None))


def stops_of(body: Sampling) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def named_biases(given: Mapping[str, float] | None) -> dict[int, float]:
    """OpenAI's logit_bias, whose keys are texts. Raises ApiError for one that is not a number of a token."""
    found = {}
    for key, value in (given or {}).items():
        if not (key.isascii() and key.isdigit()) or len(key) > 10:
            raise bad(f"logit_bias: {key!r} is not a token (allowed: a number)", "logit_bias")
        found[int(key)] = float(value)
    return found
