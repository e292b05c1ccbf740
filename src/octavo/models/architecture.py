"""From a GGUF file to a model that can be scheduled: which architecture it is, its hyperparameters, its graph."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import ModelError, shown
from octavo.graph.builder import CacheType, GraphBuilder
from octavo.graph.node import PAGE_SIZE, Graph, Node
from octavo.io.gguf import GGUFFile
from octavo.models.hparams import Hyperparams, read_hyperparams
from octavo.models.weights import Tensors, Weights, check_tensors

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe")
"""Each a module of this package, named as GGUF's `general.architecture`."""

Build = Callable[[GraphBuilder, Hyperparams, Weights], Node]


@dataclass(frozen=True)
class Architecture:
    """A model file, read and checked; `graph` gives its computation."""

    file: GGUFFile
    hparams: Hyperparams
    _build: Build

    def graph(self, *, cache_type: CacheType = "f16", page_size: int = PAGE_SIZE, n_ctx: int | None = None) -> Graph:
        """The graph of a step: tokens in, logits [outputs, n_vocab] out. `n_ctx` matters to longrope only."""
        g = GraphBuilder(cache_type, page_size, n_ctx or self.hparams.n_ctx_train)
        return Graph.of(self._build(g, self.hparams, Weights(self.file)))


def read_architecture(file: GGUFFile) -> Architecture:
    """The architecture of a model file. Raises ModelError for one that is unknown, incomplete or contradictory."""
    name = file.metadata.get_str("general.architecture")
    if name not in ARCHITECTURES:
        raise ModelError(
            f"Octavo can't run architecture {shown(name)} yet; it runs {', '.join(ARCHITECTURES)}", file=file.path
        )
    module = importlib.import_module(f"octavo.models.{name}")
    hparams = read_hyperparams(file, name, interleaved=module.INTERLEAVED_ROPE, has_experts=module.HAS_EXPERTS)
    tensors: Tensors = module.tensors(hparams)
    check_tensors(file, tensors)
    return Architecture(file, hparams, module.build)
