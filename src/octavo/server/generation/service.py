"""Service: what all routes share. The model's text side, the engine's client, and what clients are held to."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from octavo import __version__
from octavo.errors import HostMemoryError
from octavo.io.gguf import GGUFFile
from octavo.runtime.grammar.grammar import Grammars
from octavo.runtime.grammar.grammar_process import SLOW_NICE
from octavo.runtime.options import recommended, usual_limit
from octavo.server.engine.client import EngineClient
from octavo.server.engine.engine_protocol import Info
from octavo.server.generation.adapters import Adapters
from octavo.server.generation.slots import Slots
from octavo.server.http.api_errors import ApiError, PromptTooLongError, bad, ending, unavailable
from octavo.server.http.body import Bodies
from octavo.server.model_name import plain_name
from octavo.server.routes.metrics import Metrics
from octavo.server.routes.template_variables import usual_variables
from octavo.server.serve_options import KeyShare, Limits, ServerOptions
from octavo.text import ChatTemplate, Tokenizer
from octavo.text.template import TOOL_USE

if TYPE_CHECKING:
    from octavo.runtime.reranking import PairEncoder

P = ParamSpec("P")
R = TypeVar("R")
GRAMMAR_THREADS = 8
"""Grammars that are compiled at a time, in processes, by which the front finds out whether they can be used."""
LONGEST_WAIT = 120
"""Seconds that a client is told to wait at most; OpenAI's does not wait longer."""


class Service:
    """A model that is served.

    compiling      requests whose grammars are being looked at
    draining       no more requests are taken, as the server is about to end
    file           the model's, at `path`
    template       what writes messages
    tool_template  what does where a request has tools, if that is another
    variables      of these where a request sets none
    limit          of a reply's tokens where a request asks for no number; None or -1 for none
    """

    def __init__(self, client: EngineClient, file: GGUFFile, tokenizer: Tokenizer, options: ServerOptions) -> None:
        self.client, self.tokenizer, self.options = client, tokenizer, options
        self.file, self.path = file, str(file.path)
        self.tool_template: ChatTemplate | None = None
        if options.template_text is not None:
            self.template = tokenizer.own_template(options.template_text)
        else:
            self.template = tokenizer.chat_template(options.chat_template)
            if options.chat_template is None and TOOL_USE in tokenizer.template_names:
                self.tool_template = tokenizer.chat_template(TOOL_USE)
        templates = [one for one in (self.template, self.tool_template) if one is not None]
        self.variables = usual_variables(options.variables, options.reasoning, templates)
        self.grammars = Grammars(tokenizer, SLOW_NICE)
        self._grammar_threads = ThreadPoolExecutor(GRAMMAR_THREADS, "grammar")
        self.recommended = recommended(file)
        self.limit = options.max_tokens
        if self.limit is None and options.template_text is None:
            self.limit = usual_limit(file)
        self.created = int(time.time())
        self.fingerprint = f"octavo-{__version__}"
        self.draining = False
        self._slots: Slots | None = None
        self.adapters = Adapters(client, (options.name, *options.aliases))
        self.metrics, self.bodies = Metrics(client, options.name), Bodies()
        self._tokens_under_way = self.compiling = 0
        self.shares = options.shares_by_digest()
        self._taken: Counter[KeyShare | None] = Counter()  # replies and tokens of each key
        self._taken_tokens: Counter[KeyShare | None] = Counter()

    async def in_grammar_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call what waits for grammars to be compiled.

        Raises ApiError where the system has no room for a thread or a process.
        """
        call = partial(function, *args, **kwargs)
        try:
            called = asyncio.get_running_loop().run_in_executor(self._grammar_threads, call)
        except RuntimeError as error:
            raise unavailable(f"the system can't start a thread for a grammar: {error}") from None
        self.compiling += 1
        try:
            return await called
        except HostMemoryError as error:
            raise unavailable(str(error)) from None
        finally:
            self.compiling -= 1

    @property
    def info(self) -> Info:
        """What is loaded. Raises ApiError as long as that is not known."""
        if self.client.info is None:
            raise unavailable("Loading model")
        return self.client.info

    def health(self) -> ApiError | None:
        """Why nothing can be answered now; None where it can."""
        if self.draining:
            return ending()
        if self.client.state == "loading":
            return unavailable("Loading model", code="loading")
        if self.client.state == "dead":
            return unavailable(f"The engine ended and is being restarted: {self.client.failure}", code="engine_dead")
        if not self.client.answers:
            return unavailable("The engine does not answer", code="engine_silent")
        if self.client.stalled:
            return unavailable("The engine ends no step, though replies are under way", code="engine_stalled")
        return None

    def admit(self, replies: int, tokens: int, *, again: bool = False, share: KeyShare | None = None) -> None:
        """Take replies to prompts of `tokens` together. Raises ApiError where that is too much for now, or ever.

        `leave` with the same numbers gives their room back. `again`: another server had taken them, and they may not
        be refused for their number now. A key, told by its `share`, that has taken less than that of the room is not
        refused because others have taken all of it.
        """
        if (why := self.health()) is not None:
            raise why
        limits, room = self.options.limits, self.info.max_sequences
        if replies > room + limits.queue:
            raise bad(f"the request is for {replies} replies, n to each prompt (allowed: up to {room + limits.queue})")
        waiting = self.metrics.replies + replies - room
        long = self._tokens_under_way and self._tokens_under_way + tokens > limits.queue_tokens
        if not again and (waiting > limits.queue or long) and not self._has_room(share, replies, tokens):
            seconds = max(1, min(LONGEST_WAIT, round(self.metrics.reply_seconds * waiting / room)))
            self.metrics.refused.inc()
            if share is not None:
                self.metrics.of_keys.refused.labels(share.name).inc()
            raise ApiError(
                429,
                f"{self.metrics.replies} replies run or wait (allowed: {room} running, {limits.queue} waiting)",
                code="queue_full", headers={"Retry-After": str(seconds)},
            )
        self._take(replies, tokens, share)

    def _has_room(self, share: KeyShare | None, replies: int, tokens: int) -> bool:
        """Whether a key has taken so little that these stay within its share."""
        if share is None:
            return False
        part, limits = share.weight / sum(one.weight for one in self.shares.values()), self.options.limits
        most = part * (self.info.max_sequences + limits.queue)
        taken = self._taken_tokens[share]
        return self._taken[share] + replies <= most and (not taken or taken + tokens <= part * limits.queue_tokens)

    def _take(self, replies: int, tokens: int, share: KeyShare | None) -> None:
        self.metrics.replies += replies
        self._tokens_under_way += tokens
        self._taken[share] += replies
        self._taken_tokens[share] += tokens

    @contextmanager
    def admitted(self, tokens: int) -> Iterator[None]:
        """Have room, as a reply has, for other work with this many tokens. Raises ApiError as `admit` does."""
        self.admit(1, tokens)
        self.metrics.beside += 1
        try:
            yield
        finally:
            self.metrics.beside -= 1
            self.leave(1, tokens)

    def leave(self, replies: int, tokens: int, share: KeyShare | None = None) -> None:
        self._take(-replies, -tokens, share)

    def require_model(self, name: str | None) -> str:
        """The name of the model that answers. Raises ApiError for another one where that is not to be."""
        if (adapter := self.adapters.named(name)) is not None:
            return adapter
        if self.options.strict_model and name is not None and not self.is_called(name):
            raise ApiError(404, f"unknown model {name!r}: this server has {self.options.name}", param="model",
                           code="model_not_found")
        return self.options.name

    def is_called(self, name: str) -> bool:
        names = (self.options.name, *self.options.aliases)
        return name in names or plain_name(name) in names

    def require_generation(self) -> None:
        if self.info.embeds:
            what, path = ("a reranker", "rerank") if self.is_reranker else ("an embedding model", "embeddings")
            raise bad(f"{self.options.name} is {what}, which generates no text: use /v1/{path}")

    @cached_property
    def is_reranker(self) -> bool:
        """Whether the model scores documents."""
        from octavo.runtime.text_embedding import is_reranker

        return is_reranker(self.file)

    @cached_property
    def pairs(self) -> PairEncoder:
        """What makes tokens of queries and documents. Raises ApiError for a model that is not a reranker."""
        from octavo.models import read_model
        from octavo.runtime.reranking import PairEncoder

        if not self.is_reranker:
            raise bad(f"{self.options.name} is not a reranker, which alone scores documents")
        return PairEncoder(self.tokenizer, read_model(self.file))

    @property
    def slots(self) -> Slots | None:
        """The conversations answered last, where they can be saved."""
        if self._slots is None and self.options.slot_path is not None:
            self._slots = Slots(self.info.max_sequences)
        return self._slots

    def cache_salt(self, key: str, salt: str | None) -> str:
        """What requests must have in common to share cached prompts: the key that they came with, and their salt.

        Behind a NUL stands the adapter of a request, which the engine adds. Raises ApiError for a salt with one.
        """
        if "\0" in (salt or ""):
            raise bad("cache_salt: NUL is no part of a salt", "cache_salt")
        known = "" if self.options.share_cache else key
        if not known:  # routers that know the salt find it in KV events
            return salt or ""
        return hashlib.sha256(f"{known}\0{salt or ''}".encode()).hexdigest()[:16]

    @property
    def limits(self) -> Limits:
        """What is taken of clients: bodies may have as many bytes for each token of a long context, too."""
        limits = self.options.limits
        if self.client.info is None:
            return limits
        most = self.most_tokens
        return replace(limits, body=max(limits.body, limits.token * most), values=max(limits.values, 2 * most))

    @property
    def most_tokens(self) -> int:
        """Tokens that a prompt and its reply may have."""
        return min(self.info.n_ctx, self.info.n_pages * self.info.page_size)

    def require_short(self, text: str, param: str) -> None:
        """Raises ApiError for a text that is too long whatever its tokens are, before time and memory go into them."""
        least = self.tokenizer.least_tokens(text)
        if least > self.most_tokens:
            raise PromptTooLongError(least, self.most_tokens, param, at_least=True)

    def require_fitting(self, prompt: Sequence[int], param: str, *, reply: bool = True) -> None:
        """Raises ApiError for a prompt that leaves no room for a reply, or has tokens that there aren't.

        `reply`: there is to be one; else a prompt may fill the context.
        """
        info = self.info
        if len(prompt) + reply > self.most_tokens:
            raise PromptTooLongError(len(prompt), self.most_tokens, param)
        if not prompt:
            raise bad("the prompt has no tokens", param)
        if max(prompt) >= info.n_vocab:
            raise bad(f"token {max(prompt)} is not in the vocabulary (allowed: 0 to {info.n_vocab - 1})", param)

    def template_for(self, tools: Sequence[Any] | None) -> ChatTemplate:
        """The template for a request with these tools, or without."""
        return self.tool_template if tools and self.tool_template is not None else self.template

    def encode(self, template: ChatTemplate, messages: Sequence[Mapping[str, Any]], /, **variables: Any) -> list[int]:
        """The tokens of messages as a template writes them. Control tokens are the template's own only.

        Raises ApiError for messages whose length tells that they can't fit the context.
        """
        text, foreign = self.tokenizer.write_chat(template, messages, **variables)
        self.require_short(text, "messages")
        return self.tokenizer.encode_written(text, foreign)
