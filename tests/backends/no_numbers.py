"""Attention to caches in which NaN lies: what sequences left that held the pages before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from octavo.backends.reference import ReferenceBackend
from octavo.bench.cases import Built, OpCase, run
from octavo.graph.node import PAGE_SIZE
from octavo.graph.protocol import Backend
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed, make_batch
from tests.backends.comparison import compare

SHAPE = {"heads": 4, "kv_heads": 2, "dim": 64}
DECODING, PROMPTS = (3, (5, 100, 20)), (20, (0, 70, 3))
LATENT = {"heads": 4, "kv_heads": 1, "dim": 96, "shared": 64}


def after_nan(built: Built) -> Built:
    """The steps, after one that writes NaN to all rows of the cache."""
    (first, _), *_ = built.steps
    pages = built.limits["rows"] // PAGE_SIZE
    inputs, sizes = make_batch([Feed(Sequence(list(range(pages))), [0] * (pages * PAGE_SIZE))], built.limits["pages"])
    step: dict[str, Any] = {**inputs, "q": np.zeros((sizes["tokens"], *first["q"].shape[1:]), np.float32)}
    for name in set("kv") & set(first):
        step[name] = np.full((sizes["tokens"], *first[name].shape[1:]), np.nan, np.float32)
    most = {name: max(size, sizes.get(name, 0)) for name, size in built.limits.items()}
    return replace(built, steps=((step, sizes), *built.steps), limits=most)


def held_to_clean_pages(case: OpCase, backend: Backend) -> None:
    """The results are those of a cache in which nothing lay before."""
    built = case.build()
    _, *found = run(after_nan(built), [backend])
    difference = compare(case, found, run(built, [ReferenceBackend()]))
    assert difference.ok, difference
