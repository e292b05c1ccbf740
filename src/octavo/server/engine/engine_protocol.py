"""Messages between front and engine: msgpack, and nothing that could be executed.

The front sends `Add`, `Cancel`, `Score`, `Embed`, `SlotAction`, `Ping` and `Quit`; the engine `Ready` or `Broken` once,
then a `Step` for each step, and an answer to each `Score`, `Embed`, `SlotAction` and `Ping`. One that is to ask sends
`Asks` before it reads weights, waits for `Go`, and tells by `Loading` how far it is.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.runtime.engine.stats import Stats
from octavo.runtime.grammar.grammar import Grammar
from octavo.runtime.output.reply import LogProbs
from octavo.runtime.output.thinking import Thinking
from octavo.runtime.sampling.sampler import SamplingParams


class Add(msgspec.Struct, tag="add", array_like=True, frozen=True):
    """Replies to a prompt, which is computed once for all of them.

    ids             one for each reply; never used twice
    seed            of the first reply's random numbers, one more for each that follows
    grammar         what replies may be, after `thinking`
    after_sampling  log-probabilities are of what the sampler draws from, not of all tokens
    progress        tell how far the prompt is computed
    output          what the reply, which is the only one, has so far: another engine computed it
    adapters        by name, each with a scale, that they are computed with
    priority, key, weight  see `Request`; the key is a name
    max_time        seconds after which the reply ends
    predict_time    seconds from its first token after which it ends, once it has a line end
    """

    ids: list[int]
    prompt: list[int]
    sampling: SamplingParams
    seed: int
    max_tokens: int | None = None
    logprobs: int | None = None
    cache_salt: str = ""
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    after_sampling: bool = False
    progress: bool = False
    output: list[int] = []
    adapters: list[tuple[str, float]] = []
    priority: int = 0
    key: str = ""
    weight: float = 1.0
    max_time: float | None = None
    predict_time: float | None = None


class Cancel(msgspec.Struct, tag="cancel", array_like=True, frozen=True):
    """Replies to end."""

    ids: list[int]


class Score(msgspec.Struct, tag="score", array_like=True, frozen=True):
    """Log-probabilities of each token of a text after those before it, with the `k` likeliest in its place."""

    id: int
    tokens: list[int]
    k: int


RANK = "rank"
"""The pooling of rerankers."""


class Embed(msgspec.Struct, tag="embed", array_like=True, frozen=True):
    """Vectors of texts, which are tokens already; `pooling` "" is the model's own.

    With "rank" they are scores, vectors of one value, of pairs of texts: `seconds` says how many tokens at the end of
    each are of the second one.
    """

    id: int
    texts: list[list[int]]
    pooling: str
    normalize: bool
    seconds: list[int] = []


SlotKind = Literal["save", "restore", "erase"]


class SlotAction(msgspec.Struct, tag="slot", array_like=True, frozen=True):
    """Save a conversation to a file, restore it, or erase it; see `octavo.runtime.cache.tiers.slot_file`."""

    id: int
    action: SlotKind
    tokens: list[int]
    salt: str
    path: str = ""


class LoadAdapter(msgspec.Struct, tag="load_adapter", array_like=True, frozen=True):
    """Read an adapter of this machine, for requests that name it; answered by `AdaptersLoaded`."""

    id: int
    name: str
    path: str


class UnloadAdapter(msgspec.Struct, tag="unload_adapter", array_like=True, frozen=True):
    """Forget one."""

    id: int
    name: str


class Ping(msgspec.Struct, tag="ping", array_like=True, frozen=True):
    """Is the engine there? It is answered beside its steps."""


class Quit(msgspec.Struct, tag="quit", array_like=True, frozen=True):
    """End at once."""


class Go(msgspec.Struct, tag="go", array_like=True, frozen=True):
    """The answer to `Asks`: there is room for the model."""


class Asks(msgspec.Struct, tag="asks", array_like=True, frozen=True):
    """Bytes that the model is to take: weights, full caches, what steps work with, and the process so far.

    free  of the memory that it lies in; None where that is not known
    """

    weights: int
    caches: int
    work: int
    process: int
    free: int | None = None

    @property
    def total(self) -> int:
        return self.weights + self.caches + self.work + self.process


class Loading(msgspec.Struct, tag="loading", array_like=True, frozen=True):
    """How far a model is that is being loaded: what goes on, how much of it is done, and of how much."""

    what: str
    done: int
    total: int


class AdapterInfo(msgspec.Struct, frozen=True):
    """An adapter that requests may choose."""

    id: int
    name: str
    path: str
    rank: int


class DraftInfo(msgspec.Struct, frozen=True):
    """What drafts replies: its kind, the tokens of a draft at the most, and the file of a head or a draft model."""

    kind: str
    tokens: int
    file: str | None = None


class Info(msgspec.Struct, frozen=True):
    """What an engine has loaded; `max_loras` and `adapters` are of adapters that requests choose."""

    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_params: int
    nbytes: int
    n_pages: int
    page_size: int
    max_sequences: int
    device: str
    embeds: bool = False
    pooling: str | None = None
    pid: int = 0
    max_loras: int = 0
    adapters: list[AdapterInfo] = []
    drafts: list[DraftInfo] = []

    @property
    def has_draft(self) -> bool:
        """Whether there is a head or a draft model."""
        return any(one.file is not None for one in self.drafts)


class Prefill(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How far a prompt is computed.

    cached   tokens that were in the cache
    read     tokens that are there now
    seconds  since it began
    queued   seconds before that
    """

    cached: int
    read: int
    seconds: float
    queued: float = 0.0


class EngineOutput(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a step brought for a reply: a token, or None where it ended without one or its prompt is being computed.

    finish   why it ended: "stop", "length", "context", "time", "interrupted" or "error"; None before that
    prefill  with its first token, or while its prompt is being computed
    error    the kind of error and its message
    drafted  of one that ended: tokens of drafts that were verified, and how many were accepted; None for none
    """

    id: int
    token: int | None
    finish: str | None = None
    logprobs: LogProbs | None = None
    prefill: Prefill | None = None
    error: tuple[str, str] | None = None
    drafted: tuple[int, int] | None = None


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The model is loaded."""

    info: Info


class Broken(msgspec.Struct, tag="broken", array_like=True, frozen=True):
    """The model can't be loaded; `argument` is the one that is wrong, see UsageError."""

    kind: str
    message: str
    argument: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Broken:
        return cls(type(error).__name__, str(error), getattr(error, "argument", None))


class StepOutputs(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """What a step brought, and the engine's counts after it."""

    outputs: list[EngineOutput]
    stats: Stats
    seconds: float


class Pong(msgspec.Struct, tag="pong", array_like=True, frozen=True):
    """The answer to a `Ping`: seconds since the engine last took messages; 0 while it waits for some, or loads."""

    seconds: float


class Scored(msgspec.Struct, tag="scored", array_like=True, frozen=True):
    """The answer to a `Score`: a value for each token but the first."""

    id: int
    logprobs: list[LogProbs]


class Vectors(msgspec.Struct, tag="vectors", array_like=True, frozen=True):
    """The answer to an `Embed`: float32 [n, width], little-endian.

    queued, seconds  in the queue, and from then to the end
    pieces           in which it was computed
    """

    id: int
    width: int
    data: bytes
    queued: float = 0.0
    seconds: float = 0.0
    pieces: int = 0


class SlotDone(msgspec.Struct, tag="slot_done", array_like=True, frozen=True):
    """The answer to a `SlotAction`: the tokens that it was about, bytes of the file, and seconds."""

    id: int
    tokens: list[int]
    n: int
    nbytes: int
    seconds: float


class AdaptersLoaded(msgspec.Struct, tag="adapters", array_like=True, frozen=True):
    """The answer to a `LoadAdapter` or `UnloadAdapter`: all adapters that there are."""

    id: int
    adapters: list[AdapterInfo]


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """A message that wants an answer, and can't be computed."""

    id: int
    kind: str
    message: str


ToEngine = Add | Cancel | Score | Embed | SlotAction | LoadAdapter | UnloadAdapter | Ping | Quit | Go
ToFront = Asks | Loading | Ready | Broken | StepOutputs | Pong | Scored | Vectors | SlotDone | AdaptersLoaded | Failed

to_engine = msgspec.msgpack.Decoder(ToEngine)
to_front = msgspec.msgpack.Decoder(ToFront)
encode = msgspec.msgpack.Encoder().encode
