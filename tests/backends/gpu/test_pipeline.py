"""Layers over two cards, whose kernels are interpreted: a call for each card, and a copy between them."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends import select
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.launch.call import OnCard
from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.greedy import greedy
from octavo.runtime.sampling.top_k import BEST
from tests.models.table import in_format, save_only
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered"), pytest.mark.filterwarnings("ignore:invalid value"),
]
TOKENS = [5, 3, 60]


def engine_of(file: GGUFFile, stages: int, **more: Any) -> Engine:
    options: dict[str, Any] = {"n_ctx": 64, "strict": True, **more}
    return Engine(read_model(file), select("gpu", 1, stages=stages), EngineConfig(pipeline=stages, **options))


def rows(engine: Engine) -> list[F32]:
    """Logits of a prompt; then greedy tokens, of which each is fed to the next step where steps are launched ahead."""
    sequence = Sequence()
    logits = [engine.step([Feed(sequence, TOKENS, outputs=len(TOKENS))])]
    with closing(greedy(engine, [Feed(sequence, [9])])) as tokens:
        logits.append(np.array(list(islice(tokens, 2)), np.float32))
    return logits


@pytest.mark.parametrize(("name", "format_name", "options"), [
    ("llama", None, {}),
    *map(slow, [
        ("llama", "Q8_0", {}), ("qwen3moe", "Q4_0", {}), ("qwen35moe", None, {}),
        ("gemma2", None, {"cache_type": "int8"}),
    ]),
])
def test_two_cards(name: str, format_name: str | None, options: dict[str, Any], tmp_path: Path) -> None:
    save_only(tmp_path / "hf", TABLE[name])
    file = open_model_file(tmp_path / "hf")
    if format_name is not None:
        file = open_model_file(in_format(file, tmp_path / "m.gguf", format_name)[0])
    want, engine = rows(engine_of(file, 1, **options)), engine_of(file, 2, **options)
    for got, expected in zip(rows(engine), want, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert [getattr(b, "card", None) for b in engine.backends] == [0, 1, None, None]


def test_a_step_is_a_call_for_each_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are bound and run on their card, and nothing waits for a device."""
    save_only(tmp_path, TABLE["llama"])
    engine = engine_of(open_model_file(tmp_path), 2)
    monkeypatch.setattr(GpuBackend, "synchronize", lambda self: pytest.fail("the host waits"))
    launches, bound = GpuBackend.launches, list[tuple[int | None, int | None]]()

    def noted(self: GpuBackend, *given: Any) -> Any:
        bound.append((self.card, torch_device.here_card()))
        return launches(self, *given)

    monkeypatch.setattr(GpuBackend, "launches", noted)
    plan = engine.plan([Feed(Sequence(), [5])], (BEST,))
    assert set(bound) == {(0, 0), (1, 1)}
    kinds: list[type] = [type(step) for step in plan.steps]
    assert kinds == [OnCard, partial, OnCard]
    cards = list[int | None]()
    for step in plan.steps:
        monkeypatch.setattr(step, "_call", lambda: cards.append(torch_device.here_card()), raising=False)
        step()
    assert cards == [0, 1]
    assert torch_device.here_card() is None
    assert plan.is_ready()


def test_one_card_is_called_directly(tmp_path: Path) -> None:
    save_only(tmp_path, TABLE["llama"])
    plan = engine_of(open_model_file(tmp_path), 1).plan([Feed(Sequence(), [5])], (BEST,))
    assert not any(isinstance(step, OnCard) for step in plan.steps)


def test_more_stages_than_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "count_cards", lambda: 2)
    with pytest.raises(UsageError, match=r"pipeline is 3, but there are 2 GPUs \(allowed: 1 to 2\)"):
        select("gpu", 1, stages=3)
    monkeypatch.setattr(torch_device, "count_cards", lambda: 1)
    with pytest.raises(UsageError, match=r"pipeline is 2, but there is 1 GPU \(allowed: 1 to 1\)"):
        select("gpu", 1, stages=2)


@pytest.mark.parametrize(("ranks", "stages", "count", "cards"), [
    (1, 1, 4, [None]), (1, 2, 4, [0, 1]), (2, 1, 4, [None]), (2, 2, 4, [0, 2]), (2, 2, 1, [0, 0]), (2, 2, 3, [0, 2]),
])
def test_cards_of_stages(
    ranks: int, stages: int, count: int, cards: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a rank sees in its own order, of which the first is its own."""
    class Here:
        def __init__(self) -> None:
            self.ranks = ranks

    monkeypatch.setattr(torch_device, "count_cards", lambda: count)
    found = select("gpu", 1, stages=stages, communicators=[Here()] * stages)  # type: ignore[list-item]
    assert [getattr(b, "card", None) for b in found[:stages]] == cards
