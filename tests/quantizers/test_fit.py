"""Types that follow from a wished size, and the model made with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import UsageError
from octavo.evals import demo_text, divergence
from octavo.evals.eval_model import open_subject
from octavo.evals.sensitivity import MeasuredSlopes
from octavo.evals.stats import Estimate
from octavo.formats import BlockFormat, QTensor
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.quantizers import quantize_file
from octavo.quantizers.fit import GUESSED, MEASURED, Fitted, fit, fit_types, quantize_to_size
from octavo.quantizers.fit.fit import Target, offers, parse_size
from octavo.quantizers.fit.sensitivity_prior import guessed_slopes
from octavo.quantizers.imatrix import Imatrix, SquareSums
from octavo.quantizers.job.job_source import gguf_source
from octavo.quantizers.job.recode import Recoded, recode
from octavo.quantizers.mix.mixing import Choices
from octavo.runtime import resolve
from tests.quantizers import small
from tests.sampling import slow, some

FOUND: dict[tuple[Any, ...], Recoded] = {}


def types(path: Path) -> dict[str, str]:
    with GGUFFile.open(path) as file:
        return {name: info.type_name for name, info in file.tensors.items()}


@pytest.fixture(autouse=True)
def errors_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all tests ask what the types lose of the same weights: the second answer is the first one again."""

    def remembered(tensor: QTensor, fmt: BlockFormat, *, importance: F32 | None, threads: int | None) -> Recoded:
        weights = None if importance is None else importance.tobytes()
        key = tensor.shape, tensor.format.name, tensor.data.tobytes(), fmt.name, weights
        if key not in FOUND:
            FOUND[key] = recode(tensor, fmt, importance=importance, threads=threads)
        return FOUND[key]

    monkeypatch.setattr(fit, "recode", remembered)


@pytest.mark.parametrize("bits", [slow(bits) for bits in (3.3, 4.5, 6.0, 12.0)])
def test_no_more_than_so_many_bits_and_nearly_all_of_them(src: Path, dst: Path, bits: float) -> None:
    fitted = quantize_to_size(src, dst, Target(bits_per_weight=bits))
    with GGUFFile.open(dst) as made:
        weights = sum(info.size for info in made.tensors.values())
        assert 0.94 * bits < 8 * made.nbytes / weights <= bits
        assert made.nbytes == fitted.report.nbytes == fitted.budget - fitted.bytes_left
        assert {row.name: row.type for row in fitted.report.rows} == types(dst)


@pytest.mark.few(1)
@pytest.mark.parametrize(("size", "alignment"), some([(180_000, 32), (250_000, 32), (300_000, 4096)], 1))
def test_a_file_of_a_wished_size(tmp_path: Path, dst: Path, size: int, alignment: int) -> None:
    keys = small.KEYS | {"general.alignment": alignment, "tokenizer.ggml.tokens": [f"token {i}" for i in range(2000)]}
    write_gguf(tmp_path / "src.gguf", "llama", keys, small.weights())
    imatrix = Imatrix(datasets=("a text",), path="/a/path" * 30)
    quantize_to_size(tmp_path / "src.gguf", dst, Target(file_size=size), imatrix=imatrix)
    spare = 0.05 * size + alignment * 30
    assert size - spare < dst.stat().st_size <= size


def test_nothing_is_lost_where_there_is_room(src: Path, dst: Path) -> None:
    fitted = quantize_to_size(src, dst, Target(bits_per_weight=32))
    assert types(dst) == types(src)
    assert fitted.loss == 0


def test_a_weight_that_matters_gets_more_bits(src: Path) -> None:
    with GGUFFile.open(src) as file:
        source = gguf_source(file)
        plain = guessed_slopes([t.name for t in source.tensors], source.facts.layers)
        offered, budget = offers(source, Choices()), Target(bits_per_weight=4.5).tensor_bytes(source, 0)
        name, twin = "blk.1.ffn_down_exps.weight", "blk.2.ffn_down_exps.weight"
        first, steep = (fit_types(source, offered, budget, s).types for s in (plain, plain | {name: 10.0, twin: 1e-6}))
    assert steep[name].bits > first[name].bits
    assert steep[twin].bits < first[twin].bits


def test_set_types_are_kept(src: Path, dst: Path) -> None:
    choices = Choices(
        tensor_types=(("attn_v", "f16"),), embedding_type="q4_0", output_type="Q8_0"
    )
    quantize_to_size(src, dst, Target(bits_per_weight=6), choices=choices)
    got = types(dst)
    assert {got[f"blk.{i}.attn_v.weight"] for i in range(small.LAYERS)} == {"F16"}
    assert (got["token_embd.weight"], got["output.weight"]) == ("Q4_0", "Q8_0")
    quantize_to_size(src, dst, Target(bits_per_weight=6), choices=Choices(leave_output=True))
    assert types(dst)["output.weight"] == "F16"
    with pytest.raises(UsageError, match="'Q4'"):
        quantize_to_size(src, dst, Target(bits_per_weight=6), choices=Choices(output_type="Q4"))


def test_the_output_of_a_tied_model(tmp_path: Path, dst: Path) -> None:
    tied = {name: w for name, w in small.weights().items() if name != "output.weight"}
    write_gguf(tmp_path / "tied.gguf", "llama", small.KEYS, tied)
    quantize_to_size(tmp_path / "tied.gguf", dst, Target(bits_per_weight=4.5), choices=Choices(output_type="Q8_0"))
    assert types(dst)["token_embd.weight"] == "Q8_0"


def test_rows_of_no_whole_blocks(tmp_path: Path, dst: Path) -> None:
    rng = np.random.default_rng(0)
    odd = {"blk.0.attn_v.weight": (64, 96), "blk.1.attn_v.weight": (64, 40)}
    changed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in odd.items()}
    small.write(tmp_path / "odd.gguf", changed)
    quantize_to_size(tmp_path / "odd.gguf", dst, Target(bits_per_weight=4.6))
    got = types(dst)
    assert got["blk.0.attn_v.weight"] in ("Q4_0", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0")
    assert got["blk.1.attn_v.weight"] == "F16"


def test_what_the_file_says_it_is(src: Path, dst: Path) -> None:
    numbers = {"Q2_K": 10, "Q3_K": 12, "IQ4_XS": 30, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "Q8_0": 7, "F16": 1}
    for bits in (3.3, 5.9, 20):
        quantize_to_size(src, dst, Target(bits_per_weight=bits))
        kinds = [kind for kind in types(dst).values() if kind != "F32"]
        with GGUFFile.open(dst) as file:
            said = file.metadata.get_int("general.file_type")
        assert said in {numbers[kind] for kind in kinds if kinds.count(kind) == max(map(kinds.count, kinds))}


def test_quantized_models(src: Path, dst: Path, tmp_path: Path) -> None:
    quantize_file(src, dst, "Q5_K_S")
    again = tmp_path / "again.gguf"
    with pytest.raises(UsageError, match="--allow-requantize"):
        quantize_to_size(dst, again, Target(bits_per_weight=4.7))
    assert not again.exists()
    quantize_to_size(dst, again, Target(bits_per_weight=4.7), allow_requantize=True)
    before, after = types(dst), types(again)
    kinds = {(before[name], after[name]) for name in after if "exps" in name}
    assert kinds <= {("Q5_K", kind) for kind in ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K")}


def test_a_dry_run_writes_nothing(src: Path, dst: Path) -> None:
    dry = quantize_to_size(src, dst, Target(bits_per_weight=4.5), dry_run=True)
    assert not dst.exists()
    wet = quantize_to_size(src, dst, Target(bits_per_weight=4.5))
    assert [row.type for row in dry.report.rows] == [row.type for row in wet.report.rows]
    assert (dry.loss, dry.loss_is) == (wet.loss, GUESSED)


@pytest.mark.parametrize(("target", "says"), [
    slow((Target(1), r"1 bits per weight can't be: its smallest types take \d+\.\d\d bits per weight")),
    (Target(file_size=9000), r"9,000 bytes can't be: its smallest types take \d+ bytes"),
])
def test_the_least_that_is_possible(src: Path, dst: Path, target: Target, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        quantize_to_size(src, dst, target, slopes=lambda source, names: pytest.fail("measured before it was refused"))
    words = str(raised.value).split("smallest types take ")[1].split()[0]
    least = Target(float(words)) if target.file_size is None else Target(file_size=int(words))
    quantize_to_size(src, dst, least)
    assert set(types(dst).values()) <= {"Q2_K", "F32"}
    assert target.file_size is None or dst.stat().st_size <= int(words)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({}, "give a size either as bits"),
        ({"bits_per_weight": 4, "file_size": 4}, "give a size either as bits"),
        ({"bits_per_weight": 0}, "0 bits"),
        ({"bits_per_weight": 40}, "up to 32"),
        ({"bits_per_weight": float("nan")}, "nan bits"),
        ({"file_size": 0}, "0 bytes"),
    ],
)
def test_no_size(size: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Target(**size)


def test_sizes_in_words() -> None:
    want = {"4.2GiB": 4509715660, "700MB": 700_000_000, "1.5 kb": 1500, "12": 12, "3 KiB": 3072, "7B": 7, "1TB": 10**12}
    assert {text: parse_size(text) for text in want} == want
    for text in ("", "GB", "4.2G", "-1MB", "1e9", "4,2GB", "nan", "1 2"):
        with pytest.raises(UsageError, match=r"as 4\.2GiB"):
            parse_size(text)


def test_a_guess_gives_the_output_and_the_ends_more() -> None:
    names = [f"blk.{i}.{kind}.weight" for i in range(16) for kind in ("attn_v", "attn_q", "ffn_down_exps")]
    got = guessed_slopes([*names, "token_embd.weight", "output.weight"], 16)
    assert got["output.weight"] == 1 > got["token_embd.weight"]
    assert guessed_slopes([*names, "token_embd.weight"], 16)["token_embd.weight"] == 1
    assert got["blk.5.attn_v.weight"] > got["blk.5.ffn_down_exps.weight"] > got["blk.5.attn_q.weight"]
    ends = [i for i in range(16) if got[f"blk.{i}.attn_q.weight"] > got["blk.5.attn_q.weight"]]
    assert ends == [0, 1, 14, 15]


def demo_fit(path: Path, chunks: int) -> Fitted:
    slopes = MeasuredSlopes("demo", chunks=chunks)
    return quantize_to_size(resolve("demo"), path, Target(bits_per_weight=4.5), slopes=slopes)


def demo_divergence(path: Path, chunks: int | None) -> Estimate:
    with open_subject(path, 512) as model, open_subject("demo", 512) as base:
        return divergence(model, base, demo_text(base.tokenizer, "test").tokens, chunks=chunks).kl


@pytest.mark.slow
@pytest.mark.parametrize(("probed", "scored"), [(1, 10), (4, None)])
def test_a_fit_is_as_good_as_a_preset_that_is_larger(tmp_path: Path, probed: int, scored: int | None) -> None:
    preset = quantize_file(resolve("demo"), tmp_path / "preset.gguf", "Q4_K_M")
    fitted = demo_fit(tmp_path / "fit.gguf", probed)
    assert fitted.report.nbytes < 0.94 * preset.nbytes
    got, want = (demo_divergence(tmp_path / f"{name}.gguf", scored) for name in ("fit", "preset"))
    assert got.value < want.value + math.hypot(got.error, want.error)
    assert fitted.loss_is == MEASURED
    assert fitted.loss == pytest.approx(got.value, rel=0.5)


def importances(src: Path, *names: str) -> Imatrix:
    """Random ones of the named matrices, of all without names."""
    rng = np.random.default_rng(3)
    with GGUFFile.open(src) as file:
        shapes = {
            n: info.shape for n, info in file.tensors.items() if len(info.shape) > 1 and n in (names or types(src))
        }
    rows = {name: (*shape[:-2], shape[-1]) if len(shape) > 2 else (1, shape[-1]) for name, shape in shapes.items()}
    return Imatrix({
        name: SquareSums(rng.random(shape, np.float32), np.ones(shape[0], np.int64)) for name, shape in rows.items()
    })


def test_grids_are_offered_where_importances_are(src: Path) -> None:
    name, other = "blk.0.ffn_down_exps.weight", "blk.1.ffn_down_exps.weight"
    with GGUFFile.open(src) as file:
        source, weights = gguf_source(file), importances(src, name)
        plain = [fmt.name for fmt in offers(source, Choices())[name]]
        some, every = offers(source, Choices(), weights, 2.2), offers(source, Choices(), weights, 0)
    grids = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"]
    assert [fmt.name for fmt in every[name]] == [*grids, "Q2_K", "IQ3_XXS", "IQ3_S", *plain[1:]]
    assert [fmt.name for fmt in some[name]] == [*grids[3:], "Q2_K", "IQ3_XXS", "IQ3_S", *plain[1:]]
    assert [fmt.name for fmt in every[other]] == plain


@pytest.mark.slow
def test_fewer_bits_than_other_types_have(src: Path, dst: Path) -> None:
    with pytest.raises(UsageError, match=r"can't be: its smallest types take"):
        quantize_to_size(src, dst, Target(bits_per_weight=2.5))
    fitted = quantize_to_size(src, dst, Target(bits_per_weight=2.5), imatrix=importances(src))
    assert set(types(dst).values()) & {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"}
    assert fitted.bytes_left >= 0
