"""The judge of tiny models: its figures by their definition, ranks, broken files, and bases that llama.cpp ran."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import FileError, UsageError
from octavo.evals import divergence
from octavo.evals.clusters import Interval
from octavo.evals.eval_model import open_subject
from octavo.evals.judge import judgement
from octavo.evals.judge.judgement import Judgement, judge
from octavo.evals.judge.reference import Kept, LlamaCppFile
from octavo.evals.judge.suspicion import worth
from octavo.evals.windows import logits, step_sizes, windows
from octavo.quantizers import quantize_file
from tests.runtime import tiny

WHERE: dict[str, Any] = {"device": "reference", "context": 64}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, files made of it, and a text."""
    folder = tmp_path_factory.mktemp("judge")
    with pytest.MonkeyPatch.context() as patch:
        tiny.widen(patch)
        weights = {n: v.astype(np.float16) if v.ndim > 1 else v for n, v in tiny.tensors().items()}
        keys = dict[str, Any]()
        tiny.write(folder / "base.gguf", weights=weights, keys=keys)
        tiny.write(folder / "rope.gguf", weights=weights, keys={**keys, "qwen3.rope.freq_base": 100.0})
    for preset in ("Q8_0", "Q6_K", "Q4_K_M", "Q3_K_M"):
        quantize_file(folder / "base.gguf", folder / f"{preset}.gguf", preset)
    tiny.write_letters(folder / "text.txt", 400)
    return folder


def judged(made: Path, *names: str, base: str = "base", **how: Any) -> Judgement:
    return judge(str(made / f"{base}.gguf"), [str(made / f"{n}.gguf") for n in names],
                 **({"text": str(made / "text.txt"), "noise_windows": 0} | WHERE | how))


def test_figures_are_those_of_a_divergence(made: Path) -> None:
    found = judged(made, "Q4_K_M")
    where = {"device": "reference"}
    paths = [made / f"{name}.gguf" for name in ("Q4_K_M", "base")]
    with open_subject(paths[0], 64, **where) as model, open_subject(paths[1], 64, **where) as base:
        tokens = model.tokenizer.encode((made / "text.txt").read_text().removesuffix("\n"))
        other = divergence(model, base, tokens, context=64)
    (verdict,) = found.files
    assert 1e-4 < verdict.kl.value == pytest.approx(other.kl.value, rel=1e-9)
    assert verdict.median.value == pytest.approx(other.kl_spread.median, rel=0.05)
    assert verdict.same_top.value == pytest.approx(other.same_top.value)
    assert verdict.perplexity.value == pytest.approx(other.perplexity.value, rel=1e-9)
    assert verdict.ratio.value == pytest.approx(other.perplexity_ratio.value, rel=1e-9)
    assert found.base_perplexity.value == pytest.approx(other.base_perplexity.value, rel=1e-9)
    assert (found.windows, found.positions, found.clusters) == (6, 186, 6)
    assert verdict.kl.low < verdict.kl.value < verdict.kl.high
    assert verdict.median.value < verdict.p99.value <= verdict.p999.value


def test_all_positions(made: Path) -> None:
    """Those of a window's beginning too, each once, as the model's own logits give them."""
    found = judged(made, "Q3_K_M", every=True)
    assert (found.positions, found.every) == (378, True)
    kl = []
    with open_subject(made / "Q3_K_M.gguf", 64, device="reference") as model, open_subject(
        made / "base.gguf", 64, device="reference"
    ) as base:
        tokens = model.tokenizer.encode((made / "text.txt").read_text().removesuffix("\n"))
        for start in range(0, 384, 64):
            p, q = (m.logits(tokens[start : start + 64])[:-1].astype(np.float64) for m in (model, base))
            p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (p, q))
            kl += (np.exp(q) * (q - p)).sum(1).tolist()
    assert found.files[0].kl.value == pytest.approx(np.mean(kl), rel=1e-5)


def test_a_base_without_room_on_the_disk_runs_beside_each_file(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = judged(made, "Q4_K_M", "Q6_K")
    monkeypatch.setattr(Kept, "there_is_room", lambda *_: False)
    assert judged(made, "Q4_K_M", "Q6_K") == kept


def test_ranks_and_sizes(made: Path) -> None:
    found = judged(made, "Q3_K_M", "Q8_0", "Q4_K_M", "Q6_K", exact=True)
    assert [v.name for v in found.files] == ["Q8_0.gguf", "Q6_K.gguf", "Q4_K_M.gguf", "Q3_K_M.gguf"]
    assert [v.rank for v in found.files] == [1, 2, 3, 4]
    assert not any(v.suspicions for v in found.files)
    for verdict in found.files:
        sizes = verdict.sizes
        assert sizes.total == sizes.body + sizes.head < (made / verdict.name).stat().st_size
    assert found.files[0].sizes.body_bits == pytest.approx(8.5, abs=0.1)
    assert found.base_sizes is not None
    assert found.base_sizes.bits == pytest.approx(16, abs=0.1)


def test_files_alike_share_a_rank(made: Path) -> None:
    (made / "again.gguf").write_bytes((made / "Q6_K.gguf").read_bytes())
    assert [v.rank for v in judged(made, "again", "Q6_K", "Q4_K_M").files] == [1, 1, 3]


@pytest.mark.slow
def test_noise_is_what_rounded_activations_add(made: Path) -> None:
    """The base's floats have next to none, and exact arithmetic none at all."""
    cpu = {"device": "cpu", "noise_windows": 2}
    usual = {v.name: v.noise for v in judged(made, "base", "Q8_0", **cpu).files}
    assert usual["base.gguf"] is not None
    assert usual["Q8_0.gguf"] is not None
    assert usual["base.gguf"] < usual["Q8_0.gguf"] / 10
    exact = judged(made, "Q8_0", exact=True, **cpu).files[0]
    assert exact.noise == 0
    assert exact.kl.value < judged(made, "Q8_0", **cpu).files[0].kl.value


def rolled(made: Path, preset: str, tensor: str, name: str) -> None:
    """A file whose `tensor` has its rows in another order."""
    from octavo.formats import QTensor
    from octavo.io.gguf import GGUFFile, write_gguf

    with GGUFFile.open(made / f"{preset}.gguf") as file:
        tensors = {n: file.tensor(n, copy=True) for n in file.tensors}
        q = tensors[tensor]
        tensors[tensor] = QTensor(q.format, q.shape, np.roll(q.data, 1, axis=0), tensor)
        keys = {k: file.metadata.typed(k) for k in file.metadata}
        write_gguf(made / f"{name}.gguf", file.metadata["general.architecture"], keys, tensors)


def test_broken_files_are_found(made: Path) -> None:
    rolled(made, "Q4_K_M", "blk.1.ffn_up.weight", "rolled")
    found = judged(made, "Q8_0", "Q6_K", "Q4_K_M", "Q3_K_M", "rolled", "rope", exact=True)
    broken = {v.name: v.suspicions for v in found.files if v.suspicions}
    assert set(broken) == {"rolled.gguf", "rope.gguf"}
    assert any("blk.1.ffn_up.weight is" in said for said in broken["rolled.gguf"])
    assert "rope.base 100.0, the base 10000.0" in broken["rope.gguf"]


def test_a_file_that_is_not_finite_is_told_and_the_others_are_judged(made: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tiny.widen(patch)
        weights = tiny.tensors()
        weights["blk.1.ffn_down.weight"][3, 3] = np.nan
        tiny.write(made / "nan.gguf", weights=weights)
    (made / "cut.gguf").write_bytes((made / "Q6_K.gguf").read_bytes()[:5000])
    found = judged(made, "nan", "Q6_K", "cut")
    assert [v.name for v in found.files] == ["Q6_K.gguf"]
    assert set(found.failed) == {"nan.gguf", "cut.gguf"}


def test_files_of_another_vocabulary(made: Path) -> None:
    tokens = tiny.TOKENIZER["tokenizer.ggml.tokens"]
    tiny.write(made / "other.gguf", keys={"tokenizer.ggml.tokens": [*tokens[:-2], "<|end|>", "he"]})
    with pytest.raises(UsageError, match="token 257"):
        judged(made, "Q6_K", "other")


@pytest.mark.parametrize("how", [{"text": "none.txt"}, {"calibration": "none.txt"}])
def test_what_is_not_there_is_told_before_any_work(
    made: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, str]
) -> None:
    monkeypatch.setattr(judgement, "open_model_file", lambda *_: pytest.fail("a model was opened"))
    with pytest.raises(FileError, match=r"none\.txt: can't be opened"):
        judged(made, "Q6_K", **how)
    with pytest.raises(FileError, match=r"none\.gguf: can't be opened"):
        judged(made, "Q6_K", "none")
    with pytest.raises(FileError, match=r"none\.gguf: can't be opened"):
        judged(made, "Q6_K", base="none")


def test_a_file_far_off_has_no_end() -> None:
    assert judgement.exponential(Interval(0.0, 0.0, 1000.0)) == Interval(1.0, 1.0, math.inf)


def test_progress_says_which_model_and_which_window(made: Path) -> None:
    said = list[tuple[int, int, str]]()
    judged(made, "Q6_K", "Q4_K_M", progress=lambda *told: said.append(told))
    assert len(said) == 18
    assert said[0] == (1, 18, "1 of 3 models: the base, window 1 of 6")
    assert said[-1] == (18, 18, "3 of 3 models: Q4_K_M.gguf, window 6 of 6")
    write_recorded(made / "base.kld", made)
    said.clear()
    judge(str(made / "base.kld"), [str(made / "Q6_K.gguf")], device="reference", noise_windows=0,
          progress=lambda *told: said.append(told))
    assert said[-1] == (6, 6, "1 of 1 models: Q6_K.gguf, window 6 of 6")


def test_no_file() -> None:
    with pytest.raises(UsageError, match="no file"):
        judge("demo", [])


def test_worth_is_in_bits_against_the_median() -> None:
    assert worth([0.1, 0.2], [4, 4]) == [None, None]
    found = worth([0.4, 0.1, 0.025, 1.6], [3, 4, 5, 5])
    assert found == pytest.approx([0, 0, 0, -3])


def write_recorded(path: Path, made: Path, n_windows: int = 6) -> None:
    """A base's logits as llama.cpp's tool writes them, by the words of its format."""
    with open_subject(made / "base.gguf", 64, device="reference") as base:
        tokens = base.tokenizer.encode((made / "text.txt").read_text().removesuffix("\n"))
        found = windows(base, tokens, 64, n_windows)
        rows = [np.concatenate([r.copy() for r, _ in logits(base.engine, w, *step_sizes(base.engine))]) for w in found]
    n_vocab, out = rows[0].shape[1], bytearray(b"_logits_")
    out += np.array([64, n_vocab, len(found)], "<i4").tobytes() + np.array(tokens[: 64 * len(found)], "<i4").tobytes()
    for row in np.concatenate(rows):
        low = np.float32(max(row.min(), row.max() - 16))
        step = np.float32((row.max() - low) / 65535)
        total = row.max() + math.log(np.exp(row - row.max()).sum())
        codes = np.where(row > low, np.rint((row - low) / step), 0).astype("<u2")
        out += np.array([step, low - total], "<f4").tobytes() + codes.tobytes() + bytes(n_vocab % 2 * 2)
    path.write_bytes(out)


def test_a_base_that_llama_cpp_ran(made: Path) -> None:
    write_recorded(made / "base.kld", made)
    found = judge(str(made / "base.kld"), [str(made / "Q4_K_M.gguf")], device="reference", noise_windows=0)
    live = judged(made, "Q4_K_M")
    assert (found.context, found.windows, found.positions) == (64, 6, 186)
    assert found.files[0].kl.value == pytest.approx(live.files[0].kl.value, rel=1e-4)
    assert found.files[0].perplexity == live.files[0].perplexity
    assert found.base_perplexity.value == pytest.approx(live.base_perplexity.value, rel=1e-4)
    assert found.rounding is not None
    assert 0 <= found.rounding < 1e-6
    assert found.base_sizes is None


def test_a_cut_file_of_logits(made: Path) -> None:
    write_recorded(made / "whole.kld", made, 2)
    whole = bytearray((made / "whole.kld").read_bytes())
    other = "is not a file"
    for cut, message in ((whole[:-2], "header speaks of"), (whole[:12], other), (b"GGUF" + whole, other)):
        (made / "cut.kld").write_bytes(cut)
        with pytest.raises(FileError, match=message):
            LlamaCppFile.open(made / "cut.kld")
    whole[8:20] = np.array([64, -1, 2], "<i4").tobytes()
    (made / "cut.kld").write_bytes(whole)
    with pytest.raises(FileError, match="speaks of 2 windows"):
        LlamaCppFile.open(made / "cut.kld")


@pytest.mark.parametrize("step", [np.nan, np.inf, 1e30, 1.0])
def test_a_file_of_logits_that_are_no_probabilities(made: Path, step: float) -> None:
    write_recorded(made / "whole.kld", made, 2)
    raw = bytearray((made / "whole.kld").read_bytes())
    at = 20 + 4 * 2 * 64
    raw[at : at + 4] = np.float32(step).tobytes()
    (made / "odd.kld").write_bytes(raw)
    with pytest.raises(FileError, match="add up to 1"):
        LlamaCppFile.open(made / "odd.kld").log_probabilities(0, 0, 4)


def test_what_is_below_16_nats_is_cut(made: Path) -> None:
    log_p = np.array([[-0.1, -3.0, -16.1, -16.1], [-2.0, -1.0, -17.0, -0.7]])
    cut = LlamaCppFile.without_cut(log_p)
    assert (cut[0] == [-0.1, -3.0, -1e4, -1e4]).all()
    assert (cut[1] == [-2.0, -1.0, -1e4, -0.7]).all()


def test_names() -> None:
    assert judgement.named(["a/x.gguf", "b/y.gguf"]) == ["x.gguf", "y.gguf"]
    assert judgement.named(["a/x.gguf", "b/x.gguf", "y"]) == ["a/x.gguf", "b/x.gguf", "y"]
