"""The models as llm asks them: texts, conversations with tools and schemas, and vectors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

import llm
from llm.models import EmbeddingModel
from llm.parts import StreamEvent
from pydantic import Field

import octavo
from llm_octavo.inventory import Available
from llm_octavo.turn import Turn
from octavo.errors import ContextFullError, OctavoError
from octavo.server.http.api_errors import ApiError

_loaded: dict[tuple[str, int | None, str], octavo.Model] = {}
_lock = Lock()


class OctavoOptions(llm.Options):
    """Options of a prompt; those left out are what the model's file recommends, or Octavo's defaults."""

    temperature: float | None = Field(None, description="0: the likeliest token")
    top_k: int | None = Field(None, description="Choose among this many of the likeliest tokens")
    top_p: float | None = Field(None, description="Choose among the likeliest tokens that have this share together")
    min_p: float | None = Field(None, description="Leave out tokens below this share of the likeliest one's")
    repeat_penalty: float | None = Field(None, description="Above 1: tokens that were there are less likely")
    presence_penalty: float | None = Field(None, description="Subtracted from tokens that the reply has")
    frequency_penalty: float | None = Field(None, description="The same for each time that the reply has them")
    seed: int | None = Field(None, description="The same seed gives the same reply")
    max_tokens: int | None = Field(None, description="The most tokens of a reply")
    stop: str | None = Field(None, description="A text that ends the reply")
    think: bool | None = Field(None, description="Whether the model thinks first, if its template leaves a choice")
    n_ctx: int | None = Field(None, description="Tokens of a conversation; another number loads the model again")
    device: str = Field("auto", description="auto, cpu or gpu")

    def generating(self) -> dict[str, object]:
        """Those of `octavo.Model.generate`."""
        return self.model_dump(exclude={"think", "n_ctx", "device"}, exclude_none=True)


def loaded(path: str, n_ctx: int | None = None, device: str = "auto") -> octavo.Model:
    """The model at a path; it is loaded once, and stays."""
    with _lock:
        key = (path, n_ctx, device)
        if key not in _loaded:
            for other in [one for one in _loaded if one[0] == path]:
                _loaded.pop(other).close()
            _loaded[key] = octavo.load(path, n_ctx=n_ctx, device=device)
        return _loaded[key]


@contextmanager
def told() -> Iterator[None]:
    """Errors as llm shows them."""
    try:
        yield
    except (OctavoError, ApiError) as error:
        raise llm.ModelError(str(error)) from None


def begun(known: Available, prompt: llm.Prompt, response: llm.Response | llm.AsyncResponse) -> Turn:
    """A prompt that is computed by a model."""
    options = prompt.options
    assert isinstance(options, OctavoOptions)
    model = loaded(known.path, options.n_ctx, options.device)
    return Turn(model, prompt, response, options.think, options.generating())


class Octavo(llm.Model):
    """A model that generates text."""

    can_stream = supports_schema = True
    Options = OctavoOptions  # type: ignore[assignment]  # of llm's own base class, as plug-ins have it

    def __init__(self, known: Available) -> None:
        self.known, self.model_id = known, known.model_id
        self.supports_tools = "tools" in known.capabilities

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[str | StreamEvent]:
        with told():
            turn = begun(self.known, prompt, response)
            try:
                for _ in turn.reply:
                    yield from turn.events()
            except ContextFullError:
                if not turn.reply.tokens:
                    raise
            yield from turn.finish()


class AsyncOctavo(llm.AsyncModel):
    """The same for asyncio: steps are waited for in a thread."""

    can_stream = supports_schema = True
    Options = OctavoOptions  # type: ignore[assignment]  # of llm's own base class, as plug-ins have it

    def __init__(self, known: Available) -> None:
        self.known, self.model_id = known, known.model_id
        self.supports_tools = "tools" in known.capabilities

    async def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.AsyncResponse, conversation: llm.AsyncConversation | None
    ) -> AsyncGenerator[str | StreamEvent, None]:
        with told():
            turn = begun(self.known, prompt, response)
            try:
                async for _ in turn.reply:
                    for event in turn.events():
                        yield event
            except ContextFullError:
                if not turn.reply.tokens:
                    raise
            for event in turn.finish():
                yield event


class OctavoEmbeddings(EmbeddingModel):
    """A model that gives vectors of length 1."""

    batch_size = 32

    def __init__(self, known: Available) -> None:
        self.known, self.model_id = known, known.model_id

    def embed_batch(self, items: Iterable[str | bytes], *, key: str | None = None) -> Iterator[list[float]]:
        with told():
            yield from loaded(self.known.path).embed([str(item) for item in items]).tolist()
