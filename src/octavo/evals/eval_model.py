"""Loading a model to evaluate it: an engine of one context, with as many logits a step as memory allows."""

from __future__ import annotations

import os
from collections.abc import Mapping

from octavo.calibrate.fold.fold import ChangedFile, TensorChanges
from octavo.evals.windows import LEAST_CONTEXT, outputs_for
from octavo.graph.builder import CacheType
from octavo.graph.node import Attention
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import EngineConfig, Model, open_model, resolve
from octavo.runtime.engine.placement import GpuLayers, backends_for
from octavo.runtime.engine.tensor_overrides import CpuExperts, overrides
from octavo.runtime.loading import open_generating
from octavo.runtime.lora_adapters import Lora, chosen, located

LARGEST_BATCH = 512
CONTEXT = 512
"""Tokens of a window, unless somebody says how many or the model was made for fewer."""


def context_for(context: int | None, *models: str | os.PathLike[str], usual: int = CONTEXT) -> int:
    """Tokens of a window for models ("demo", or paths) that read the same text: `context`, or as many as is usual,
    where all of them can have it.

    A `context` of 0 is as long as all of them can have it.
    """
    if context:
        return context
    found = []
    for path in models:
        with open_model_file(resolve(path)) as file:
            found.append(read_model(file).hparams.n_ctx_most)
    return min(found if context == 0 else [usual, *found])


def open_subject(
    path: str | os.PathLike[str], context: int, *, device: str = "auto", threads: int | None = None,
    cache_type: CacheType = "f16", gpu_layers: GpuLayers | None = None, attention: Attention = "exact",
    fuse: bool = True, lora: Lora | None = None, tensor_parallel: int = 1,
    pipeline: int = 1, weight_cache: bool = True, floats: bool = False, n_cpu_moe: CpuExperts = 0,
    override_tensor: Mapping[str, str] | None = None,
) -> Model:
    """Load a model (or "demo") for windows of `context` tokens; `fuse=False` is what `collect_imatrix` needs.

    `floats` computes what the file says and no more: weights as F32 (`in_floats`), the cache too. The other arguments
    and what is raised are as of `octavo.load`.
    """
    backends, layers = backends_for(
        device, threads, gpu_layers, attention=attention, tensor_parallel=tensor_parallel, pipeline=pipeline
    )
    adapters = located(chosen(lora))
    file = in_floats(open_generating(path)) if floats else open_generating(path)
    n_vocab = read_model(file).hparams.n_vocab
    context = max(context, LEAST_CONTEXT)  # `windows` tells of one that is too small
    config = EngineConfig(
        n_ctx=context, n_batch=min(context, LARGEST_BATCH), cache_type="f32" if floats else cache_type,
        n_outputs=outputs_for(n_vocab, context), fuse=fuse, gpu_layers=layers, pipeline=pipeline,
        weight_cache=weight_cache and not floats, overrides=overrides(override_tensor, n_cpu_moe),
    )
    return open_model(file, backends, config, adapters)


def in_floats(file: GGUFFile) -> GGUFFile:
    """A model's file with its weights as F32, 4 bytes each: what computes them rounds no activations.

    Weights whose scheme itself says how activations are rounded (int8-w8a8, w4a8, fp8) stay as they are.
    """
    changes = TensorChanges()
    for name in file.tensors:
        fmt = file.tensor(name).format
        if fmt.name != "F32" and not fmt.per_row:
            changes.add(name, lambda values: values)
    return ChangedFile(file, changes)
