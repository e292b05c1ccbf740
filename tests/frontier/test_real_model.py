"""A real model: a file beside the best preset of no more bytes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from octavo.evals.judge.judgement import judge
from octavo.frontier.plan import Options, Subject, plan
from octavo.frontier.run import make_frontier
from octavo.io.gguf import GGUFFile
from octavo.quantizers import quantize_file
from octavo.quantizers.fit.fit import Target

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def test_smollm2_is_nearer_than_the_best_preset_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("tools", "bench"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import calibration_text
    import pad_model
    import real_models

    source, calibration = tmp_path / "f16.gguf", tmp_path / "calibration.txt"
    pad_model.pad(real_models.fetch("smollm2"), source)
    calibration.write_text(calibration_text.text(), encoding="utf-8")
    for name in ("calibration_text", "pad_model", "real_models"):
        sys.modules.pop(name)
    quantize_file(source, tmp_path / "size.gguf", "Q4_K_M")
    with GGUFFile.open(tmp_path / "size.gguf") as file:
        wanted = [Target(bits_per_weight=8 * file.nbytes / sum(t.size for t in file.tensors.values()))]
    options = Options(str(calibration), samples=16, groups=16, rounds=0, chunks=4, speed=False, device="cpu")
    out = tmp_path / "out"
    with Subject(str(source), options) as subject:
        planned = plan(subject, str(out), wanted, options)
        (made,) = make_frontier(subject, str(out), planned, options).files
    preset = tmp_path / "preset.gguf"
    quantize_file(source, preset, "Q4_K_M", imatrix=out / "work" / "imatrix.gguf")
    found = judge(str(source), [str(out / made.name), str(preset)], chunks=4, exact=True, device="cpu")
    kl = {verdict.name: verdict.kl.value for verdict in found.files}
    assert made.nbytes <= planned.files[0].budget
    assert kl[made.name] < 0.8 * kl["preset.gguf"]
