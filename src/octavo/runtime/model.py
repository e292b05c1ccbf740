"""Model: a GGUF file or a checkpoint folder, ready to generate. What `octavo.load` returns."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Never, Self, TypedDict, Unpack, cast, get_args

from octavo.data import resolve
from octavo.errors import ModelError, UsageError
from octavo.formats.spec import F32
from octavo.graph.builder import CacheType
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import read_architecture
from octavo.runtime.arguments import choice, flag, integer, require_known, texts, wrong
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
    think: bool | None
    max_tokens: int | None
    stop: str | Sequence[str] | None


GENERATE_OPTIONS = ("raw", *GenerateOptions.__annotations__)

THINK = "enable_thinking"
"""The variable of chat templates that says whether a model is to think before it answers."""

SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repeat_penalty": "general.sampling.penalty_repeat",
    "repeat_last_n": "general.sampling.penalty_last_n",
}
"""Fields of SamplingParams that a file may recommend a value for, and where."""


def token_ids(values: Iterable[int]) -> list[int]:
    """Token ids, of any integer type, as a list. Raises UsageError for what is no integer."""
    ids = []
    for value in values:
        try:
            if isinstance(value, bool):
                raise TypeError
            ids.append(operator.index(value))
        except TypeError:
            raise UsageError(f"{value!r} is no token id (allowed: integers)") from None
    return ids


def prompt_parts(prompt: object) -> list[Any]:
    """Messages, or token ids, as a list of its own. Raises UsageError for what is no prompt."""
    if isinstance(prompt, Iterable) and not isinstance(prompt, bytes | bytearray | memoryview | Mapping | Set):
        with suppress(TypeError):  # an array without dimensions
            return list(prompt)
    hint = ", as [{...}]" if isinstance(prompt, Mapping) else ""
    raise wrong("prompt", prompt, f"a text, a list of messages{hint}, or a list of token ids")


class Model:
    """A model with its tokenizer, chat template and engine; `file` and `engine` are there for a closer look.

    Any thread may use it: what they ask for is computed in turn.
    """

    def __init__(self, file: GGUFFile, engine: Engine, tokenizer: Tokenizer) -> None:
        self.file, self.engine, self.tokenizer = file, engine, tokenizer
        self._conversation = Conversation(engine)

    def __repr__(self) -> str:
        infos = self.file.tensors.values()
        types: Counter[str] = Counter()
        for info in infos:
            types[info.type_name] += info.size
        architecture = self.file.metadata.str("general.architecture")
        size, stored = short_count(sum(info.size for info in infos)), max(types, key=lambda name: types[name])
        where = self.engine.backends[0].name
        return f"Model({self.name!r}, {architecture}, {size}, {stored}, ctx {self.n_ctx}, {where})"

    @property
    def name(self) -> str:
        """The name of its file, without what it ends in, or of its folder."""
        path = Path(self.file.path)
        return path.stem if path.suffix == ".gguf" else path.name

    @property
    def n_ctx(self) -> int:
        """Tokens that a conversation may hold."""
        return self.engine.n_ctx

    @property
    def n_vocab(self) -> int:
        """Logits that it computes for a token: one for each token that it knows, and perhaps some for none."""
        return self.engine.model.hparams.n_vocab

    def count_tokens(self, text: str) -> int:
        """How many tokens a text is, without a template and without what goes before it."""
        return len(self.tokenizer.encode(text, add_special=False))

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
        think       whether the model is to think first, where its template leaves that open (`enable_thinking`)
        max_tokens  where to stop at the latest (default: when the model ends its reply)
        stop        text that ends the reply: a string, or several
        sampling    fields of SamplingParams

        What the prompt shares with the one before it is not computed again. A model makes one reply at a time: one that
        is asked for while another thread reads a reply waits for its end (see `Conversation`). Raises UsageError for
        arguments that are wrong, and ContextFullError, after the last piece of text, where the context is full before
        the reply ends.
        """
        require_known("generate", options, GENERATE_OPTIONS)
        flag("raw", raw)
        max_tokens = options.get("max_tokens")
        if max_tokens is not None:
            max_tokens = integer("max_tokens", max_tokens, 0)
        fields = {f.name for f in dataclasses.fields(SamplingParams)}
        sampling = {name: value for name, value in options.items() if name in fields}
        params = SamplingParams(**cast(dict[str, Any], {**self.sampling_defaults(), **sampling}))
        return Generation(
            self._conversation,
            self.encode_prompt(prompt, system=options.get("system"), raw=raw, think=options.get("think")),
            sampler=make_sampler(params),
            tokenizer=self.tokenizer,
            stop=texts("stop", options.get("stop")),
            max_tokens=max_tokens,
        )

    def encode_prompt(
        self, prompt: Prompt, *, system: str | None = None, raw: bool = False, think: bool | None = None
    ) -> list[int]:
        """The tokens that a prompt comes to (see `generate`).

        Raises UsageError for a system message or `think` with a prompt that no template takes, for `think` with a
        template that leaves no choice, and for what is no prompt.
        """
        if system is not None and not isinstance(system, str):
            raise wrong("system", system, "a text")
        chat = not raw and self.template is not None
        if isinstance(prompt, str) and chat:
            prompt = [{"role": "user", "content": prompt}]
        parts = [] if isinstance(prompt, str) else prompt_parts(prompt)
        if parts and isinstance(parts[0], Mapping):
            if not chat:
                raise UsageError("messages need a chat template: this model has none, or raw was asked for")
            return self._encode_messages(parts, system, think)
        if think is not None:
            problem = "think needs a chat template: the prompt is raw, or the model has no template"
            raise UsageError(problem, argument="think")
        if system:
            raise UsageError("a system message needs a chat template: the prompt is raw, or the model has no template")
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(parts)

    def _encode_messages(self, parts: Sequence[Any], system: str | None, think: bool | None) -> list[int]:
        keys = ("role", "content")
        for m in parts:
            if not isinstance(m, Mapping) or not all(isinstance(m.get(k), str) for k in keys):
                raise UsageError(f"{m!r} is no message (allowed: a role and a content, both text)")
        messages = [dict(m) for m in parts]
        if system:
            messages = [{"role": "system", "content": system}, *messages]
        assert self.template is not None
        if think is not None and THINK not in self.template.source:
            raise UsageError(f"think is no choice here: the model's chat template has no {THINK}", argument="think")
        choice: dict[str, Any] = {} if think is None else {THINK: think}
        tokens = self.tokenizer.encode(self.template.render(messages, **choice), add_special=False)
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


LOAD_OPTIONS = ("device", "n_ctx", "threads", "cache_type", "strict", "gpu_layers")


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    n_ctx: int | None = None,
    threads: int | None = None,
    cache_type: CacheType = "f16",
    strict: bool = False,
    gpu_layers: GpuLayers | None = None,
    **other: Never,
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
    require_known("load", other, LOAD_OPTIONS)
    choice("cache_type", cache_type, get_args(CacheType))
    flag("strict", strict)
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


def short_count(n: int) -> str:
    """A number of parameters in a few digits: 7.5M, 596M, 8.0B."""
    for size, letter in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")):
        if n >= size:
            return f"{n / size:.{1 if n < 100 * size else 0}f}{letter}"
    return str(n)
