"""What an engine is made with: its sizes, how keys and values are stored, and where drafts come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.errors import UsageError
from octavo.graph.builder import CacheType
from octavo.graph.protocol import AsyncBackend, Backend
from octavo.runtime.engine.placement import GpuLayers, Pipeline
from octavo.runtime.engine.tensor_overrides import Overrides

Speculate = Literal["auto", "mtp", "draft", "lookup", "off"]


def asked_speculation(wanted: Speculate | None, draft: object = None) -> Speculate:
    """What is asked for, "auto" where nothing is.

    Raises UsageError where a draft model or head is asked for and not given, or given beside what does not take it.
    """
    if draft is None and wanted == "draft":
        problem = "speculate is draft, but there is no draft model: --draft MODEL (draft=MODEL) names one"
        raise UsageError(problem, argument="speculate")
    if draft is not None and wanted in ("lookup", "off"):
        problem = f"speculate is {wanted}, beside a draft model or head (allowed: auto, draft, or mtp for a head)"
        raise UsageError(problem, argument="speculate")
    return wanted or "auto"


def usual_batch(sequences: int, backend: Backend) -> int:
    """Tokens of a step: on a GPU four for each sequence where that is more than usual, as prompts of requests that come
    as fast as replies end have to find room beside these."""
    return max(EngineConfig.n_batch, 4 * sequences) if isinstance(backend, AsyncBackend) else EngineConfig.n_batch


def speculation(wanted: Speculate, backend: Backend, *, drafts: bool) -> Speculate:
    """Where drafts come from: never "auto" where nothing `drafts`, which is then "lookup" on the CPU.

    On a GPU a reply's own text is taken only if that is asked for, as steps begin before tokens are known.
    """
    if wanted != "auto":
        return wanted
    on_device = isinstance(backend, AsyncBackend)
    return ("draft" if on_device else "auto") if drafts else ("off" if on_device else "lookup")


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of an engine.

    n_ctx          tokens that a sequence may hold (default: the model's, or its sliding window's; at most 4096)
    n_batch        most tokens in a step; a longer prompt takes several
    max_sequences  sequences that may be in one step; the cache holds n_ctx tokens for each
    cache_type     how keys and values are stored
    n_outputs      most logits in a step, at least one a sequence; of a large vocabulary they take much memory
    fuse           take the backend's fused ops; without, a watcher sees every value of the graph
    gpu_layers     how many of the last layers lie on the first backends, the others on the next; see `placement`
    pipeline       how many backends these are, each with a run of layers; or how many layers each has
    overrides      weights that lie elsewhere than their layer
    embeds         steps give what logits are made of, [outputs, n_embd], in their place
    n_pages        of the cache (default: n_ctx tokens for each sequence)
    kv_memory      bytes of the cache, in place of `n_pages`; sequences share it as they need it
    speculate      where an `EngineCore` gets drafts of replies from: "lookup" in their own text, a layer of the model
                   that guesses tokens ("mtp"), a "draft" model or head, all of these ("auto"), or "off"
    weight_cache   weights packed for the CPU are kept on the disk and mapped at the next start; False removes them
    max_loras      adapters, each with a scale, or sets of them, that sequences may have at a time; 0 for none
    max_lora_rank  the highest rank of these
    """

    n_ctx: int | None = None
    n_batch: int = 512
    max_sequences: int = 1
    cache_type: CacheType = "f16"
    strict: bool = False
    n_outputs: int = 64
    fuse: bool = True
    gpu_layers: GpuLayers = "all"
    pipeline: Pipeline = 1
    overrides: Overrides = ()
    embeds: bool = False
    n_pages: int | None = None
    kv_memory: int | None = None
    speculate: Speculate = "off"
    weight_cache: bool = True
    max_loras: int = 0
    max_lora_rank: int = 16
