"""The server that is measured: what it says of itself, and requests to it with prompts that it can't have seen."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.bench.serving.http import Address, ReplyError, get_json
from octavo.bench.serving.stream_reader import StreamedReply, stream
from octavo.errors import BackendError

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city name team minute idea body back parent face door health art war "
    "history party result change morning reason research girl guy moment air teacher force education"
).split()
"""Words for prompts where a server does not say how many tokens it knows: nearly each is one token anywhere."""

Kind = Literal["ids", "words"]


@dataclass
class ServingTarget:
    """A server, and how it is asked.

    model     the name that requests say
    n_vocab   tokens that it knows, where it says so: prompts are ids then
    product   the Server header of its answers
    chat      ask /v1/chat/completions, not /v1/completions
    settings  what else each request says, such as temperature
    """

    to: Address
    model: str
    n_vocab: int | None
    product: str | None
    chat: bool
    settings: dict[str, Any]
    draw: random.Random
    words_per_token: float = 1.0
    replies: list[StreamedReply] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """What prompts are made of."""
        return "words" if self.chat or self.n_vocab is None else "ids"

    def words(self, tokens: int) -> str:
        """Text of about this many tokens, drawn at random."""
        return " ".join(self.draw.choices(WORDS, k=max(1, round(tokens * self.words_per_token))))

    def prompt(self, tokens: int) -> dict[str, Any]:
        """The part of a request that has a prompt of this many tokens, drawn at random."""
        if self.kind == "ids":
            assert self.n_vocab is not None
            return {"prompt": [self.draw.randrange(self.n_vocab) for _ in range(tokens)]}
        text = self.words(tokens)
        return {"messages": [{"role": "user", "content": text}]} if self.chat else {"prompt": text}

    async def ask(self, prompt: dict[str, Any], tokens: int) -> StreamedReply:
        """Send a prompt, or messages, and wait for `tokens` of a reply. The reply is in `replies` from the start."""
        reply = StreamedReply()
        self.replies.append(reply)
        path = "/v1/chat/completions" if "messages" in prompt else "/v1/completions"
        await stream(self.to, path, {"model": self.model, **self.settings, **prompt, "max_tokens": tokens}, reply)
        return reply

    async def first(self, prompt: dict[str, Any], tokens: int) -> StreamedReply:
        """`ask` before anything is measured, not kept. Raises BackendError where it fails."""
        reply = await self.ask(prompt, tokens)
        self.replies.remove(reply)
        if not reply.good:
            raise BackendError(f"{self.to.url}: the first request failed: {reply.error or 'it has no text'}")
        return reply

    async def measure_words(self, chat: bool) -> None:
        """Find how many tokens a word has, in conversations or in plain text."""
        counts = []
        for times in (1, 2):
            text = " ".join(self.draw.sample(WORDS * times, k=len(WORDS) * times))
            prompt = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
            counts.append((await self.first(prompt, 1)).prompt_tokens)
        few, many = counts
        if few is not None and many is not None and many > few:
            self.words_per_token = len(WORDS) / (many - few)


async def find(to: Address, model: str | None, chat: bool, settings: dict[str, Any], seed: int) -> ServingTarget:
    """Ask a server for its models; the first is taken unless one is named. Raises BackendError where there is none."""
    try:
        listed, done = await get_json(to, "/v1/models")
        rows = {row["id"]: row for row in listed["data"]}
    except (LookupError, TypeError):
        raise ReplyError(f"{to.url}/v1/models: no list of models (allowed: an object with `data`)") from None
    name = model or next(iter(rows), None)
    if name is None:
        raise ReplyError(f"{to.url}/v1/models lists no model")
    n_vocab = (rows.get(name, {}).get("meta") or {}).get("n_vocab")
    return ServingTarget(to, name, n_vocab, done.headers.get("server"), chat, settings, random.Random(seed))
