"""Model: a GGUF file, ready to generate. What `octavo.load` returns."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack, cast

from octavo.backends import select
from octavo.errors import ModelError, UsageError
from octavo.formats.spec import F32
from octavo.graph.builder import CacheType
from octavo.io.gguf import GGUFFile
from octavo.models import read_architecture
from octavo.runtime.engine import Engine, EngineConfig
from octavo.runtime.generation import Generation
from octavo.runtime.kv_cache import Sequence as CachedSequence
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
    stop: Sequence[str]


class Model:
    """A model with its tokenizer, chat template and engine; `file` and `engine` are there for a closer look."""

    def __init__(self, file: GGUFFile, engine: Engine, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.file, self.engine, self.tokenizer, self.template = file, engine, tokenizer, template
        self._sequence = CachedSequence()
        self._generating = False

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
        stop        text that ends the reply
        sampling    fields of SamplingParams

        What the prompt shares with the one before it is not computed again. Raises ContextFullError, after the last
        piece of text, where the context is full before the reply ends.
        """
        if self._generating:
            raise UsageError("this model is generating already; finish or close that generation first")
        max_tokens = options.get("max_tokens")
        if max_tokens is not None and max_tokens < 0:
            raise UsageError(f"max_tokens is {max_tokens} (allowed: 0 or more)")
        fields = {f.name for f in dataclasses.fields(SamplingParams)}
        sampling = {name: value for name, value in options.items() if name in fields}
        params = SamplingParams(**cast(dict[str, Any], {**self.sampling_defaults(), **sampling}))
        tokens = self.encode_prompt(prompt, system=options.get("system"), raw=raw)
        self._generating = True

        def end() -> None:
            self._generating = False

        return Generation(
            self.engine, self._sequence, tokens, sampler=make_sampler(params), tokenizer=self.tokenizer,
            stop=options.get("stop", ()), max_tokens=max_tokens, on_end=end,
        )  # fmt: skip

    def encode_prompt(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """The tokens that a prompt comes to (see `generate`)."""
        if isinstance(prompt, str):
            if raw or self.template is None:
                return self.tokenizer.encode(prompt)
            prompt = [{"role": "user", "content": prompt}]
        if prompt and isinstance(prompt[0], Mapping):
            if self.template is None:
                raise UsageError("this model has no chat template; pass text with raw=True")
            messages = [{"role": "system", "content": system}] if system else []
            messages += [dict(cast(Message, m)) for m in prompt]
            return self.tokenizer.encode(self.template.render(messages), add_special=False)
        return [int(cast(int, t)) for t in prompt]

    def logits(self, tokens: Sequence[int]) -> F32:
        """Logits after each of `tokens`: float32 [n, n_vocab]."""
        return self.engine.logits(tokens)

    def sampling_defaults(self) -> SamplingOptions:
        """What the model's own metadata recommends (general.sampling.*)."""
        keys = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
        found: dict[str, Any] = {}
        for name, key in keys.items():
            full = f"general.sampling.{key}"
            if full in self.file.metadata:
                read = self.file.metadata.int if name == "top_k" else self.file.metadata.float
                found[name] = read(full)
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
) -> Model:
    """Load a GGUF model.

    path        of the file, or "demo" for the model that comes with Octavo
    device      "auto", "cpu", "gpu" or "reference"
    n_ctx       tokens that a conversation may hold (default: what the model was made for, at most 4096)
    threads     that products use (default: all cores)
    cache_type  how keys and values are kept: "f16" or "f32"
    strict      a part that can't run on the device is an error instead of running elsewhere

    Raises a subclass of OctavoError that names what is wrong with the file or the arguments.
    """
    backends = select(device, threads)
    file = GGUFFile.open(resolve(path))
    try:
        architecture = read_architecture(file)
        tokenizer = Tokenizer.from_gguf(file)
        if tokenizer.n_vocab > architecture.hparams.n_vocab:
            raise ModelError(
                f"{tokenizer.n_vocab} tokens, but the embedding has {architecture.hparams.n_vocab} rows",
                file=file.path, field="tokenizer.ggml.tokens",
            )  # fmt: skip
        config = EngineConfig(n_ctx=n_ctx, cache_type=cache_type, strict=strict)
        template = tokenizer.chat_template() if "tokenizer.chat_template" in file.metadata else None
        engine = Engine(architecture, backends, config)
        engine.load()
        return Model(file, engine, tokenizer, template)
    except BaseException:
        file.close()
        raise


def resolve(path: str | os.PathLike[str]) -> str:
    """The path of a model: "demo" is the one in the package."""
    if os.fspath(path) == "demo":
        from octavo.data import demo_model_path

        return os.fspath(demo_model_path())
    return os.fspath(path)
