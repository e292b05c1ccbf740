"""Model: a GGUF file or a checkpoint folder, ready to generate. What `octavo.load` returns."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypedDict, Unpack, cast

from octavo.errors import ModelError, UsageError
from octavo.formats.spec import F32
from octavo.graph.builder import CacheType
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import read_architecture
from octavo.runtime.conversation import Conversation
from octavo.runtime.engine import Engine, EngineConfig
from octavo.runtime.generation import Generation
from octavo.runtime.placement import GpuLayers, backends_for
from octavo.runtime.sampling import SamplingParams, make_sampler
from octavo.text import ChatTemplate, Tokenizer

Message = Mapping[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}"""

Prompt = str | Sequence[int] | Sequence[Message]


class SamplingOptions(TypedDict, total=False):
    """Fields of SamplingParams as keyword arguments; those left out are the model's own, or the defaults."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int | None


class GenerateOptions(SamplingOptions, total=False):
    """Keyword arguments of `Model.generate` that are no choice of a single prompt."""

    system: str | None
    max_tokens: int | None
    stop: str | Sequence[str]


SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repeat_penalty": "general.sampling.penalty_repeat",
    "repeat_last_n": "general.sampling.penalty_last_n",
}
"""Fields of SamplingParams that a file may recommend a value for, and where."""


def token_ids(values: Sequence[int]) -> list[int]:
    """Token ids, of any integer type, as a list. Raises UsageError for what is no integer."""
    try:
        return [operator.index(v) for v in values]
    except TypeError:
        wrong = next(v for v in values if not hasattr(v, "__index__"))
        raise UsageError(f"{wrong!r} is no token id (allowed: integers)") from None


class Model:
    """A model with its tokenizer, chat template and engine; `file` and `engine` are there for a closer look."""

    def __init__(self, file: GGUFFile, engine: Engine, tokenizer: Tokenizer) -> None:
        self.file, self.engine, self.tokenizer = file, engine, tokenizer
        self._conversation = Conversation(engine)

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template that the file carries, None without one. Raises TemplateError for one that is invalid."""
        return self.tokenizer.chat_template() if "tokenizer.chat_template" in self.file.metadata else None

    def generate(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Generate a reply; iterate over what this returns for pieces of text.

        prompt      a question (put in the model's chat template unless `raw`), messages, or token ids
        system      the system message that goes before a question
        max_tokens  where to stop at the latest (default: when the model ends its reply)
        stop        text that ends the reply: a string, or several
        sampling    fields of SamplingParams

        What the prompt shares with the one before it is not computed again. Raises ContextFullError, after the last
        piece of text, where the context is full before the reply ends.
        """
        max_tokens = options.get("max_tokens")
        if max_tokens is not None and max_tokens < 0:
            raise UsageError(f"max_tokens is {max_tokens} (allowed: 0 or more)", argument="max_tokens")
        fields = {f.name for f in dataclasses.fields(SamplingParams)}
        sampling = {name: value for name, value in options.items() if name in fields}
        params = SamplingParams(**cast(dict[str, Any], {**self.sampling_defaults(), **sampling}))
        tokens = self.encode_prompt(prompt, system=options.get("system"), raw=raw)
        stop = options.get("stop", ())
        return Generation(
            self._conversation, tokens, sampler=make_sampler(params), tokenizer=self.tokenizer,
            stop=[stop] if isinstance(stop, str) else stop, max_tokens=max_tokens,
        )  # fmt: skip

    def encode_prompt(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """The tokens that a prompt comes to (see `generate`).

        Raises UsageError for a system message with a prompt that no template takes, and for what is no prompt.
        """
        chat = not raw and self.template is not None
        if isinstance(prompt, str) and chat:
            prompt = [{"role": "user", "content": prompt}]
        if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping):
            if not chat:
                raise UsageError("messages need a chat template: this model has none, or raw was asked for")
            return self._encode_messages([dict(cast(Message, m)) for m in prompt], system)
        if system:
            raise UsageError("a system message needs a chat template: the prompt is raw, or the model has no template")
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(cast(Sequence[int], prompt))

    def _encode_messages(self, messages: list[dict[str, str]], system: str | None) -> list[int]:
        wrong = next((m for m in messages if not all(isinstance(m.get(k), str) for k in ("role", "content"))), None)
        if wrong is not None:
            raise UsageError(f"{wrong!r} is no message (allowed: a role and a content, both text)")
        if system:
            messages = [{"role": "system", "content": system}, *messages]
        assert self.template is not None
        tokens = self.tokenizer.encode(self.template.render(messages), add_special=False)
        bos = self.tokenizer.bos_id
        if self.tokenizer.add_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)  # as llama.cpp does where the template leaves it out
        return tokens

    def logits(self, tokens: Sequence[int]) -> F32:
        """Logits after each of `tokens`: float32 [n, n_vocab]."""
        return self.engine.logits(token_ids(tokens))

    def sampling_defaults(self) -> SamplingOptions:
        """What the model's own metadata recommends (general.sampling.*). Raises ModelError for what is out of range."""
        metadata = self.file.metadata
        found: dict[str, Any] = {}
        for name, key in SAMPLING_KEYS.items():
            if key not in metadata:
                continue
            found[name] = (metadata.int if name in ("top_k", "repeat_last_n") else metadata.float)(key)
            try:
                SamplingParams(**found)
            except UsageError as error:
                raise ModelError(str(error), file=self.file.path, field=key) from None
        return cast(SamplingOptions, found)

    def close(self) -> None:
        """Close the model's file."""
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    n_ctx: int | None = None,
    threads: int | None = None,
    cache_type: CacheType = "f16",
    strict: bool = False,
    gpu_layers: GpuLayers | None = None,
) -> Model:
    """Load a model: a GGUF file, or a checkpoint folder of safetensors, quantized or not.

    path        of the file or folder, or "demo" for the model that comes with Octavo
    device      "auto" (the GPU if there is one, else the CPU), "cpu", "gpu" or "reference"
    n_ctx       tokens that a conversation may hold (default: what the model was made for, at most 4096)
    threads     that products use (default: all cores)
    cache_type  how keys and values are kept: "f16", "f32" or "q8_0"
    strict      a part that can't run on the device is an error instead of running elsewhere
    gpu_layers  how many of the last layers run on the GPU, the others on the CPU: a number, "all", or "auto" for as
                many as its memory holds (default: auto with device "auto", all with "gpu")

    Raises a subclass of OctavoError that names what is wrong with the file or the arguments.
    """
    backends, layers = backends_for(device, threads, gpu_layers)
    config = EngineConfig(n_ctx=n_ctx, cache_type=cache_type, strict=strict, gpu_layers=layers)
    return open_model(path, backends, config)


def open_model(path: str | os.PathLike[str], backends: Sequence[Backend], config: EngineConfig) -> Model:
    """Load a model, or "demo", into an engine of this configuration; see `load`."""
    return model_of(open_model_file(resolve(path)), backends, config)


def model_of(file: GGUFFile, backends: Sequence[Backend], config: EngineConfig) -> Model:
    """The model in an open file, loaded into an engine; the file is the model's, and is closed where this fails."""
    try:
        architecture = read_architecture(file)
        tokenizer = Tokenizer.from_gguf(file)
        if tokenizer.n_vocab > architecture.hparams.n_vocab:
            raise ModelError(
                f"{tokenizer.n_vocab} tokens, but the embedding has {architecture.hparams.n_vocab} rows",
                file=file.path, field="tokenizer.ggml.tokens",
            )  # fmt: skip
        engine = Engine(architecture, backends, config)
        engine.load()
        return Model(file, engine, tokenizer)
    except BaseException:
        file.close()
        raise


def resolve(path: str | os.PathLike[str]) -> str:
    """The path of a model: "demo" is the one in the package."""
    if os.fspath(path) == "demo":
        from octavo.data import demo_model_path

        return os.fspath(demo_model_path())
    return os.fspath(path)
