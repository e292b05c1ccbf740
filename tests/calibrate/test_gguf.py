"""Whole models with errors that make up for each other: types, sizes, experts, refusals, and how near they stay."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.calibrate.gguf import gguf_method
from octavo.calibrate.gguf.gguf_method import GgufMethod
from octavo.errors import FileError, UsageError
from octavo.evals import demo_text, divergence
from octavo.evals.eval_model import open_subject
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile
from octavo.quantizers import Choices, Report, Target, quantize_file, quantize_to_size
from octavo.quantizers.job.quantization_record import KEY, read_record, record_bytes
from tests.runtime import tiny


@pytest.fixture
def text(tmp_path: Path) -> str:
    return tiny.write_letters(tmp_path / "text.txt", 400)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models whose rows are all 256 values."""
    tiny.widen(monkeypatch)


def method(text: str, **options: Any) -> GgufMethod:
    return GgufMethod(text, **{"context": 32, "device": "reference", "threads": 1, **options})


def quantize(src: str, dst: Path, **options: Any) -> Report:
    return quantize_file(src, dst, "Q4_K_S", choices=Choices(pure=True), threads=1, **options)


@pytest.mark.usefixtures("whole")
def test_records_are_read_as_what_they_hold(text: str, tmp_path: Path) -> None:
    """A record each is a sample of its own: those of a text's windows give what the text does."""
    letters = Path(text).read_text()
    records = [json.dumps({"text": letters[i : i + 32]}) for i in range(0, 384, 32)]
    (tmp_path / "text.jsonl").write_text("\n".join(records))
    src, made = tiny.write(tmp_path / "src.gguf"), []
    for end in ("txt", "jsonl"):
        quantize(src, tmp_path / f"{end}.gguf", method=method(str(tmp_path / f"text.{end}")))
        with GGUFFile.open(tmp_path / f"{end}.gguf") as file:
            made.append({name: file.tensor(name).data.tobytes() for name in file.tensors})
    assert made[0] == made[1]
    (tmp_path / "no.jsonl").write_text("{")
    with pytest.raises(FileError, match="line 1"):
        quantize(src, tmp_path / "no.gguf", method=method(str(tmp_path / "no.jsonl")))


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("kind", ["gptq", "qronos"])
def test_types_and_sizes_are_the_presets_and_errors_fall(kind: str, text: str, tmp_path: Path) -> None:
    src = tiny.write(tmp_path / "src.gguf")
    plain = quantize(src, tmp_path / "plain.gguf")
    report = quantize(src, tmp_path / "made.gguf", method=method(text, kind=kind))
    assert [(r.name, r.type, r.nbytes) for r in report.rows] == [(r.name, r.type, r.nbytes) for r in plain.rows]
    made = {row.name: row for row in report.rows if row.before is not None}
    assert made.keys() == {r.name for r in plain.rows if r.type == "Q4_K"}
    assert all(row.error <= row.before for row in made.values())
    assert sum(row.error for row in made.values()) < 0.85 * sum(row.before for row in made.values())
    with GGUFFile.open(tmp_path / "made.gguf") as file, GGUFFile.open(tmp_path / "plain.gguf") as other:
        for name in made:
            near = dequantize(file.tensor(name)) - dequantize(other.tensor(name))
            assert 0 < np.abs(near).max() < 1
        record = read_record(file)
        assert record is not None
        assert (record.about.method, record.about.text, record.target) == (kind, "text.txt", "Q4_K_S")
        told = {name: row.error for name, row in made.items()}
        assert {w.name: w.error for w in record.weights} == pytest.approx(told, rel=1e-5)
        channels = {w.name: w.channels for w in record.weights}
        assert channels.pop("token_embd.weight") is None  # its rows are looked up
        assert all(found is not None and found.size == 256 for found in channels.values())
        assert len(file.metadata.get_str(KEY)) < record_bytes({w.name: (1, 256) for w in record.weights})
        assert read_record(other) is None


@pytest.mark.usefixtures("whole")
def test_an_expert_that_met_few_tokens_is_encoded_alone(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    src = tiny.write(tmp_path / "src.gguf", "qwen3moe", weights=tiny.tensors("qwen3moe"))
    report = quantize(src, tmp_path / "made.gguf", method=method(text, samples=2))
    (told,) = [line for line in caplog.messages if "expert" in line]
    assert told.startswith("experts with too few tokens are made by the encoder alone: blk.0.ffn_gate_exps.weight exp")
    assert re.search(r" and \d+ more; a longer text helps$", told)
    assert {(s.input, s.how) for s in report.starved} == {
        (f"blk.{i}.ffn_{part}_exps.weight", "the encoder alone") for i in range(2) for part in ("gate", "down")
    }
    assert all(s.tokens < 256 for s in report.starved)
    rows = {row.name: row for row in report.rows}
    alone = rows["blk.0.ffn_down_exps.weight"]
    assert alone.before == alone.error > 0
    assert rows["blk.0.attn_q.weight"].error < rows["blk.0.attn_q.weight"].before
    with GGUFFile.open(tmp_path / "made.gguf") as file, GGUFFile.open(src) as was:
        record = read_record(file)
        assert record is not None
        assert list(record.starved) == report.starved
        assert len(file.metadata.get_str(KEY)) < record_bytes({n: t.shape for n, t in file.tensors.items()})
        name = "blk.1.ffn_up_exps.weight"
        off = dequantize(file.tensor(name)) - dequantize(was.tensor(name))
        assert np.square(off).sum() < 0.02 * np.square(dequantize(was.tensor(name))).sum()


@pytest.mark.usefixtures("whole")
def test_what_does_not_go_together_is_refused(text: str, tmp_path: Path) -> None:
    src, dst = tiny.write(tmp_path / "src.gguf"), tmp_path / "made.gguf"
    grids = Choices(tensor_types=(("attn_q", "IQ3_S"),))
    for dry_run in (False, True):
        with pytest.raises(UsageError, match=r"attn_q.weight' becomes IQ3_S.*allowed: Q4_0.*IQ4_XS"):
            quantize_file(src, dst, "Q4_K_M", choices=grids, method=method(text), dry_run=dry_run)
    with pytest.raises(UsageError, match=r"the text has 400 tokens \(allowed: 512"):
        quantize(src, dst, method=method(text, context=None))
    with pytest.raises(UsageError, match="method 'awq'"):
        quantize(src, dst, method=method(text, kind="awq"))
    with pytest.raises(UsageError, match="0 samples"):
        quantize(src, dst, method=method(text, samples=0))
    assert not dst.exists()


@pytest.mark.usefixtures("whole")
def test_nothing_is_run_where_nothing_is_written(tmp_path: Path) -> None:
    src = tiny.write(tmp_path / "src.gguf")
    report = quantize(src, tmp_path / "made.gguf", method=method("/no/such/text"), dry_run=True)
    assert all(row.error is None for row in report.rows)
    assert [path.name for path in tmp_path.iterdir()] == ["src.gguf"]


@pytest.mark.few(1)
@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("kind", ["gptq", "qronos"])
def test_a_run_that_was_stopped_goes_on_with_the_same_bytes(
    kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, dst, work = tiny.write(tmp_path / "src.gguf"), tmp_path / "made.gguf", tmp_path / "made.gguf.work"
    quantize(src, tmp_path / "whole.gguf", method=method(text, kind=kind))
    stages: list[int] = []
    of_stage = gguf_method.stage_weights

    def stopped(job: Any, stage: Any, **options: Any) -> Any:
        if len(stages) == 3:
            raise KeyboardInterrupt
        stages.append(stage.number)
        return of_stage(job, stage, **options)

    monkeypatch.setattr(gguf_method, "stage_weights", stopped)
    with pytest.raises(KeyboardInterrupt):
        quantize(src, dst, method=method(text, kind=kind, work=str(work), resume=True))
    assert work.is_dir()
    assert not dst.exists()
    monkeypatch.setattr(gguf_method, "stage_weights", of_stage)
    with pytest.raises(UsageError, match=r"another text \(or other samples of it\): give the same"):
        quantize(src, dst, method=method(text, kind=kind, samples=2, work=str(work), resume=True))
    again: list[int] = []

    def seen(job: Any, stage: Any, **options: Any) -> Any:
        again.append(stage.number)
        return of_stage(job, stage, **options)

    monkeypatch.setattr(gguf_method, "stage_weights", seen)
    quantize(src, dst, method=method(text, kind=kind, work=str(work), resume=True))
    assert dst.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert again[0] == stages[-1] + 1
    assert not work.exists()


@pytest.mark.slow
def test_killed_at_any_stage_it_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    whole, dst = tmp_path / "whole.gguf", tmp_path / "made.gguf"
    command = [sys.executable, "-m", "octavo.cli", "quantize", "demo", "PATH", "Q4_0", "--method", "gptq"]
    command += ["--calibration", "demo", "--samples", "4", "--resume"]
    subprocess.run([str(whole) if part == "PATH" else part for part in command], check=True, capture_output=True)
    state, reached = tmp_path / "made.gguf.work" / "state.json", 0
    for wanted in (3, 17, 30):
        run = subprocess.Popen([str(dst) if part == "PATH" else part for part in command], stdout=subprocess.DEVNULL)
        while run.poll() is None and reached < wanted:
            with suppress(OSError, ValueError):
                reached = json.loads(state.read_text())["stage"]
            time.sleep(0.005)
        run.kill()
        assert run.wait() == -signal.SIGKILL
        assert reached >= wanted
    subprocess.run([str(dst) if part == "PATH" else part for part in command], check=True, capture_output=True)
    assert dst.read_bytes() == whole.read_bytes()
    assert not state.exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gptq", "qronos"])
def test_the_demo_model_stays_nearer_at_equal_size(kind: Any, tmp_path: Path) -> None:
    apart = {}
    for name, how in (("plain", None), ("made", GgufMethod("demo", kind, samples=16))):
        path = tmp_path / f"{name}.gguf"
        quantize_file("demo", path, "Q4_0", method=how)
        with open_subject(path, 512) as model, open_subject("demo", 512) as base:
            tokens = demo_text(base.tokenizer, "test").tokens
            apart[name] = divergence(model, base, tokens, context=512, chunks=4).kl.value
    assert apart["made"] < 0.5 * apart["plain"]


@pytest.mark.slow
def test_types_that_were_chosen_for_a_size(tmp_path: Path) -> None:
    fitted = quantize_to_size("demo", tmp_path / "made.gguf", Target(4.5), method=GgufMethod("demo", samples=4))
    assert fitted.report.bits_per_weight <= 4.5
    assert sum(row.before is not None for row in fitted.report.rows) == 71
