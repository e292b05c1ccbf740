"""What a method recorded in a model, and the section of a report that shows it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.calibrate import collect_statistics
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.errors import ModelError
from octavo.evals.report import Findings, measure, method_section, pictures, render
from octavo.evals.report.pictures import LayerPair
from octavo.huggingface import open_model_file
from octavo.quantizers import Report, quantize_checkpoint
from octavo.quantizers.job.quantization_record import FILE, MethodRecord, read_record, record_of, to_values
from octavo.quantizers.statistics.outliers import channels
from tests.evals.no_pictures import leave_out_pictures
from tests.evals.test_report_page import Page
from tests.runtime import tiny

WEIGHTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """A folder with a model that `auto` quantizes, whose norms have channels that stand out, and what that reported."""
    folder = tmp_path_factory.mktemp("method")
    weights = tiny.tensors()
    for layer in range(2):
        weights[f"blk.{layer}.attn_norm.weight"][[3, 11]] *= 50
    src = tiny.write(folder / "src.gguf", weights=weights)
    (folder / "text.txt").write_bytes(bytes(np.random.default_rng(0).integers(97, 123, 300).astype(np.uint8)))
    how = SchemeMethod(str(folder / "text.txt"), "auto", samples=2, context=32, device="reference", threads=1)
    return folder, quantize_checkpoint(src, folder / "made", "int8-w8a8", method=how, threads=1)


@pytest.fixture(scope="module")
def record(run: tuple[Path, Report]) -> MethodRecord:
    with open_model_file(run[0] / "made") as file:
        found = read_record(file)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def page(run: tuple[Path, Report]) -> Page:
    with pytest.MonkeyPatch.context() as patch:
        leave_out_pictures(patch)
        return Page(render(Findings(measure(run[0] / "made"), [])))


def test_a_record_is_what_the_run_reported(run: tuple[Path, Report], record: MethodRecord) -> None:
    _, report = run
    assert (record.target, record.about.method, record.about.text) == ("int8-w8a8", "auto", "text.txt")
    assert (record.about.samples, record.about.tokens) == (2, 64)
    rows = {row.name: row for row in report.rows if row.how is not None}
    assert {w.name for w in record.weights} == rows.keys()
    for w in record.weights:
        assert w.how == rows[w.name].how
        assert (w.before, w.error) == pytest.approx((rows[w.name].before, rows[w.name].error), rel=1e-5)
        assert w.tried.keys() == {"nearest", "gptq", "qronos"}
        assert min(w.tried, key=w.tried.__getitem__) == w.how
    assert [(s.fold, s.how, s.setting) for s in record.scales] == [(s.fold, s.how, s.setting) for s in report.scaled]
    for mine, told in zip(record.scales, report.scaled, strict=True):
        assert (mine.before, mine.after) == pytest.approx((told.before, told.after), rel=1e-5)


def test_channels_are_those_of_what_products_are_given(run: tuple[Path, Report], record: MethodRecord) -> None:
    """Against `collect_statistics`, which goes another way to the same numbers."""
    src = run[0] / "src.gguf"
    text, path = str(run[0] / "text.txt"), run[0] / "stats"
    stats = collect_statistics(src, text, path, samples=2, context=32, device="reference")
    (fold,) = [s for s in record.scales if s.fold == "blk.0.attn_norm"]
    absmax = stats.of("blk.0.attn_q.weight").absmax[0]
    assert fold.channels is not None
    assert {at for at, _ in fold.channels.largest[:2]} == {3, 11}
    for at, size in fold.channels.largest:
        assert size == pytest.approx(absmax[at], rel=1e-4)
    assert fold.channels.median == pytest.approx(np.median(absmax), rel=1e-4)
    after = next(w.channels for w in record.weights if w.name == "blk.0.attn_q.weight")
    assert after is not None
    assert after.peak < 0.2 * fold.channels.peak
    assert set(fold.readers) == {f"blk.0.{name}.weight" for name in WEIGHTS[:3]}


def test_the_page_has_the_numbers_of_the_record(record: MethodRecord, page: Page) -> None:
    caption = "What was chosen, and what each way errs"
    made, chosen = page.column(caption, "as made"), page.column(caption, "chosen")
    by = page.column(caption, "by qronos")
    for w in record.weights:
        assert chosen[w.name] == w.how
        assert float(made[w.name].removesuffix(" %")) == pytest.approx(100 * w.error, rel=1e-3)
        assert float(by[w.name].removesuffix(" %")) == pytest.approx(100 * w.tried["qronos"], rel=1e-3)
    nearest = page.column("Errors of products by kind of weight", "nearest")
    assert list(nearest) == list(WEIGHTS)
    down = [w.before for w in record.weights if "ffn_down" in w.name]
    assert float(nearest["ffn_down"].removesuffix(" %")) == pytest.approx(
        100 * np.sqrt(np.mean(np.square(down))), rel=1e-3
    )
    gains = page.column("Scales of channels", "ratio")
    assert gains == {s.fold: f"{s.after / s.before:.2f}" for s in record.scales}
    peaks = page.column("Inputs whose channels stand out most", "peak before")
    shared = ", ".join(f"blk.0.{name}.weight" for name in WEIGHTS[:3])
    (fold,) = [s for s in record.scales if s.fold == "blk.0.attn_norm"]
    assert float(peaks[shared]) == pytest.approx(fold.channels.peak if fold.channels else 0, rel=1e-2)
    assert "auto</code> for int8-w8a8, over 2 windows of the text text.txt: 64 tokens" in page.page
    section = page.page.partition('<section id="calibration"')[2].partition("</section>")[0]
    assert section.count("<svg></svg>") == 3


def test_a_model_that_no_method_made_has_no_such_section(run: tuple[Path, Report]) -> None:
    assert method_section.calibration(measure(run[0] / "src.gguf")) is None


def test_lines_are_of_layers_alone() -> None:
    hostile = "<b>x</b>"
    values = values_of(hostile, "blk.1.attn_q.weight", "blk.0.attn_q.weight", "output.weight")
    found = record_of(values, "a file")
    lines = method_section._lines(method_section.weights_by_kind(found))
    assert lines == {"attn_q": [LayerPair(0, 20, 10), LayerPair(1, 20, 10)]}
    shown = pictures.errors_picture({hostile: [LayerPair(0, 2, 1)]})
    assert "made-title" in shown
    assert "<b>" not in shown


def values_of(how: str, *names: str) -> dict[str, Any]:
    weights = [{"name": name, "how": how, "before": 0.2, "error": 0.1} for name in names]
    return {"version": 1, "target": "Q4_0", "method": "gptq", "text": "t", "samples": 1, "tokens": 2, "sha256": "0",
            "rotate": False, "kv": None, "weights": weights, "scales": []}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "version"), ({"samples": -1}, "samples"), ({"tokens": True}, "tokens"), ({"text": 5}, "text"),
        ({"weights": {}}, "weights"), ({"weights": [3]}, r"weights\.0\."), ({"scales": None}, "scales"),
        ({"weights": [{"name": "a", "how": "b", "before": float("nan"), "error": 1}]}, r"weights\.0\.before"),
        ({"weights": [{"name": "a", "how": "b", "before": 1, "error": 1, "tried": []}]}, r"weights\.0\.tried"),
        ({"weights": [{"name": "a", "how": "b", "before": 1, "error": 1, "channels": {"size": 1, "median": 1,
                       "largest": [[1]]}}]}, r"largest\.0\.value"),
    ],
)
def test_a_record_that_nobody_wrote_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=rf"a file.*octavo\.calibration: .*{named}"):
        record_of(values_of("gptq", "a") | change, "a file")


def test_a_record_comes_back_as_it_was(run: tuple[Path, Report], record: MethodRecord) -> None:
    text = (run[0] / "made" / FILE).read_text()
    assert record_of(json.loads(text), "x") == record
    assert to_values(record) == json.loads(text)


def test_experts_channels_are_taken_together() -> None:
    found = channels(np.array([[1.0, 5, 2], [4, 0, 2]]))
    assert (found.size, found.median, found.largest) == (3, 4.0, ((1, 5.0), (0, 4.0), (2, 2.0)))
    assert found.peak == 1.25
    assert channels(np.zeros(4)).peak == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("draw", [pictures.peaks_picture, pictures.spans_picture])
def test_peaks_and_scales_are_drawn_whatever_they_are(draw: Callable[[pictures.Lines], str]) -> None:
    """A layer alone, values that are equal, nothing, endless, and so far apart that the axis is logarithmic."""
    lines = {
        "attn_q": [LayerPair(3, 1.0, 1.0)], "ffn_up": [LayerPair(i, 1 + i, 2.0) for i in range(30)],
        "ffn_down": [LayerPair(0, 0.0, math.inf), LayerPair(7, 1e-3, 1e4)], "attn_v": [LayerPair(0, 0.0, 0.0)],
    }
    shown = draw(lines)
    assert shown.startswith("<svg")
    assert shown.rstrip().endswith("</svg>")
    texts = set(re.findall(r"<text[^>]*>([^<]*)</text>", shown))
    assert not {"nan", "inf"} & texts
    assert {"attn_q", "ffn_up", "ffn_down", "attn_v"} <= texts
    assert shown == draw(lines), "the same numbers give the same bytes"
