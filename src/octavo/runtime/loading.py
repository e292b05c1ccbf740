"""Loading a model: `octavo.load`, and its parts for those who bring an open file, backends or an engine's sizes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Never, get_args

from octavo.errors import BackendError, HostMemoryError, ModelError
from octavo.graph.builder import CacheType
from octavo.graph.node import Attention
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.io.hub.download_cache import shown_name
from octavo.io.model_path import resolve
from octavo.models import ModelSpec, read_model
from octavo.runtime.argument_checks import choice, flag, number, require_known
from octavo.runtime.engine.engine import Engine, EngineConfig, Speculate
from octavo.runtime.engine.engine_config import asked_speculation, speculation, usual_batch
from octavo.runtime.engine.placement import GpuLayers, backends_for
from octavo.runtime.engine.tensor_overrides import CpuExperts, overrides
from octavo.runtime.lora_adapters import Chosen, Lora, chosen, located, with_adapters
from octavo.runtime.model import Model
from octavo.runtime.speculation.draft_sources import draft_sources, in_words
from octavo.runtime.speculation.layered_drafter import needed_by
from octavo.runtime.speculation.open_draft import open_draft
from octavo.runtime.speculation.open_head import (
    open_draft_file,
    open_head,
    own_head,
    read_head,
    require_head,
    require_is_head,
)
from octavo.runtime.text_embedding import embedding_engine, is_embedding_model, require_generating
from octavo.text import Tokenizer

LOAD_OPTIONS = ("device", "n_ctx", "threads", "cache_type", "strict", "gpu_layers", "n_cpu_moe", "override_tensor",
                "max_sequences", "kv_memory", "speculate", "draft", "deterministic", "attention", "lora",
                "tensor_parallel", "pipeline", "step_timeout", "weight_cache")
MOST_SECONDS = 1e9
log = logging.getLogger("octavo")


def load(
    path: str | os.PathLike[str] | GGUFFile,
    *,
    device: str = "auto",
    n_ctx: int | None = None,
    threads: int | None = None,
    cache_type: CacheType = "f16",
    strict: bool = False,
    gpu_layers: GpuLayers | None = None,
    n_cpu_moe: CpuExperts = 0,
    override_tensor: Mapping[str, str] | None = None,
    max_sequences: int = 1,
    kv_memory: int | None = None,
    speculate: Speculate = "auto",
    draft: str | os.PathLike[str] | None = None,
    deterministic: bool = False,
    attention: Attention = "exact",
    lora: Lora | None = None,
    tensor_parallel: int = 1,
    pipeline: int = 1,
    step_timeout: float = 600.0,
    weight_cache: bool = True,
    **other: Never,
) -> Model:
    r"""Load a model: a GGUF file, or a checkpoint folder of safetensors, quantized or not.

    path           of the file or folder, or "demo" for the model that comes with Octavo; or a file that is open, which
                   the model closes
    device         "auto" (the GPU if there is one, else the CPU), "cpu", "gpu" (or "cuda") or "reference"
    n_ctx          tokens that a conversation may hold (default: what the model was made for, at most 4096)
    threads        that products use (default: all cores)
    cache_type     how keys and values are kept: "f16", "f32", "q8_0", "int8", "fp8" or "int4"
    strict         a part that can't run on the device is an error instead of running elsewhere
    gpu_layers     how many of the last layers run on the GPU, the others on the CPU: a number, "all", or "auto" for as
                   many as its memory holds (default: auto with device "auto", all with "gpu")
    n_cpu_moe      how many of the first layers have their experts on the CPU, or "all", while all else is on the GPU
                   (default: as few as it takes, where the GPU's memory is too small for all layers)
    override_tensor  the devices of weights in whose names an expression is found, as {r"blk\.3\.ffn": "cpu"}; the
                   first that is found counts, before `n_cpu_moe`; on "gpu" they are with their layer
    max_sequences  how many replies are made at a time, see `generate_many`; the cache holds n_ctx tokens for each
    kv_memory      bytes of the cache, which replies share as they need it
    speculate      "lookup": steps verify what replies may go on with, as their own text did before; "mtp": what a layer
                   of the model that guesses tokens says; "draft": what `draft` says; "off"; or "auto" (default): what
                   there is of these, but on a GPU no lookup
    draft          a smaller model of the same vocabulary, or a head of the model, which drafts replies; a path, or
                   "demo"
    deterministic  on a GPU, or a CPU with matrix tiles, too a reply is the same whatever others are made beside it,
                   which takes longer; on other CPUs it always is
    attention      "exact", or "int8" or "fp8" for attention of prompts by products of 8-bit numbers, on a GPU of
                   compute capability 9.0; layers that have no such kernel are exact
    lora           LoRA adapters that the model is changed by: a GGUF file, a PEFT folder or a name of the hub, or
                   several, or what each is multiplied by, as in {"adapter.gguf": 0.5}
    tensor_parallel  how many processes of this machine compute the model together, each with its part of the weights
                   and of the cache; they share `threads`
    pipeline       how many GPUs the layers are divided among; with `tensor_parallel` each process has that many.
                   On the CPU steps are only divided so
    step_timeout   seconds of a step after which processes are killed, and RankError is raised; 0: no limit
    weight_cache   weights packed for the CPU are kept on the disk, for the next start to map them; with False those of
                   the model are removed

    Raises a subclass of OctavoError that names what is wrong with the file or the arguments.
    """
    require_known("load", other, LOAD_OPTIONS)
    choice("cache_type", cache_type, get_args(CacheType))
    flag("strict", strict)
    flag("deterministic", deterministic)
    flag("weight_cache", weight_cache)
    choice("attention", attention, get_args(Attention))
    number("step_timeout", step_timeout, 0.0, MOST_SECONDS)
    adapters = located(chosen(lora))
    choice("speculate", speculate, get_args(Speculate))
    backends, layers = backends_for(
        device, threads, gpu_layers, deterministic=deterministic, attention=attention,
        tensor_parallel=tensor_parallel, pipeline=pipeline, step_timeout=step_timeout,
    )
    config = EngineConfig(
        n_ctx=n_ctx,
        n_batch=usual_batch(max_sequences, backends[0]),
        cache_type=cache_type,
        strict=strict,
        gpu_layers=layers,
        pipeline=pipeline,
        overrides=overrides(override_tensor, n_cpu_moe),
        max_sequences=max_sequences,
        kv_memory=kv_memory,
        speculate=asked_speculation(speculate, draft),
        weight_cache=weight_cache,
    )
    return open_model(path, backends, config, adapters, draft)


def open_generating(path: str | os.PathLike[str]) -> GGUFFile:
    """Open the file of a model that generates text, or "demo". Raises UsageError for one that does not."""
    file = open_model_file(resolve(path))
    try:
        require_generating(read_model(file))
        return file
    except BaseException:
        file.close()
        raise


def open_model(
    path: str | os.PathLike[str] | GGUFFile, backends: Sequence[Backend], config: EngineConfig, lora: Chosen = (),
    draft: str | os.PathLike[str] | None = None,
) -> Model:
    """Load a model, or "demo", with adapters into an engine of this configuration; see `load`."""
    file = path if isinstance(path, GGUFFile) else open_model_file(resolve(path))
    return model_of(file, backends, config, lora, draft=draft)


def model_of(
    file: GGUFFile, backends: Sequence[Backend], config: EngineConfig, lora: Chosen = (),
    before: Callable[[Engine], None] = lambda engine: None, draft: str | os.PathLike[str] | None = None,
) -> Model:
    """The model in an open file, with adapters, loaded into an engine; `before` is called before weights are read.

    The file is the model's, and is closed where this fails. `draft` names its draft model.
    """
    drafting: Engine | None = None
    drafts: GGUFFile | None = None
    try:
        architecture = with_adapters(read_model(file), lora)
        tokenizer = Tokenizer.from_gguf(file)
        if tokenizer.n_vocab > architecture.hparams.n_vocab:
            raise ModelError(
                f"{tokenizer.n_vocab} tokens, but the embedding has {architecture.hparams.n_vocab} rows",
                file=file.path, field="tokenizer.ggml.tokens",
            )
        drafts = None if draft is None else open_draft_file(draft, architecture)
        engine, head = _with_head(architecture, backends, config, drafts)
        engine.lora = lora
        if drafts is not None and (head is None or head.model.file is file):
            drafting = open_draft(drafts, engine, tokenizer, 0 if head is None else needed_by(head))
        before(engine)
        for one in (engine, head, drafting):
            if one is not None:
                one.load()
        if not engine.config.embeds:
            log.info("%s: drafts: %s", shown_name(file.path), in_words(draft_sources(engine, head, drafting)))
        return Model(file, engine, tokenizer, lora, drafting, head)
    except BaseException:
        for opened in (file, drafts):
            if opened is not None:
                opened.close()
        raise


def _with_head(
    model: ModelSpec, backends: Sequence[Backend], config: EngineConfig, draft: GGUFFile | None
) -> tuple[Engine, Engine | None]:
    """The engine of a model, and that of its head if it has one, in the file that drafts or in its own."""
    head = None if draft is None else read_head(draft, model)
    given = head is not None
    if head is None:
        if draft is not None:
            require_is_head(draft, config.speculate)
        head = own_head(model, config, backends[0])
    else:
        require_head(head, config, backends[0])
    how = speculation(config.speculate, backends[0], drafts=draft is not None or head is not None)
    config = replace(config, speculate=how)
    if head is None:
        return _engine(model, backends, config), None
    engine = Engine(model, backends, config, head=head)
    try:
        return engine, open_head(head, engine)
    except (BackendError, HostMemoryError) as error:
        if given or how == "mtp":
            raise
        log.warning("the layer that guesses tokens is left out: %s", error)
    how = speculation(config.speculate, backends[0], drafts=draft is not None)
    return _engine(model, backends, replace(config, speculate=how)), None


def _engine(model: ModelSpec, backends: Sequence[Backend], config: EngineConfig) -> Engine:
    """An engine that gives logits, or embeddings where that is what the model is for."""
    if not is_embedding_model(model):
        return Engine(model, backends, config)
    return embedding_engine(
        model, backends, n_ctx=config.n_ctx, gpu_layers=config.gpu_layers, pipeline=config.pipeline,
        strict=config.strict, overrides=config.overrides,
    )
