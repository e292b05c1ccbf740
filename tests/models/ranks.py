"""Models on several ranks, which are threads that exchange arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.formats.spec import F32
from octavo.graph.communicator import Communicator
from octavo.graph.protocol import Backend
from octavo.graph.shard import shard
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.lora_adapters import Chosen, with_adapters
from tests.graph.ranks import on_ranks
from tests.models.table import TOKENS

MakeBackend = Callable[[Communicator | None], Backend]
PROMPT = TOKENS[:40]
AFTER = TOKENS[40:44]


def reference(communicator: Communicator | None) -> Backend:
    return ReferenceBackend(communicator=communicator)


@contextmanager
def all_divided() -> Iterator[None]:
    """Weights are divided however small they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.graph.shard.shard", lambda graph, rank, ranks: shard(graph, rank, ranks, small=0))
        yield


def engine_of(path: Path, backend: Backend, lora: Chosen = (), **config: object) -> Engine:
    """An engine whose file stays open as long as it lives."""
    model = with_adapters(read_model(open_model_file(path)), lora)
    options = EngineConfig(
        n_ctx=128, n_batch=64, embeds=model.architecture.encoder,
        **{"cache_type": "f32", **config},  # type: ignore[arg-type]
    )
    return Engine(model, [backend], options)


def rows(engine: Engine) -> F32:
    """Logits (or vectors) of a prompt, and of tokens after it one by one."""
    sequence = Sequence()
    found = [engine.step([Feed(sequence, PROMPT, outputs=len(PROMPT))])]
    if not engine.config.embeds:
        found += [engine.step([Feed(sequence, [token])]) for token in AFTER]
    return np.concatenate(found)


def on_one(path: Path, make: MakeBackend = reference, **config: Any) -> F32:
    return rows(engine_of(path, make(None), **config))


def on_some(path: Path, ranks: int, make: MakeBackend = reference, **config: Any) -> list[tuple[F32, Engine]]:
    """What each rank computes, and its engine."""
    def work(communicator: Communicator) -> tuple[F32, Engine]:
        engine = engine_of(path, make(communicator), **config)
        return rows(engine), engine

    with all_divided():
        return on_ranks(ranks, work)


def weight_bytes(engine: Engine) -> int:
    """Bytes of the matrices that an engine's graph reads, each once."""
    tensors = {id(n.tensor): n.tensor for n in engine.graph.leaves("weight") if len(n.shape) > 1}
    return sum(t.nbytes for t in tensors.values())
