"""A request: a prompt, what is asked for after it, and how far it is."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.output.reply import FinishReason, LogProbs
from octavo.runtime.sampling.banned_strings import BannedStrings
from octavo.runtime.sampling.sampler import ChainSampler, Sampler
from octavo.runtime.sampling.token_counts import CountedText
from octavo.runtime.scheduler.constraint import Constraint, PendingMask, replay
from octavo.runtime.speculation.draft_record import DraftRecord

if TYPE_CHECKING:
    from octavo.runtime.cache.tiers.restore import Restore


class State(Enum):
    """Where a request is: in the queue, in the steps, or at its end."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Request:
    """Tokens to continue. `tokens` are those of the prompt and those sampled so far; `sequence` has what is computed.

    prompt      at least one token
    sampler     chooses a token from logits
    max_tokens  most tokens to choose; None for as many as the context holds
    stop_ids    tokens that end it
    priority    requests of a lower number go first, those of one number in the order in which they came
    key         whose it is: keys share steps by `weight`, see `FairShares`; "" where all is one's
    deadline    the time of `clock` after which it ends
    cache_salt  requests with the same one share pages of the prefix cache; those of different adapters have others
    adapter     the slot of the adapter that it is computed with; None for none
    logprobs    with each token, as many of the likeliest ones as this, and how likely they are; None for none
    after_sampling  how likely tokens are as the sampler draws them, not before any of its settings
    constraint  what the reply may be; None for anything
    siblings    requests of the same prompt, which is computed once for all of them
    failure     what went wrong, of one that ended with "error"
    cached      tokens of the prompt that were in the cache when it was admitted
    num_bypassed  times that a shorter prompt went first
    found       of a Conversation's requests: the log-probabilities, token by token
    drafts      what became of drafts of its tokens
    paused      whether it is left out of steps for now
    yields      whether it can be preempted between steps when another request is short of pages
    end         the number of tokens that it ends with at the latest, set by the scheduler
    has_processors       whether its sampler changes logits
    argmax_suppressed    whether a token that it may not sample was the argmax, and may be so again
    num_inflight_tokens  tokens that steps in flight compute
    num_pending_outputs  tokens that these sample
    awaited_prefill      the request whose prefill it waits for, and how many tokens of that
    held                 what steps brought and may not be shown yet, as it may be a part of a banned string
    state_checkpoints    lengths at which a step ends and the state is kept, where layers have states
    restore              what is found of its prompt beyond the pool
    """

    prompt: Seq[int]
    sampler: Sampler
    max_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    priority: int = 0
    cache_salt: str = ""
    logprobs: int | None = None
    constraint: Constraint | None = None
    siblings: list[Request] = field(default_factory=list)
    after_sampling: bool = False
    adapter: int | None = None
    key: str = ""
    weight: float = 1.0
    deadline: float = math.inf
    tokens: CountedText = field(init=False)
    sequence: Sequence = field(default_factory=Sequence, init=False)
    state: State = field(default=State.WAITING, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    failure: Exception | None = field(default=None, init=False)
    cancelled: bool = field(default=False, init=False)
    cached: int = field(default=0, init=False)
    num_bypassed: int = field(default=0, init=False)
    arrival: int = field(default=0, init=False)
    found: list[LogProbs] = field(default_factory=list, init=False)
    drafts: DraftRecord = field(default_factory=DraftRecord, init=False)
    paused: bool = field(default=False, init=False)
    yields: bool = field(default=False, init=False)
    end: int = field(default=0, init=False)
    has_processors: bool = field(init=False)
    argmax_suppressed: bool = field(default=False, init=False)
    num_inflight_tokens: int = field(default=0, init=False)
    num_pending_outputs: int = field(default=0, init=False)
    awaited_prefill: tuple[Request, int] | None = field(default=None, init=False)
    state_checkpoints: tuple[int, ...] = field(default=(), init=False)
    restore: Restore | None = field(default=None, init=False)
    banned: BannedStrings | None = field(init=False)
    held: list[RequestOutput] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.tokens = CountedText(self.prompt)
        self.banned = self.sampler.banned if isinstance(self.sampler, ChainSampler) else None
        self.has_processors = isinstance(self.sampler, ChainSampler) and len(self.sampler.processors) > 0

    def go_on(self, tokens: Seq[int]) -> None:
        """Have these tokens, sampled elsewhere, before any other; it is computed like one that was preempted."""
        for token in tokens:
            self.tokens.append(token)
            if self.banned is not None:  # what was shown is none of them
                self.banned.push(token)
        if self.constraint is not None:
            replay(self.constraint, tokens)

    @property
    def rank(self) -> tuple[int, int]:
        """The lower, the sooner."""
        return self.priority, self.arrival

    @property
    def left(self) -> int:
        """Tokens to compute before the next one can be sampled; no step in flight has them."""
        return self.length - len(self.sequence.tokens) - self.num_inflight_tokens

    @property
    def length(self) -> int:
        """Tokens, pending ones included."""
        return len(self.tokens) + self.num_pending_outputs

    @property
    def is_plain(self) -> bool:
        """Whether only its token is asked for, sampled from unchanged logits."""
        asks = self.constraint is not None or self.logprobs is not None
        return not asks and isinstance(self.sampler, ChainSampler) and not self.has_processors

    @property
    def is_greedy(self) -> bool:
        """Whether its token is the argmax of unchanged logits, unless that is suppressed."""
        asks = self.constraint is not None or self.logprobs is not None or self.argmax_suppressed
        return not asks and isinstance(self.sampler, ChainSampler) and self.sampler.is_argmax

    def suppresses(self, token: int) -> bool:
        """Whether the argmax is a token that it may not sample; its logits are changed from then on."""
        found = isinstance(self.sampler, ChainSampler) and token in (self.sampler.suppressed or ())
        self.argmax_suppressed = self.argmax_suppressed or found
        return found

    @property
    def pending_mask(self) -> PendingMask | None:
        """What the constraint of this request, or of a sibling, waits for."""
        held = (r.constraint for r in (self, *self.siblings) if r.constraint is not None)
        return next((late for one in held if (late := one.pending_mask) is not None), None)

    @property
    def over(self) -> bool:
        """Whether no more tokens may come."""
        return self.finish_reason is not None or self.cancelled

    @property
    def num_output_tokens(self) -> int:
        """How many tokens were sampled so far."""
        return len(self.tokens) - len(self.prompt)

    @property
    def num_shown(self) -> int:
        """How many of them may be shown: all that there will be of an ended one."""
        return self.num_output_tokens if self.banned is None or self.over else self.banned.shown

    def released(self, output: RequestOutput) -> list[RequestOutput]:
        """What may be shown once a step has brought `output`, which stays held back for now if it is not among it."""
        if self.banned is None:
            return [output]
        if output.token is not None:
            self.held.append(output)
        shown = self.num_output_tokens - self.num_shown  # tokens that are still held back
        n = len(self.held) - shown if output.finish_reason is None else len(self.held)
        found, self.held = self.held[:n], self.held[n:]
        return [*found, output] if output.token is None and output.finish_reason is not None else found

    @property
    def output_tokens(self) -> Seq[int]:
        """Tokens sampled so far."""
        return self.tokens[len(self.prompt) :]


@dataclass(slots=True)
class RequestOutput:
    """What a step brought for a request: a token, or None where it ended without one."""

    request: Request
    token: int | None
    finish_reason: FinishReason | None = None
    logprobs: LogProbs | None = None
