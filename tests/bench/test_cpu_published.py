"""The benchmark of published formats on the CPU: cases of each part, what they are to reach, and the tables."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.bench.synthetic import SHAPES
from octavo.jit import host_cpu


@pytest.fixture
def published(script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script("cpu_published")
    monkeypatch.setattr(module, "read_limit", lambda threads: 40.0)
    for model in module.MODELS.values():
        monkeypatch.setitem(SHAPES, model.shape, script("published_models").tiny(SHAPES[model.shape]))
    return module


@pytest.mark.few(1)
@pytest.mark.parametrize("part", ["usual", "threads", "tiles-2", "vectors"])
def test_every_part_has_cases(
    published: ModuleType, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "cores", lambda: 3)
    model = published.MODELS["8b-q4_k_m"]
    path = model.path(tmp_path, "8b-q4_k_m")
    model.make(path, model.shape)
    measured = published.Measured("8b-q4_k_m", str(path), part, published.DRY)
    cases = list(measured.cases(set()))
    replies = ["decode 2 @64", "decode 2 x2 @64", "decode 2 x3 @64"]
    tests = {"usual": (["prefill 24", *replies], [3]), "threads": (["prefill 24", *replies], [1, 2]),
             "tiles-2": (["prefill 16"], [2]), "vectors": (["prefill 24"], [3])}[part]
    assert [case["test"] for case in cases] == [f"{test}, {n} threads" for n in tests[1] for test in tests[0]]
    assert all(case["fallbacks"] == [] for case in cases)
    assert ["aim" in case for case in cases] == [part == "usual" and case["batch"] == 1 for case in cases]
    assert all(case["to_first"] > 0 for case in cases if case["batch"] > 1)
    assert not list(measured.cases({case["test"] for case in cases}))


def test_products_need_no_model(published: ModuleType) -> None:
    (case,) = published.Measured("1.7b-q4_k_m", "nowhere", "products", published.DRY).cases(set())
    assert case["test"] == "int8 16 x 64 x 64"
    assert case["passed"]
    assert case["aim"] == 16.0


def test_parts_without_tiles(published: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Namespace(budget=0.0, output=tmp_path, commit="none", again=False)
    for tiles, chosen in ((True, {host_cpu.CHOSEN: "avx512vnni"}), (False, {})):
        monkeypatch.setattr(host_cpu, "has_tiles", lambda tiles=tiles: tiles)
        run = published.Run(asked)
        given = {part: run.environment(part) for part in ("usual", "tiles-2", "vectors", "vectors-2")}
        assert given == {"usual": {}, "tiles-2": {}, "vectors": chosen, "vectors-2": chosen}


def test_markdown(published: ModuleType) -> None:
    def case(model: str, part: str, test: str, rate: float, threads: int = 16, **others: Any) -> dict[str, Any]:
        return {"model": model, "part": part, "test": f"{test}, {threads} threads", "threads": threads, "rate": rate,
                "batch": 1, "to_first": None, **others}

    read: dict[str, Any] = {"weights_gbps": 90.0, "read_limits": [100.0, 120.0], "share_of_read_limit": 0.75}
    cases: list[dict[str, Any]] = [
        case("a", "usual", "prefill 512", 3000.0, of_aim=0.857),
        case("a", "usual", "decode 16 @64", 93.0, of_aim=0.94, **read),
        case("a", "usual", "decode 16 x8 @64", 600.0, **read | {"batch": 8, "to_first": 6.5}),
        case("a", "threads", "prefill 512", 250.0, 1),
        case("a", "threads", "decode 16 @64", 9.0, 1, **read),
        case("a", "vectors", "prefill 512", 1500.0),
        {"model": "a", "part": "products", "test": "int8 512 x 4096 x 4096", "tops": 15.2, "of_aim": 0.95},
        {"model": "b", "part": "usual", "test": "usual", "failed": "BackendError: out of memory"},
    ]
    assert published.markdown({"cases": cases}) == """\
| model | prefill 512 | decode 16 @64 | decode 16 x8 @64 |
|---|---:|---:|---:|
| a | 3,000.0 (0.86 of the aim) | 93.0 (90.0 of 120.0 GB/s, 75%; 0.94 of the aim) | 600.0 (6.50 times one) |

| model | threads | prompt | one reply |
|---|---:|---:|---:|
| a | 1 | 250.0 | 9.0 (90.0 of 120.0 GB/s, 75%) |
| a | 16 | 3,000.0 | 93.0 (90.0 of 120.0 GB/s, 75%) |

| model | test | tiles | vectors | ratio |
|---|---:|---:|---:|---:|
| a | prefill 512, 16 threads | 3,000.0 | 1,500.0 | 2.00 |

int8 512 x 4096 x 4096: 15.2 TOPS, 0.95 of the aim

- b, usual: BackendError: out of memory"""
