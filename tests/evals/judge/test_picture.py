"""The picture of a judgement: names that can be read, colours that tell files apart."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pydantic
import pytest

from octavo.evals.judge import picture
from octavo.evals.judge.judgement import Judgement, remarks
from octavo.evals.report.pictures import figure

RESULTS = Path(__file__).parents[3] / "bench" / "results" / "frontier-2026-11-30.json"


@pytest.fixture
def crowded() -> Judgement:
    """Thirteen files, some of which are next to others."""
    parts = pydantic.TypeAdapter(list[Judgement]).validate_python(json.loads(RESULTS.read_text())["judgements"])
    return replace(parts[0], files=[verdict for each in parts for verdict in each.files])


def test_names_cover_neither_each_other_nor_dots(crowded: Judgement) -> None:
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    ours = {v.name for v in crowded.files if v.name.startswith("types")}
    with figure(picture.HEIGHT) as fig:
        picture._axes(fig, crowded, ours, picture.Colours("blue", "red", "grey", "0.9"))
        (ax,), renderer = fig.axes, fig.canvas.get_renderer()
        fig.draw(renderer)
        names = [Text.get_window_extent(text, renderer) for text in ax.texts]
        dots = [ax.transData.transform((v.sizes.body / 1e6, v.kl.value)) for v in crowded.files]
        assert len(names) == len(dots) == 13
        assert not [(a, b) for a, b in combinations(names, 2) if Bbox.intersection(a, b)]
        assert not [(a, dot) for a in names for dot in dots if a.contains(*dot)]
        assert all(ax.bbox.x0 <= name.x0 and name.x1 <= ax.bbox.x1 for name in names)
        assert all(ax.bbox.y0 <= name.y0 and name.y1 <= ax.bbox.y1 for name in names)
        assert len(ax.lines[-1].get_xdata()) == len(ours) == 4


def test_colours_and_title(crowded: Judgement, tmp_path: Path) -> None:
    picture.draw(crowded, str(tmp_path / "a.svg"), {crowded.files[0].name})
    drawn = (tmp_path / "a.svg").read_text()
    assert "#2a78d6" in drawn
    assert "dashed" not in drawn  # no noise was measured
    noisy = replace(crowded, files=[replace(v, noise=v.kl.value, rounds=False) for v in crowded.files])
    picture.draw(noisy, str(tmp_path / "b.svg"))
    assert "dashed" in (tmp_path / "b.svg").read_text()


def test_long_names_differ() -> None:
    long = [f"SmolLM2-135M-Instruct-{bits}bpw.gguf" for bits in ("3.1", "3.5", "3.7")]
    assert [*picture._short(long).values()] == ["3.1bpw", "3.5bpw", "3.7bpw"]
    assert picture._short(long[:1]) == {long[0]: "SmolLM2-135M-Instru..."}
    assert picture._short(["a.gguf", "b/c.gguf"]) == {"a.gguf": "a", "b/c.gguf": "c"}


def test_what_is_said_of_perplexities_below_the_base(crowded: Judgement) -> None:
    assert not remarks(crowded)
    low = replace(crowded.files[0], ratio=replace(crowded.files[0].ratio, value=0.6, low=0.5, high=0.7))
    assert "gains nothing" in remarks(replace(crowded, files=[low]))[0]
