"""Files with one matrix for keys and values, as converters write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from legacy_cases import CASES as TABLE
from octavo.backends.reference import ReferenceBackend
from octavo.huggingface import open_model_file
from tests.models.table import error, logits, saved
from tests.models.test_latent_kv import FEW, unsplit


def test_minicpm3_which_does_not_say_how_long_values_are(tmp_path: Path) -> None:
    """Where all heads' are the width."""
    case = TABLE["minicpm3"]
    want = saved(tmp_path / "hf", replace(case, options=case.options | {"v_head_dim": 64}))
    with open_model_file(tmp_path / "hf") as folder, unsplit(
        folder, tmp_path / "m.gguf", keys={"value_length": None}) as file:
        assert "minicpm3.attention.value_length" not in file.metadata
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_plm_as_converters_write_it(tmp_path: Path) -> None:
    want = saved(tmp_path / "hf", TABLE["plm"])
    with open_model_file(tmp_path / "hf") as folder, unsplit(folder, tmp_path / "m.gguf") as file:
        assert "blk.0.attn_kv_b.weight" in file.tensors
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4
