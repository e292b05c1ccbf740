"""Models in published layouts: folders of them, what is read of modules, and logits that have to be the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from octavo.backends.reference import ReferenceBackend
from octavo.formats import dequantize
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.huggingface.layouts.module_tensors import stored_tensors
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import Checkpoint
from octavo.models import read_model
from octavo.models.shared.config import Config
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.sampler import SamplingParams
from tests.convert.folders import write
from tests.huggingface.modules import save
from tests.huggingface.published_layouts import PUBLISHED, Published
from tests.models.checkpoints import VOCAB, Case
from tests.runtime.engine.test_core import request, run

TOKENS = [5, 3, 60, 7, 21, 99]


def publish(folder: Path, name: str, case: Case | str = "llama") -> Any:
    """A random model in a layout, and the model that computes with what its tensors stand for."""
    layout = PUBLISHED[name]
    model = save(folder, layout.config, layout.tensors, case, layout.key)
    for file, values in layout.files.items():
        write(folder, file, values)
    return model


def read_module(
    folder: Path, layout: Published, parts: dict[str, np.ndarray], name: str = "mlp.down_proj", **sizes: int
) -> dict[str, LazyTensor]:
    """The tensors that are read of a folder with one module of these; `sizes` are in config.json."""
    module = f"model.layers.0.{name}"
    stored = {f"{module}.{end}": np.asarray(part, order="C") for end, part in parts.items()}
    safetensors.numpy.save_file(stored, folder / "model.safetensors")
    write(folder, "config.json", {**sizes, **({layout.key: layout.config} if layout.config else {})})
    for file, values in layout.files.items():
        write(folder, file, values)
    checkpoint = Checkpoint.open(folder)
    read = stored_tensors(checkpoint, Config(checkpoint.config, checkpoint.path("config.json")), lambda name: False)
    return {name.removeprefix(f"{module}."): tensor for name, tensor in read.items()}


def values_of(tensors: dict[str, LazyTensor]) -> np.ndarray:
    """A weight in the order of its columns, times its scale."""
    got = dequantize(tensors["weight"].load())
    if "scale" in tensors:
        got = got * dequantize(tensors["scale"].load())
    if "order" in tensors:
        natural = np.empty_like(got)
        natural[:, dequantize(tensors["order"].load()).astype(int)] = got
        return natural
    return got


def same_logits(folder: Path, model: Any) -> None:
    """Logits of a folder are those of the model that computes with what its tensors stand for."""
    with torch.no_grad():
        want = model(torch.tensor([TOKENS])).logits[0].numpy()
    with open_model_file(folder) as file:
        got = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64, cache_type="f32")).logits(TOKENS)
    assert ((got - want) ** 2).sum() / (want**2).sum() < 1e-9


def agrees(folder: Path, backend: Backend) -> None:
    """Logits of kernels against those of the reference with activations rounded as they round them."""
    with open_model_file(folder) as file:
        reference = ReferenceBackend(quantize_activations=True)
        want = Engine(read_model(file), [reference], EngineConfig(n_ctx=64)).logits(TOKENS)
        got = Engine(read_model(file), [backend], EngineConfig(n_ctx=64, strict=True)).logits(TOKENS)
    assert ((got - want) ** 2).sum() / (want**2).sum() < 1e-3


def says_what_the_reference_says(folder: Path, backend: Backend, allowed: float, replies: int = 32) -> None:
    """Greedy replies at once, as a server has them: the reference's after the same tokens, with activations rounded or
    not, as products of many tokens have them on a card.

    Where its logits of two tokens are as near to each other as rounding may be off (`allowed`, an NMSE), either does.
    """
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, VOCAB, n).tolist() for n in rng.integers(3, 24, replies)]
    with open_model_file(folder) as file:
        model = read_model(file)
        engine = Engine(model, [backend], EngineConfig(n_ctx=64, n_batch=64, max_sequences=replies, strict=True))
        texts = run(EngineCore(engine), *(request(p, 8, params=SamplingParams(temperature=0)) for p in prompts))
        references = [
            Engine(model, [ReferenceBackend(quantize_activations=rounded)], EngineConfig(n_ctx=64))
            for rounded in (True, False)
        ]
        same = 0.0
        for prompt, text in zip(prompts, texts, strict=True):
            both = np.stack([one.logits([*prompt, *text[:-1]])[len(prompt) - 1 :] for one in references])
            chosen = np.take_along_axis(both, np.array(text)[None, :, None], 2)[..., 0]
            logits, behind = both[0], (both.max(2) - chosen).min(0)
            assert (behind <= 6 * np.sqrt(allowed * (logits**2).mean())).all(), (prompt, text)
            same += float((behind == 0).mean()) / replies
    assert same > 0.9
