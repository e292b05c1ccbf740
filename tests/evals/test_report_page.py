"""The page of a report: figures, structure, escaping, and the same bytes each time."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from octavo.errors import FileError, UsageError
from octavo.evals.report import Findings, QualityPlan, measure, render, write_report
from octavo.evals.report.advice import advise
from octavo.evals.report.findings import by_kind
from octavo.evals.report.pictures import grid, quality_picture
from octavo.evals.report.quality import Point, Quality
from octavo.evals.report.report_page import estimate
from octavo.evals.stats import Estimate
from octavo.io.gguf import write_gguf
from octavo.quantizers import quantize_file
from octavo.runtime import resolve
from tests.evals.no_pictures import leave_out_pictures
from tests.quantizers import small

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "<script>alert(1)</script>&\"'$\\frac{1}$\u202e\x07%s{}"


class Page(HTMLParser):
    """A page's tags, ids, texts and tables; fails at tags that are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page = page
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._open: list[str] = []
        self._text: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        self._text = []
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag in ("td", "th"):
            self._rows[-1].append("".join(self._text))
        elif tag == "caption":
            self._caption = "".join(self._text)
        elif tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def column(self, caption: str, heading: str) -> dict[str, str]:
        """A column of a table by the first cells of the rows."""
        head, *rows = self.tables[caption]
        return {row[0]: row[head.index(heading)] for row in rows}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small.write(tmp_path_factory.mktemp("page") / "base.gguf"))


@pytest.fixture(scope="module")
def found(base: str) -> Findings:
    path = base.replace("base", "made")
    quantize_file(base, path, "Q4_K_M", threads=1)
    model = measure(path, base)
    return Findings(model, advise(model), QUALITY)


def _point(name: str, role: str, bits: float, kl: float | None) -> Point:
    return Point(name, role, int(bits * 1e5), bits, Estimate(9 + (kl or 0), 0.5),
                 None if kl is None else Estimate(kl, kl / 9), None if kl is None else Estimate(0.9, 0.01))


QUALITY = Quality("a <b>text", 1234, 5, 512, (
    _point("base.gguf", "base", 16, None), _point("made.gguf", "model", 4.8, 0.0321),
    _point("Q8_0", "preset", 8.5, 0.000456), _point("Q4_K_M", "preset", 4.8, 0.0321), _point("Q2_K", "preset", 3, 0.9),
))


@pytest.fixture(scope="module")
def page(found: Findings) -> Page:
    return Page(render(found))


def test_figures(found: Findings, page: Page) -> None:
    model = found.model
    every = "Every tensor, in the order of the file"
    errors, sizes = page.column(every, "error"), page.column(every, "in the base")
    for t in model.tensors:
        assert float(errors[t.name].removesuffix(" %")) == pytest.approx(100 * (t.error or 0), rel=1e-3)
        assert sizes[t.name] == t.base_type
    by_type = page.column("Types of tensors", "parameters")
    assert {kind: int(n.replace(",", "")) for kind, n in by_type.items()} == {
        kind: sum(t.size for t in model.tensors if t.type == kind) for kind in ("Q4_K", "Q6_K", "F32")
    }
    worst = page.column("Tensors whose errors cost most", "better as")
    assert worst == {a.tensor.name: a.type for a in found.advice}
    kl = page.column("Models on the text", "KL divergence")
    assert kl == {"base.gguf": "–", "made.gguf": "0.0321 ± 0.0036", "Q8_0": "0.000456 ± 0.000051",
                  "Q4_K_M": "0.0321 ± 0.0036", "Q2_K": "0.90 ± 0.10"}
    assert f"<dd>{100 * (model.error or 0):#.4g} %</dd>" in page.page
    assert "1,234 tokens scored in 5 windows of 512" in page.page


def test_advice_is_told_in_a_sentence(found: Findings, page: Page) -> None:
    a = found.advice[0]
    layer, kind = a.tensor.place
    sentence = re.sub(r"<[^>]*>", "", page.page)
    assert (
        f"{kind} of layer {layer} at Q4_K has {100 * (a.tensor.error or 0):#.3g} % error; as {a.type} it has"
        in sentence
    )
    assert f"blk\\.{layer}\\.{kind}={a.type}" in sentence


def test_the_page_needs_nothing_else(page: Page) -> None:
    assert not {"script", "link", "iframe", "object", "img"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#"), tag
    outside = re.findall(r"(?:https?:)?//[\w.]+", page.page)
    assert set(outside) <= {"http://www.w3.org"}
    assert "url(http" not in page.page
    assert "@import" not in page.page


def test_pictures_have_names_and_the_pages_colours(page: Page) -> None:
    pictures = [a for tag, a in page.tags if tag == "svg"]
    assert len(pictures) == 6
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert set((attributes["aria-labelledby"] or "").split()) <= set(ids)
        assert "width" not in attributes
    used = set(re.findall(r"url\(#([^)]*)\)", page.page)) | set(re.findall(r'xlink:href="#([^"]*)"', page.page))
    assert used <= set(ids)
    for svg in re.findall(r"<svg.*?</svg>", page.page, re.DOTALL):
        ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))
        colours = set(re.findall(r"(?:fill|stroke|color): ([^;\"]+)", svg))
        assert colours <= {"none", "currentColor", *(f"var(--{n})" for n in ("muted", "grid", "accent", "second"))}
    assert "prefers-color-scheme: dark" in page.page


def test_structure(page: Page) -> None:
    sections = [a["id"] for tag, a in page.tags if tag == "section"]
    assert sections == ["summary", "errors", "worst", "quality", "weights", "codes", "scales", "tensors"]
    tags = [tag for tag, _ in page.tags]
    assert [tags.count(tag) for tag in ("html", "h1", "main")] == [1, 1, 1]
    assert tags.count("table") == tags.count("caption")
    assert page.page.startswith('<!DOCTYPE html>\n<html lang="en">')


def test_the_same_input_gives_the_same_bytes(found: Findings, page: Page) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"axes.facecolor": "red", "svg.fonttype": "path"}):
        assert render(found) == page.page
        assert mpl.rcParams["axes.facecolor"] == "red"


@pytest.mark.parametrize("kind", ["estimated", "trial"])
def test_without_a_base(base: str, found: Findings, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pictures(monkeypatch)
    model = measure(base if kind == "trial" else found.model.path)
    got = Page(render(Findings(model, advise(model))))
    assert ("error as Q4_K_M" if kind == "trial" else "estimated error") in got.page
    sections = {a["id"] for tag, a in got.tags if tag == "section"}
    assert "quality" not in sections
    assert ("codes" in sections, "scales" in sections) == (kind == "estimated", kind == "estimated")
    if kind == "estimated":
        shown = got.column("Every tensor, in the order of the file", "error")
        assert shown["output_norm.weight"] == "–"
        assert "With --base errors are measured.</p>" in got.page, "what is said of them is not cut"


def write(path: Path, tensors: Mapping[str, np.ndarray], **keys: Any) -> Path:
    write_gguf(path, "llama", small.KEYS | keys, dict(tensors))
    return path


def hostile(path: Path, names: list[str], factor: float) -> Path:
    """A model whose tensors have names that no writer of ours writes: they are put into the file afterwards."""
    rng = np.random.default_rng(0)
    plain = [f"{i}".ljust(len(name.encode()), "_") for i, name in enumerate(names)]
    values = (rng.standard_normal((len(names), 4, 256)) * factor).astype(np.float32)
    write(path, dict(zip(plain, values, strict=True)), **{"general.name": f"</title>{HOSTILE}"})
    data = path.read_bytes()
    for mine, name in zip(plain, names, strict=True):
        assert data.count(mine.encode()) == 1
        data = data.replace(mine.encode(), name.encode())
    path.write_bytes(data)
    return path


def test_hostile_names(tmp_path: Path) -> None:
    names = [
        f"blk.0.{HOSTILE}.weight",
        f"{HOSTILE}.weight",
        f"blk.1.{HOSTILE}.weight",
        "blk.0.\n</svg>.weight",
        "]]><!--",
    ]
    base, model = hostile(tmp_path / "<b>base.gguf", names, 1), hostile(tmp_path / "<i>.gguf", names, 1.01)
    measured = measure(model, base)
    points = tuple(replace(p, name=HOSTILE) for p in QUALITY.points)
    got = Page(render(Findings(measured, advise(measured), replace(QUALITY, text=HOSTILE, points=points))))
    assert [t.name for t in measured.tensors] == names
    assert not {"script", "b"} & {tag for tag, _ in got.tags}
    assert [tag for tag, _ in got.tags].count("i") == 1  # of the legend
    assert "&lt;script&gt;alert(1)" in got.page
    for unwanted in ("\u202e", "\x07", "<!--", "]]>"):
        assert unwanted not in got.page
    for svg in re.findall(r"<svg.*?</svg>", got.page, re.DOTALL):
        ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))


def test_bad_values_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pictures(monkeypatch)
    weights = small.weights()
    weights["blk.0.attn_v.weight"][3, 5] = np.nan
    model = measure(small.write(tmp_path / "bad.gguf", weights))
    assert "&#39;blk.0.attn_v.weight&#39; (1 values)" in render(Findings(model, advise(model)))


def test_no_text_is_run_where_weights_are_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names the tensor; before, running the text ended in an error, and there was no page."""
    leave_out_pictures(monkeypatch)
    weights = small.weights()
    base = small.write(tmp_path / "base.gguf", weights)
    weights["blk.0.attn_v.weight"][3, 5] = np.nan
    bad = small.write(tmp_path / "bad.gguf", weights)
    found = write_report(bad, tmp_path / "page.html", base=base, plan=QualityPlan("demo"))
    assert found.quality is None
    assert "&#39;blk.0.attn_v.weight&#39; (1 values)" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_nothing_to_show(tmp_path: Path) -> None:
    model = measure(write(tmp_path / "vectors.gguf", {"a.weight": np.zeros(32, np.float32)}))
    got = Page(render(Findings(model, advise(model))))
    assert "No tensor has an error that is known." in got.page
    zeros = measure(write(tmp_path / "zeros.gguf", {"blk.0.a.weight": np.zeros((2, 256), np.float32)}))
    assert "0.00" in render(Findings(zeros, advise(zeros)))


def test_one_model_needs_no_curve() -> None:
    assert quality_picture(replace(QUALITY, points=QUALITY.points[:2])) is None
    alone = quality_picture(replace(QUALITY, points=tuple(replace(p, kl=None) for p in QUALITY.points[1:])))
    assert alone is not None
    assert "nats" not in alone


def test_labels_of_points_keep_apart() -> None:
    points = tuple(_point(f"Q{i}_K_M", "preset", 4 + i / 50, 0.01 + i / 5000) for i in range(4))
    svg = quality_picture(replace(QUALITY, points=points))
    assert svg is not None
    spots = [
        (float(x), float(y)) for x, y in re.findall(r'(?:x="|translate\()([\d.]+)[" ,y=]+([\d.]+)[^>]*>Q\d_K_M<', svg)
    ]
    assert len(spots) == 8
    assert len(set(spots)) == 8


def test_each_method_has_a_line_of_its_own() -> None:
    by_method = [_point("Q4_K_M", f"preset, {way}", 4.8, 0.01 * i) for i, way in enumerate(("gptq", "qronos"), start=1)]
    svg = quality_picture(replace(QUALITY, points=(*QUALITY.points, *by_method)))
    assert svg is not None
    names = re.findall(r">(preset(?:, \w+)?)</text>", svg)
    assert names == ["preset", "preset, gptq", "preset, qronos"]
    assert len(re.findall(r">Q4_K_M</text>", svg)) == 2  # once in each chart: the others lie above or below


def test_write(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pictures(monkeypatch)
    out = tmp_path / "report.html"
    seen: list[str] = []
    got = write_report(base, out, threads=1, progress=lambda done, total, name: seen.append(name))
    assert out.read_text(encoding="utf-8") == render(got)
    assert seen == [t.name for t in got.model.tensors]
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_files_that_can_not_be_written(base: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is the model that is read"):
        write_report(base, base)
    with pytest.raises(FileError, match="is a folder"):
        write_report(base, tmp_path)
    with pytest.raises(FileError, match="there is no folder"):
        write_report(base, tmp_path / "no" / "report.html")


def test_presets_want_floats(found: Findings, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="presets of a quantized model"):
        write_report(found.model.path, tmp_path / "r.html", plan=QualityPlan("demo", ["Q8_0"]))


def test_without_matplotlib(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name, name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"pip install '.\[report\]' in Octavo's folder"):
        write_report(base, tmp_path / "r.html")


def test_the_demo_model_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pictures(monkeypatch)
    found = write_report("demo", tmp_path / "demo.html")
    assert (found.model.path, found.model.base) == ("demo", "demo")
    assert resolve("demo") not in (tmp_path / "demo.html").read_text()


def test_a_sentence_says_what_the_model_costs(found: Findings, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pictures(monkeypatch)
    (said,) = re.findall(r'<p class="verdict">(.*?)</p>', page.page)
    assert said.endswith(
        "its predictions are noticeably different from those of its base: the divergence is 0.032 nats a token, and"
        " both find the same token likeliest at 90.0 % of all places."
    )
    (alone,) = re.findall(r'<p class="verdict">(.*?)</p>', render(found._replace(quality=None)))
    assert f"its weights differ from those of the base by {100 * (found.model.error or 0):#.3g} %" in alone


def test_kinds_come_as_data_flows(found: Findings) -> None:
    columns = grid(found.model).columns
    assert columns.index("attn_v") < columns.index("ffn_down_exps")
    assert list(by_kind(found.model.matrices))[-1] == "output"


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [(1.00000084, 2.1e-7, "1.00000"), (0.0321, 0.0036, "0.0321 ± 0.0036"), (12.3456, 0.0123, "12.346 ± 0.012"),
     (0.000456, 0.000051, "0.000456 ± 0.000051"), (9.0, 0.0, "9"), (8123.4, 55.0, "8123 ± 55")],
)
def test_digits_that_count(value: float, error: float, shown: str) -> None:
    assert estimate(Estimate(value, error)) == shown
