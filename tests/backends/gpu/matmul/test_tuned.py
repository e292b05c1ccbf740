"""Tuned tables: what is looked up, what is written, and what `octavo bench tune` does with times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.matvec.matvec_shape import MatvecShape
from octavo.backends.gpu.matmul.mmq.mmq_shapes import DotShape, MmaShape
from octavo.backends.gpu.matmul.product import Product, Shape
from octavo.backends.gpu.matmul.tuned import tuned_table as tuned
from octavo.backends.gpu.weights.layout import layout_of
from octavo.bench import tune as tuning
from octavo.bench import tune_steps
from octavo.errors import BackendError, FileError
from octavo.formats import by_name
from octavo.formats.group import row_named

ARCHS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx1100", "interpreter")
NAMES = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_NL", "IQ3_S", "TQ2_0", "GROUP4_128_F16")
Q4_K = layout_of(by_name("Q4_K"), "f16")


class Backend(GpuBackend):
    """One that says that it is on another card."""

    def __init__(self, arch: str) -> None:
        super().__init__()
        self.target = replace(self.target, arch=arch)


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's table in a folder of its own; what was looked up before is forgotten, and again afterwards."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    monkeypatch.setattr(gluon, "usable", lambda name: True)
    tuned.forget()
    yield tmp_path
    tuned.forget()


@pytest.mark.parametrize("arch", ARCHS)
def test_each_product_has_a_kernel_that_computes_it(arch: str) -> None:
    """Of any size, for any number of tokens; and one with sums in one order."""
    for name in NAMES:
        layout = layout_of(row_named(name), "f16")
        for n, kp in ((8, 256), (96, 1280), (4096, 4096), (50000, 20480)):
            for tokens in (1, 3, 4, 5, 17, 32):
                shape = dispatch.q8_1(Product(layout, n, kp, tokens, arch))
                assert tokens <= 4 or isinstance(shape, MmaShape | DotShape)
                assert isinstance(dispatch.deterministic(layout, n, kp, tokens, arch), DotShape)
                assert isinstance(dispatch.matvec(layout, n, kp, 1, arch, pairs=True), MatvecShape)
            for tokens in (1, 33, 300, 700, 5000):
                found = dispatch.w4a16(layout, n, kp, tokens, arch)
                assert found is None or (arch == "sm_90" and found.stages >= 1)
                assert dispatch.experts(layout, n, kp, tokens, arch).block_m >= 8


def test_the_nearest_size_and_class_are_taken() -> None:
    rows: dict[tuple[int, int], tuned.Row] = {
        (1024, 1024): ((1, (("matvec", (2, 32, 1, 1, 0)),)), (8, (("mmq_mma", (1, 2, 1, 0)),))),
        (8192, 1024): ((4, (("matvec", (4, 32, 1, 1, 0)),)),),
    }
    found = {"products": {"4 bits, 32 in 256, minima": rows, "8 bits, 32, plain": {(1024, 1024): rows[8192, 1024]}}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuned, "table", lambda arch: found)
        first = [next(tuned.nearest("products", Product(Q4_K, n, 1024, tokens, "sm_90")))
                 for n, tokens in ((1100, 1), (1100, 2), (1100, 99), (6000, 1))]
        assert first == [("matvec", (2, 32, 1, 1, 0)), ("mmq_mma", (1, 2, 1, 0)), ("mmq_mma", (1, 2, 1, 0)),
                         ("matvec", (4, 32, 1, 1, 0))]
        q8_0 = layout_of(by_name("Q8_0"), "f16")
        assert next(tuned.nearest("products", Product(q8_0, 1024, 1024, 1, "sm_90"))) == ("matvec", (4, 32, 1, 1, 0))


@pytest.mark.parametrize("path", sorted(tuned.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables_are_as_they_are_written(path: Path, tmp_path: Path) -> None:
    """Each choice names a kernel and has as many numbers as its shape takes; written again, it is the same file."""
    found = tuned.read(path)
    assert set(found) == {"products", "pairs", "experts"}
    p = Product(Q4_K, 4096, 4096, 1, path.stem)
    for rows in (rows for classes in found.values() for rows in classes.values()):
        for most, said in (cell for row in rows.values() for cell in row):
            for name, numbers in said:
                Shape.kinds[name].of(p._replace(tokens=most), *numbers)
    about = path.read_text(encoding="utf-8").split('"about": "')[1].split('"')[0]
    tuned.write(tmp_path / "again.json", found, about)
    assert (tmp_path / "again.json").read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"about": "", ', "truncated"), ('{"about": 1}', "Expected `str`"), ("[]", "Expected `object`"),
        ('{"about": "", "others": {}}', "unknown field `others`"), ('{"about": "\xff"', ""),
        ('{"about": "", "products": {"4 bits": {}}}', "'4 bits' is not a class of layouts"),
        ('{"about": "", "products": {"4 bits, 32, plain": {"4096": {"1": []}}}}', "'4096' is not a size with choices"),
        ('{"about": "", "products": {"4 bits, 32, plain": {"8 x 256": {}}}}', "'8 x 256' is not a size with choices"),
        ('{"about": "", "products": {"4 bits, 32, plain": {"8 x 256": {"1": ["mmq_dot 1 2"]}}}}', "'mmq_dot 1 2' is"),
        ('{"about": "", "products": {"4 bits, 32, plain": {"8 x 256": {"1": ["magic 1"]}}}}', "'magic 1' is not"),
        *(
            ('{"about": "", "products": {"4 bits, 32, plain": {"8 x 256": {"1": ["' + said + '"]}}}}', "is not a")
            for said in ("matvec 0 0 0 0 0", "matvec 3 7 9 5 1", "mmq_mma 0 0 0 0", "w4a16_multicta 64 64 3 4 2 2")
        ),
        (f'{{"about": "", "products": {{"{"9" * 5000} bits, 32, plain": {{}}}}}}', "is not a class of layouts"),
        ('{"about": "", "products": {"4 bits, 32, plain": {"8 x 256": {"x": ["library"]}}}}', "Expected `int`"),
    ],
)
def test_a_damaged_table_of_the_user_is_told_and_left_out(
    text: str, problem: str, caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tuned.user_file("sm_90")
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    with caplog.at_level("WARNING", "octavo"):
        assert isinstance(dispatch.q8_1(Product(Q4_K, 4096, 4096, 8, "sm_80")), MmaShape)
        assert tuned.table("sm_90") == tuned.read(tuned.FOLDER / "sm_90.json")
    (line,) = caplog.messages
    assert line.startswith(f"device gpu: the shipped table of kernels is used alone: {path}: ")
    assert problem in line
    with pytest.raises(FileError, match="not a tuned table"):
        list(tuning.tune([tuning.Matrix(Q4_K, 8, 256, by_name("Q4_K"))], Backend("sm_90")))
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_is_not_a_regular_file_is_not_waited_for(caches: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tuned.user_file("sm_90")
    path.parent.mkdir()
    os.mkfifo(path)
    with caplog.at_level("WARNING", "octavo"):
        assert tuned.table("sm_90") == tuned.read(tuned.FOLDER / "sm_90.json")
    assert "not a regular file" in caplog.text


def test_two_that_tune_at_once_keep_both_rows(caches: Path) -> None:
    backend = GpuBackend()
    one, other = (tuning.Matrix(layout_of(by_name(n), "f16"), 8, 256, by_name(n)) for n in ("Q4_K", "Q8_0"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "TOKENS", (1,))
        first = tuning.tune([one], backend, timer=lambda calls: 1.0)
        next(first)
        list(tuning.tune([other], backend, timer=lambda calls: 1.0))
        list(first)
    assert len(tuned.read(tuned.user_file(backend.target.arch))["products"]) == 2


def test_where_nothing_can_be_timed_or_written(caches: Path) -> None:
    backend, matrix = GpuBackend(), tuning.Matrix(Q4_K, 8, 256, by_name("Q4_K"))

    def fails(calls: object) -> float:
        raise RuntimeError("out of memory\nand more")

    with pytest.raises(BackendError, match=r"no kernel of Q4_K 8 x 256 could be timed for 1 tokens: out of memory$"):
        list(tuning.tune([matrix], backend, timer=fails))
    tuned.user_file("sm_90").unlink(missing_ok=True)
    (caches / "tuned").rename(caches / "other")
    (caches / "tuned").write_text("a file")
    with pytest.raises(FileError, match="tuned"):
        list(tuning.tune([matrix], backend, timer=fails))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_stated_shapes_are_such_that_the_kernel_computes(arch: str) -> None:
    for name in ("Q4_K", "Q8_0"):
        layout = layout_of(by_name(name), "f16")
        for tokens in tuning.TOKENS:
            p = Product(layout, 4096, 4096, tokens, arch)
            choices = list(tuning._choices(p).values())
            assert len(set(choices)) == len(choices) > (1 if tokens <= 32 or arch == "sm_90" else 0)
            assert all(tuning.KERNELS[name].of(p, *numbers) for name, numbers in choices)


@pytest.mark.parametrize("name", NAMES)
def test_no_shape_has_a_single_stage_of_loads(name: str) -> None:
    """A kernel that waits for its oldest load before it sends the newest would wait forever: 6 bits of 64 rows by 32
    tokens, four programs to a multiprocessor, had room for one."""
    layout = layout_of(row_named(name), "f16")
    for tokens in (*tuning.TOKENS, 2048):
        for kernel in Shape.kinds.values():
            p = Product(layout, 1024, 5120, tokens, "sm_90")
            shapes = [kernel.of(p, *numbers) for numbers in kernel.space(p)]
            assert all(getattr(shape, "stages", 2) >= 2 for shape in shapes if shape is not None)


def test_the_fastest_is_kept_and_what_is_there_is_not_timed_again(caches: Path) -> None:
    """By times that a test makes up, of interpreted kernels."""
    backend = GpuBackend()
    matrix = tuning.Matrix(Q4_K, 40, 512, by_name("Q4_K"))
    asked = list[int]()

    def timer(calls: object) -> float:
        asked.append(1)
        return float(len(asked))  # each slower than the one before, and the one so far the slowest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "TOKENS", (1, 8))
        patch.setattr(tuning, "MOST_COPIES", 1)
        rows = list(tuning.tune([matrix], backend, timer=timer))
        assert [(row.matrix, row.tokens) for row in rows] == [(matrix, 1), (matrix, 8)]
        assert all(row.seconds < row.before for row in rows)
        times = len(asked)
        assert list(tuning.tune([matrix], backend, timer=timer)) == []
        assert len(asked) == times
        assert len(list(tuning.tune([matrix], backend, again=True, timer=timer))) == 2
    path = tuned.user_file(backend.target.arch)
    assert path.is_relative_to(caches)
    ((size, row),) = tuned.read(path)["products"]["4 bits, 32 in 256, minima"].items()
    assert size == (40, 512)
    tuned.forget()
    p = Product(Q4_K, 40, 512, 1, backend.target.arch)
    name, numbers = row[0][1][0]
    assert dispatch.q8_1(p) == Shape.kinds[name].of(p, *numbers)


def test_choices_stay_where_steps_gain(caches: Path) -> None:
    """Those of 8 tokens and of more than 32, by made-up times of steps; the others are what they were without."""
    backend = Backend("sm_90")
    matrix = tuning.Matrix(Q4_K, 5000, 5120, by_name("Q4_K"))
    kind, size, own = tuned.class_of(Q4_K), (5000, 5120), (("library", ()),)
    one = ("matvec", (4, 32, 2, 1, 1))
    other = {(6000, 5120): ((1, (one,)),)}
    users: tuned.Table = {"products": {kind: {size: ((4, (one,)), (1024, own)), **other}}}
    tuned.write(tuned.user_file("sm_90"), users, "test")
    asked = list[tuple[int, bool]]()

    def seconds(tokens: int) -> float:
        users = size in tuned.table("sm_90")["products"][kind]
        asked.append((tokens, users))
        return 1.0 if not users else 0.9 if tokens == 8 or tokens > 32 else 1.0

    steps = list(tune_steps.keep_what_steps_gain([matrix], backend, seconds))
    assert asked == [(tokens, users) for tokens in tuning.TOKENS for users in (False, True)]
    assert [step.tokens for step in steps if step.kept] == [8, 64, 128, 256, 512, 1024]
    found = tuned.read(tuned.user_file("sm_90"))["products"][kind]
    assert found.pop((6000, 5120)) == other[6000, 5120]
    row = found.pop(size)
    assert not found
    assert tuned.cell_for(row, 8) == tuned.cell_for(row, 100) == tuned.cell_for(row, 1024) == own
    with tuned.trial("sm_90", {"products": {kind: other}}):
        for tokens in (1, 2, 16, 32, 4096):
            p = Product(Q4_K, 5000, 5120, tokens, "sm_90")
            choices = tuple(dict.fromkeys(islice(tuned.nearest("products", p), 4)))
            assert tuned.cell_for(row, tokens) == choices
